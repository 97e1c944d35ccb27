"""Watching a DEQ's hidden iteration: does it settle, for these inputs?

    z_{l+1} = f(z_l, x),  x held fixed:   (K g)(z, x) = g(f(z, x), x)        paper, eq. (1) and (4)

For each input the iteration is run from several starts. What is fitted is the increment
g(z, x) = f(z, x) - z, the observable that a solver drives to zero: g(z_{l+1}) = A g(z_l) without the constant
and without z*, so that the verdict on A is one on what is left to settle,

    origin           the increments die out              the state settles: fixed-point, origin if at zero
                     (at a rate that does not slacken)
    invariant-set    they keep turning                   the state keeps moving in a bounded set
    divergent        they grow, or stay (eigenvalue 1)   the state grows, or drifts off

A is estimated by EDMD on late increments, each pair scaled to size one so that all decades of a decay count,
in a few principal directions and with delays g, g o f, g o f^2, ... (Krylov observables: Arbabi & Mezic 2017).
`Observation.koopman` is the other view: one Koopman matrix over all inputs, for any dictionary of (z, x).
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from koopsim.bridge.hidden import (
    Implicit,
    Progress,
    check_inputs,
    equilibrium_of,
    hidden_map,
    in_float64,
    orbit_of,
    seen_inputs,
    starts_around,
)
from koopsim.bridge.inner import InnerCell, in_module, require_cell
from koopsim.bridge.principal import principal
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, Info, MonDEQ, TransformerDEQ, UnconvergedWarning, picard
from koopsim.spectral import EDMD, Observables, Verdict, analyze

Array = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)
SETTLED = frozenset({"fixed-point", "origin"})
TOLERANCE = 1e-6  # the plain iteration counts as settled at this relative residual,
PATIENCE = 1000  # given so many steps
FLOOR = 1e-10  # no matrix that was fitted to data is believed further than this
ROUNDING = 1e-11  # increments below this share of the state are rounding
BLOWN_UP = 1e30
AT_ONCE = 2**16  # numbers of state iterated together: small cells many inputs at a time, large ones one by one
TRANSIENT = (0.25, 0.5, 0.75)  # shares of each trajectory that are skipped
MOST = 24  # directions of the increments with their delays
DONE = 1e-6  # increments that have shrunk to this share are done shrinking
SLACK = 0.85  # the rate at which they shrink in the last quarter, beside that in the quarter before: 1 / l has 0.71
SLACKENS = "The increments die out ever more slowly, as powers of 1 / l do: their sum may grow without bound."
MOST_LINES = 12  # of a printed observation
SMALLEST = 0.1  # directions below this share of the largest are left to the misfit


@dataclass(frozen=True, repr=False)
class Observation:
    """What was seen. `states` is (inputs, starts, steps + 1, state size), `inputs` (inputs, input size)."""

    states: Array
    inputs: Array
    cases: tuple[str, ...]  # of the state, an input each
    verdicts: tuple[Verdict, ...]  # on the increments, an input each
    plain: Info  # what z <- f(z, x) really did, (inputs, starts); the first start is z_0
    solver: Info | None  # what the model's own solver did

    def __repr__(self) -> str:
        return f"<Observation of {len(self.cases)} inputs: {', '.join(f'{n} {c}' for c, n in self.counts.items())}>"

    def __str__(self) -> str:
        """A line an input, MOST_LINES at most."""
        n, starts, steps, size = self.states.shape
        lines = [
            f"{n} inputs, {starts} starts each, {steps - 1} steps of {size} numbers: "
            + ", ".join(f"{count} {case}" for case, count in self.counts.items()),
            "  input  case           |eigenvalue|  turns a step  z <- f(z, x)",
        ]
        for i in range(min(n, MOST_LINES)):
            w = self.verdicts[i].eigenvalues
            lead = w[np.abs(w).argmax()] if w.size else 0j
            turns, taken = abs(round(np.angle(lead) / (2 * np.pi), 12)), int(self.plain.steps[i].max())
            did = f"at rest after {taken} steps" if self.settled[i] else f"not at rest after {taken}"
            lines.append(f"  {i:5d}  {self.cases[i]:13s}  {abs(lead):12.6g}  {turns:12.4g}  {did}")
        return "\n".join([*lines, *([f"  ... and {n - MOST_LINES} more"] if n > MOST_LINES else [])])

    @property
    def settled(self) -> Array:
        """Whether the plain iteration settled, an input each: from every start that was tried."""
        return self.plain.converged.all(dim=1).cpu().numpy()

    @property
    def agreement(self) -> dict[str, float]:
        """Shares of inputs whose verdict agrees with the plain iteration, does not, or decides nothing."""
        n = len(self.cases)
        pairs = list(zip(self.cases, self.settled, strict=True))
        undecided = sum(case == "undecided" for case, _ in pairs)
        agree = sum(case != "undecided" and (case in SETTLED) == bool(settled) for case, settled in pairs)
        return {"agree": agree / n, "undecided": undecided / n, "disagree": (n - agree - undecided) / n}

    @property
    def case(self) -> str:
        """The case of all inputs, or "mixed"."""
        return self.cases[0] if len(set(self.cases)) == 1 else "mixed"

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.cases).most_common())

    def trajectories(self, dims: int | None = None) -> tuple[list[Array], list[Array]]:
        """(trajectories, inputs) as `EDMD.fit(trajectories, inputs=inputs)` takes them, in principal directions.

        Each trajectory ends where it blows up or comes to rest; `dims` bounds the directions of the state and of the
        input.
        """
        shape = self.states.shape
        z = self.states.reshape(shape[0] * shape[1], shape[2], shape[3])
        ends = [min(_end(t), _rest(t)) for t in z]
        kept = [i for i, end in enumerate(ends) if end >= 2]
        mean, P = principal(np.concatenate([z[i, : ends[i]] for i in kept] or [z[0, :0]]), dims)
        input_mean, Q = principal(self.inputs, dims)
        x = np.repeat((self.inputs - input_mean) @ Q, shape[1], axis=0)
        return [(z[i, : ends[i]] - mean) @ P for i in kept], [x[i] for i in kept]

    def koopman(self, dictionary: Any = None, dims: int | None = 8, rtol: float | None = 1e-6) -> EDMD:
        """The Koopman matrix over all inputs, (K g)(z, x) = g(f(z, x), x); `.verdict()` judges it."""
        z, x = self.trajectories(dims)
        return EDMD(dictionary, rtol=rtol).fit(z, inputs=x)


def observe(
    deq: Implicit, inputs: Tensor, steps: int = 500, starts: int = 2, spread: float = 1.0, dims: int = 8,
    delays: int = 4, seed: int = 0, progress: Progress | None = None, cell: str | None = None,
) -> Observation:  # fmt: skip
    """Run the hidden iteration of `deq` (a DEQ, a TransformerDEQ or a cell f(z, x)) and judge it, input by input.

    steps   of the iteration;   starts: z_0, and others at random around it at `spread` times the state's size
    dims    principal directions kept of the increments;   delays: how many steps ahead the observables look
    progress  is told (inputs done, inputs in all)
    cell    of a whole model, encoder, head and all: the name of the part that is iterated
    """
    deq = deq if cell is None else InnerCell(in_module(deq), cell)
    if not isinstance(deq, DEQ | TransformerDEQ | MonDEQ):
        require_cell(deq)
    if steps < 8 or starts < 1 or dims < 1 or delays < 0 or not spread >= 0:
        raise KoopsimError(
            f"steps={steps}, starts={starts}, dims={dims}, delays={delays}, spread={spread}: "
            "expected at least 8 steps, 1 start, 1 direction, and nothing negative."
        )
    check_inputs(inputs)
    deq = in_float64(deq)
    x = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad():
        _, begun = starts_around(deq, x, starts, spread, seed)
        seen = seen_inputs(deq, x).cpu().numpy()
    states = np.empty((len(x), starts, steps + 1, begun[0].numel()))
    plain, solver, judged = [], [], []
    count = max(1, AT_ONCE // begun[:starts].numel())
    for rows in (slice(i, i + count) for i in range(0, len(x), count)):
        few, z0 = x[rows], begun.unflatten(0, (len(x), starts))[rows].flatten(0, 1)
        with torch.no_grad():
            f, _ = hidden_map(deq, few.repeat_interleave(starts, dim=0))
            states[rows] = orbit_of(f, z0, steps).reshape(len(few), starts, steps + 1, -1)
            info = picard(f, z0, max_steps=PATIENCE, tol=TOLERANCE)[1]
            plain.append(Info(*(t.view(len(few), starts) for t in _parts(info))))
            if isinstance(deq, DEQ | TransformerDEQ | MonDEQ):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UnconvergedWarning)  # it is in the report
                    solver.append(equilibrium_of(deq, few)[1].forward)
        judged += [judge_states(z, dims, delays) for z in states[rows]]
        if progress is not None:
            progress(len(judged), len(x))
    cases, verdicts = zip(*judged, strict=True)
    return Observation(states, seen, cases, verdicts, _joined(plain), _joined(solver) if solver else None)


def _parts(info: Info) -> tuple[Tensor, Tensor, Tensor]:
    return info.steps, info.residuals, info.converged


def _joined(infos: list[Info]) -> Info:
    return Info(*(torch.cat(column) for column in zip(*(_parts(info) for info in infos), strict=True)))


def judge_states(states: Array, dims: int = 8, delays: int = 4) -> tuple[str, Verdict]:
    """(case of the state, verdict on the increments) from the trajectories (starts, steps + 1, D) of one input.

    Windows that skip more or less of the transient, more or fewer directions, with and without delays, are
    fitted; the best fit counts, and its misfit is the noise that the verdict allows for.
    """
    live, rounding = zip(*(_increments(z) for z in states), strict=True)
    sizes = sorted({max(1, dims // k) for k in (1, 4)})
    looks = sorted({0, delays, len(states[0]) // 4 if delays else 0})  # the last sees slow orbits whole
    fits = [_fit(list(live), skip, k, d) for skip in TRANSIENT for k in sizes for d in looks]
    best = min((fit for fit in fits if fit is not None), key=lambda fit: fit[1], default=None)
    if best is not None:
        A, error = best
        verdict = analyze(A, noise=min(max(error, *rounding, FLOOR), 0.99))
    else:  # over before it can be fitted: at rest at once, or gone at once
        verdict = analyze(np.array([[0.0 if all(_end(z) == len(z) for z in states) else 2.0]]))
    if verdict.case in ("undecided", "divergent"):
        return verdict.case, verdict
    if verdict.fixed:  # an increment that stays: z' = z + c
        return "divergent", verdict
    if verdict.case == "invariant-set":
        return "invariant-set", verdict
    if any(slackening(g) for g in live):  # 1 / l and its like: the eigenvalue that was fitted is not one
        return "undecided", replace(verdict.withheld(), reasons=(*verdict.reasons, SLACKENS))
    largest = np.linalg.norm(states[:, -1], axis=1).max()
    return ("origin" if largest <= TOLERANCE * np.linalg.norm(states, axis=2).max() else "fixed-point"), verdict


def slackening(increments: Array) -> bool:
    """Whether the increments of one trajectory die out ever more slowly, as powers of 1 / l do and no exponential does.

    Their sum may then grow without bound (z' = z + 1 / (1 + |z|) goes like sqrt(2 l)), however small they are.
    """
    size = np.linalg.norm(increments, axis=1)
    if len(size) < 16 or size[-len(size) // 8 :].max() < DONE * size.max():
        return False
    half, quarter = np.array_split(np.log(size[len(size) // 2 :]), 2)
    rates = [np.polyfit(np.arange(len(part)), part, 1)[0] for part in (half, quarter)]
    return rates[0] < 0 and rates[1] > SLACK * rates[0]


def _end(z: Array) -> int:
    """How many states of a trajectory come before it blows up."""
    with np.errstate(over="ignore", invalid="ignore"):
        fine = np.linalg.norm(z, axis=1) < BLOWN_UP  # false for nan
    return len(z) if fine.all() else int(np.argmin(fine))


def _rest(z: Array) -> int:
    """How many states of a trajectory there are until it stands still for good, one more to show that it does."""
    moves = np.flatnonzero(np.any(z[1:] != z[:-1], axis=1))
    return min(len(z), int(moves[-1]) + 3 if len(moves) else 2)


def _increments(z: Array) -> tuple[Array, float]:
    """(f(z) - z along one trajectory before rounding or overflow, its relative rounding error)."""
    z = z[: _end(z)]
    g = np.diff(z, axis=0)
    small, large = np.linalg.norm(g, axis=1), np.linalg.norm(z[1:], axis=1)
    live = small > ROUNDING * large
    end = len(g) if live.all() else int(np.argmin(live))
    return g[:end], float(16 * EPS * np.median(large[:end] / small[:end])) if end else 0.0


def _fit(increments: list[Array], skip: float, dims: int, delays: int) -> tuple[Array, float] | None:
    """(A, its relative error) from pairs (g, g') / ||g|| with delays; None where too few are left."""
    late = [g[int(skip * len(g)) :] for g in increments]
    late = [g for g in late if len(g) >= delays + 2]
    if not late:
        return None
    _, P = principal(np.concatenate([g / np.linalg.norm(g, axis=1, keepdims=True) for g in late]), dims, centred=False)
    now, after = [], []
    for g in late:
        p = g @ P
        stacked = np.hstack([p[k : len(p) - delays + k] for k in range(delays + 1)])
        size = np.linalg.norm(stacked[:-1], axis=1, keepdims=True)
        size[size == 0] = 1.0
        now.append(stacked[:-1] / size)
        after.append(stacked[1:] / size)
    X, Y = np.concatenate(now), np.concatenate(after)
    if X.shape[1] > MOST:
        _, P = principal(X, MOST, centred=False)
        X, Y = X @ P, Y @ P
    model = EDMD(Observables(_same), rtol=SMALLEST).fit((X, Y))
    solution, r = model.solution_, model.rank_
    if len(X) < 3 * r:  # as many unknowns as data: a perfect fit of nothing
        return None
    return solution.core.T, min(solution.relative_residual * (len(X) / (len(X) - r)) ** 0.5, 0.99)


def _same(z: Array) -> Array:
    return z
