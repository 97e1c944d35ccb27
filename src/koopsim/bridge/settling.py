"""Before anything is learnt from a cell: where does its iteration really go?

    z_{l+1} = f(z_l, x):     at rest | moving in a bounded set | growing          paper, section 3.2, cases (ii) to (iv)
    rho(df/dz at z*) < 1     z* attracts; above 1 it solves z = f(z, x) and nothing ever goes there

A solver finds every solution of z = f(z, x), repelling ones too: the middle of a period-2 orbit, the centre of a limit
cycle, a point inside chaos. So the plain iteration is run, and the spectral radius of the Jacobian is measured at what
the solver found, by power iteration on all inputs at once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from koopsim.bridge.hidden import Implicit, Solvable, check_inputs, equilibrium_of, hidden_map, in_float64
from koopsim.implicit import MonDEQ, UnconvergedWarning
from koopsim.implicit.solvers import Map

AT_REST = 1e-6  # relative residual
SLOW = 4.0  # steps that fall by this from a run's second quarter to its second half go on to fall: 1 / l falls by 2
FALLING = 1.5  # by this: they may, or may not
GROWTH = 1.2  # a state that grows by this meanwhile is going somewhere: sqrt(l) grows by 1.41
STEADY = 0.99  # at steps that do not become smaller by more than this it goes there for good
BLOWN_UP = 1e30
SAME = 1e-2  # two ends closer than this, relative to the states' size, are one
NEAR = 0.1  # an equilibrium to a solver's tolerance is this close to the true one, if it attracts
CLEAR = 0.97  # a spectral radius below this is that of an equilibrium that attracts, whatever the rounding
POWER_STEPS = 30
WHOLE, SAMPLE = 2**18, 16
AT_ONCE = 2**16  # numbers of state iterated together


@dataclass(frozen=True)
class Settling:
    """What happens to each input. `case` is of the plain iteration from z_0."""

    cases: tuple[str, ...]  # "fixed-point", "invariant-set", "divergent" or "undecided"
    ends: Tensor  # where the plain iteration from z_0 was at the end
    equilibria: Tensor  # what the model's own solver found; the ends, where there is no solver
    converged: Tensor  # whether it did
    radii: Tensor  # spectral radius of df/dz there
    repelling: Tensor  # solved, and repels
    elsewhere: Tensor  # solved and attracting, but the iteration from z_0 settles at another point
    branches: Tensor  # how many different ends were reached from several starts, on the first inputs
    looked: Tensor  # inputs whose iteration was run; for the others an equilibrium that attracts was enough

    def where(self, case: str) -> Tensor:
        return torch.tensor([c == case for c in self.cases], device=self.converged.device)


@torch.no_grad()
def settling(
    deq: Implicit, inputs: Tensor, patience: int = 200, starts: int = 3, tried: int = 8, seed: int = 0
) -> Settling:
    """Ask the solver, input by input, and run the iteration from z_0 for at most `patience` steps.

    starts   from which the first `tried` inputs are run, to see whether all of them end at one point

    A large cell takes seconds a step. Beyond 2^18 numbers of state in all, the iteration is run on 16 inputs and on
    those whose equilibrium does not clearly attract; for the others one that attracts is taken for where it goes.
    """
    check_inputs(inputs)
    exact = in_float64(deq)
    x = inputs.double() if inputs.is_floating_point() else inputs
    exactly = not isinstance(deq, Solvable) or inputs.dtype == torch.float64  # else the solver in its own precision
    z, converged, radii = _solutions(exact, x) if exactly else _solutions(deq, inputs)
    looked = torch.ones_like(converged) if z.numel() <= WHOLE else ~converged | ~(radii < CLEAR)
    looked[:: max(1, len(x) // SAMPLE)] = True
    cases, ends, rest, reached = ["fixed-point"] * len(x), z.clone(), looked.clone(), z.clone()
    rows = torch.arange(len(x), device=z.device)[looked]
    single = isinstance(deq, MonDEQ)  # one equilibrium, by construction
    for some in () if single else rows.split(max(1, AT_ONCE // max(1, z[0].numel()))):
        few = x[some.to(x.device)]
        found, ends[some] = run_to_rest(exact, few, hidden_map(exact, few)[1], patience)
        rest[some] = torch.tensor([c == "fixed-point" for c in found], device=z.device)
        again = torch.where(_like(converged[some], z), z[some], ends[some])
        reached[some] = run_to_rest(exact, few, again, patience)[1] if isinstance(deq, Solvable) else again
        for row, case in zip(some.tolist(), found, strict=True):
            cases[row] = case
    if not isinstance(deq, Solvable):
        z, converged = ends, rest
        radii = torch.where(rest, radius_by_differences(hidden_map(exact, x)[0], z), torch.nan)
    attracts = ~looked | (radii < 1) & (_distance(reached, z) <= NEAR) | rest & (_distance(ends, z) <= SAME)
    attracts |= torch.full_like(attracts, single)
    late = converged & attracts & torch.tensor([c == "undecided" for c in cases], device=z.device)
    cases = ["fixed-point" if s else c for c, s in zip(cases, late.tolist(), strict=True)]  # too slow to see it arrive
    ends = torch.where(_like(late, z), z, ends)
    elsewhere = converged & attracts & rest & looked & (_distance(reached, ends) > SAME)
    branches = torch.ones(1) if single or starts < 2 else _branches(exact, x[:tried], starts, patience, seed)
    return Settling(tuple(cases), ends, z, converged, radii, converged & ~attracts, elsewhere, branches, looked)


def _solutions(deq: Implicit, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(z*, whether the solver reached it, rho(df/dz) there) in float64; of a bare cell z_0, and nothing is known."""
    f, z = hidden_map(deq, inputs)
    if not isinstance(deq, Solvable):
        unknown = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        return z.double(), unknown, torch.full((len(z),), torch.nan, dtype=torch.float64, device=z.device)
    parts, ok = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)  # counted in what is returned
        for some in inputs.split(64):
            found, info = equilibrium_of(deq, some)
            parts.append(found.detach())
            ok.append(info.converged)
    z, converged = torch.cat(parts), torch.cat(ok)
    none = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    radii = none if isinstance(deq, MonDEQ) else radius_by_differences(f, z)
    return z.double(), converged, torch.where(converged, radii, torch.nan)


def run_to_rest(deq: Implicit, x: Tensor, z: Tensor, patience: int) -> tuple[list[str], Tensor]:
    """(case, last state) of each sample, by the largest steps and states of a run's second quarter and second half.

    Samples at rest leave the run: a large cell takes seconds a step.
    """
    ends = z.clone()
    residual = torch.full((len(z),), torch.inf, dtype=torch.float64, device=z.device)
    moves, sizes = torch.zeros(2, 2, len(z), dtype=torch.float64, device=z.device)
    active = torch.arange(len(z), device=z.device)
    f = hidden_map(deq, x)[0]
    for step in range(1, patience + 1):
        after = f(z)
        size, move = after.flatten(1).norm(dim=1), (after - z).flatten(1).norm(dim=1)
        fine = size < BLOWN_UP  # false for nan
        z = torch.where(_like(fine, after), after, z)
        ends[active], residual[active] = z, torch.where(fine, move / (size + 1e-300), torch.inf)
        if 4 * step > patience:
            half = int(2 * step > patience)
            for most, value in ((moves, move), (sizes, size)):
                most[half, active] = torch.maximum(most[half, active], value)
        moving = (residual[active] >= AT_REST) & fine
        if not bool(moving.any()):
            break
        if int(moving.sum()) <= len(active) // 2:
            active, z = active[moving], z[moving]
            f = hidden_map(deq, x[active.to(x.device)])[0]
    rows = zip(residual.tolist(), *moves.tolist(), *sizes.tolist(), strict=True)
    return [_case(*row) for row in rows], ends


def _case(residual: float, move: float, later_move: float, size: float, later_size: float) -> str:
    if residual < AT_REST:
        return "fixed-point"
    if residual == float("inf"):
        return "divergent"
    if later_size > GROWTH * size:
        return "divergent" if later_move > STEADY * move else "undecided"
    if later_move * SLOW < move:
        return "fixed-point"
    return "undecided" if later_move * FALLING < move else "invariant-set"


def radius_by_differences(f: Map, z: Tensor, steps: int = POWER_STEPS) -> Tensor:
    """rho(df/dz) at each z, by power iteration: the mean growth over the second half, which averages rotations out."""
    v = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(z)
    small = 1e-6 if z.dtype == torch.float64 else 1e-3  # differences must be seen above the rounding
    step = _like(small * (1 + z.flatten(1).norm(dim=1)), z)
    base, total = f(z), torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for k in range(steps):
        v = v / _like(v.flatten(1).norm(dim=1).clamp_min(1e-30), v)
        v = (f(z + step * v) - base) / step
        if 2 * k >= steps:
            total += v.flatten(1).norm(dim=1).double().clamp_min(1e-30).log()
    return (total / (steps - steps // 2)).exp()


def _branches(deq: Implicit, x: Tensor, starts: int, patience: int, seed: int) -> Tensor:
    """How many different points the iteration settles at, from z_0 and from starts around it."""
    wide = x.repeat_interleave(starts, dim=0)
    z = hidden_map(deq, wide)[1]
    ends = run_to_rest(deq, x, hidden_map(deq, x)[1], patience)[1]
    reach = ends.square().mean().sqrt().nan_to_num(1.0).clamp(1e-3, 1e3)
    noise = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(z)
    noise.view(len(x), starts, -1)[:, 0] = 0  # the first start is z_0
    cases, ends = run_to_rest(deq, wide, z + reach * noise, patience)
    counts = []
    for row, group in enumerate(ends.reshape(len(x), starts, -1)):
        different: list[Tensor] = []
        for end, case in zip(group, cases[row * starts :], strict=False):
            if case == "fixed-point" and all(float(_distance(end[None], d[None])) > SAME for d in different):
                different.append(end)
        counts.append(len(different))
    return torch.tensor(counts)


def _like(mask: Tensor, z: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (z.dim() - 1))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    size = torch.maximum(a.flatten(1).norm(dim=1), b.flatten(1).norm(dim=1))
    return (a - b).flatten(1).norm(dim=1) / size.clamp_min(1e-12)
