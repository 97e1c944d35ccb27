"""Long-run averages of a cell that keeps moving, and the two-tier SIM that learns them.

    m(x) = lim (1/L) sum_l psi(z_l) = E[psi(z)],   z_{l+1} = f(z_l, x)          Birkhoff; paper, section 3.3
    U' V' psi(mu(x)) = m(x),    nu(m(x)) = E[z]                                  paper, eq. (10)

psi is one map for both: the lifted space R^N of the SIM has the state in its first coordinates (the rest are free for
what mu makes of x), so psi(z) is psi of the state with zeros behind it. The distance of two embeddings is the MMD of
the measures, so the least-squares loss is the mean squared MMD. A point that a cell settles at is the measure of that
point: one target for cells that settle on some inputs and not on others.

Averages are weighted by a bump exp(-1 / t(1-t)) along the run: on cycles the error then falls faster than any power of
its length, where the plain average's falls like one over it (Das et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.bridge.hidden import Implicit, hidden_map, in_float64
from koopsim.bridge.student import Lessons, teach
from koopsim.nn import SIM

AT_ONCE = 2**18  # numbers of state iterated together
SHARPNESS = 0.5  # the bandwidth of psi, in median distances of states
BURN, LENGTH = 400, 1200  # steps to reach the invariant set, steps averaged over
RIDGE = 1e-6  # || psi || = 1: an observable is read off no further than this


@dataclass(frozen=True)
class Measures:
    """Averages along the iteration, an input each."""

    embedding: Tensor  # E[psi(z)]
    mean: Tensor  # E[z]
    square: Tensor  # E[z^2], by coordinate
    floor: float  # root mean square MMD between two halves of the run: what no model can be asked to beat

    @property
    def deviation(self) -> float:
        """The standard deviation of the states, over time and inputs; 1 where there is none."""
        mean = self.mean.flatten(0, -2).mean(dim=0)
        return float((self.square.flatten(0, -2).mean(dim=0) - mean.square()).mean().clamp_min(0).sqrt()) or 1.0

    def part(self, rows: slice) -> Measures:
        return Measures(self.embedding[rows], self.mean[rows], self.square[rows], self.floor)


@dataclass(frozen=True)
class MeasureReport:
    """On held-out inputs. Averages are judged in units of how far the states spread, over time and inputs."""

    mmd: float  # root mean square of || U' V' psi(mu(x)) - E[psi(z)] ||
    mmd_mean: float  # of the mean embedding of the inputs fitted, whatever x
    mmd_equilibrium: float  # of the point that the solver gives
    floor: float
    averages: float  # root mean square error of E[z], over the states' standard deviation
    second_moments: float  # of E[z^2], read linearly off the embedding, over their variance


def embed(sim: SIM, z: Tensor) -> Tensor:
    """psi(z) of states, (..., d) -> (..., M): the SIM's own psi, zeros where its lift has more coordinates."""
    psi = sim.psi
    frequencies: Tensor = psi.frequencies  # type: ignore[assignment]
    return psi(F.pad(z, (0, frequencies.shape[1] - z.shape[-1])))


def embedding(sim: SIM, x: Tensor) -> Tensor:
    """U' V' psi(mu(x)): the SIM's word for E[psi(z)]."""
    return sim.limit(sim.lifted(x))


@torch.no_grad()
def late_states(deq: Implicit, inputs: Tensor, burn: int = BURN, count: int = 16) -> Tensor:
    """(count, inputs, ...): states of the iteration from z_0 after `burn` steps, every third one."""
    f, z = hidden_map(in_float64(deq), inputs.double() if inputs.is_floating_point() else inputs)
    for _ in range(burn):
        z = f(z)
    states = []
    for _ in range(count):
        states.append(z)
        z = f(f(f(z)))
    return torch.stack(states)


def bandwidth_of(states: Tensor, seed: int = 0, most: int = 2000) -> float:
    """Half the median distance between states, of any inputs; 1 where all are the same."""
    rows = states.reshape(-1, states.shape[-1])
    chosen = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].to(rows.device)]
    return SHARPNESS * float(torch.pdist(chosen).median()) or 1.0


@torch.no_grad()
def long_run(deq: Implicit, inputs: Tensor, sim: SIM, burn: int = BURN, length: int = LENGTH) -> Measures:
    """Run z_0 -> ... for burn + length steps and average over the last `length`."""
    exact = in_float64(deq)
    sim64 = in_float64(sim)
    x = inputs.double() if inputs.is_floating_point() else inputs
    parts = []
    size = hidden_map(exact, x[:1])[1][0].numel()
    for few in x.split(max(1, AT_ONCE // max(1, size, sim.limit.dim))):
        f, z = hidden_map(exact, few)
        for _ in range(burn):
            z = f(z)
        halves = []
        for _ in range(2):
            sums: list[Tensor] = []
            for weight in bump(length // 2):
                z = f(z)
                state = _rows(z, sim)
                terms = (embed(sim64, state), state, state.square())
                sums = [weight * t + (sums[k] if sums else 0.0) for k, t in enumerate(terms)]
            halves.append(sums)
        parts.append([torch.stack(pair) for pair in zip(*halves, strict=True)])
    both = [torch.cat(column, dim=1) for column in zip(*parts, strict=True)]
    floor = float((both[0][0] - both[0][1]).square().sum(-1).mean().sqrt()) / 2**0.5
    psi, mean, square = (t.mean(dim=0) for t in both)
    return Measures(psi, mean, square, floor)


def bump(length: int) -> list[float]:
    """Weights that begin and end at zero with all their derivatives, and sum to one."""
    t = torch.arange(1, length + 1, dtype=torch.float64) / (length + 1)
    w = torch.exp(-1 / (t * (1 - t)))
    return (w / w.sum()).tolist()


def _rows(z: Tensor, sim: SIM) -> Tensor:
    """States as the SIM has them: tokens keep their axis, everything else is one vector."""
    return z if z.dim() > 2 and z.shape[-1] == sim.h.in_features else z.flatten(1)


def teach_measures(sim: SIM, x: Tensor, targets: Measures, lessons: Lessons) -> None:
    """Fit the embedding and the mean state together, in units of how far psi and the states spread."""
    like = next(sim.parameters())
    m, mean = (t.to(like) for t in (targets.embedding, targets.mean))
    scales = (1.0, targets.deviation * mean.shape[-1] ** 0.5)  # || psi || = 1, so both parts weigh the same
    target = torch.cat([m / scales[0], mean / scales[1]], dim=-1)

    def view(x: Tensor) -> Tensor:
        phi = embedding(sim, x)
        return torch.cat([phi / scales[0], sim.nu(phi).reshape(*phi.shape[:-1], -1) / scales[1]], dim=-1)

    teach(sim, view, (x, target), lessons)


@torch.no_grad()
def judge_measures(
    sim: SIM, fitted: Measures, held: tuple[Tensor, Measures], points: Tensor, states: Tensor
) -> MeasureReport:
    """Distances on the held-out inputs; `points` are the solver's answers there, at `states` z^2 is read off psi."""
    (x, truth), like, exact = held, next(sim.parameters()), in_float64(sim)
    m = embedding(sim, x.to(like) if x.is_floating_point() else x).double()
    deviation = fitted.deviation
    second = m @ reader(exact, states, torch.square)
    return MeasureReport(
        mmd=rms(m - truth.embedding),
        mmd_mean=rms(fitted.embedding.mean(dim=0) - truth.embedding),
        mmd_equilibrium=rms(embed(exact, _rows(points.double(), sim)) - truth.embedding),
        floor=truth.floor,
        averages=rms(sim.nu(m.to(like)).double() - truth.mean, truth.mean.shape[-1]) / deviation,
        second_moments=rms(second - truth.square, truth.square.shape[-1]) / deviation**2,
    )


def reader(sim: SIM, states: Tensor, observable: Callable[[Tensor], Tensor]) -> Tensor:
    """(M, k): how E[g(z)] is read off an embedding, by ridge regression of g(z) on psi(z) at some states."""
    rows = states.reshape(-1, states.shape[-1])
    psi, g = embed(sim, rows), observable(rows)
    gram = psi.mT @ psi / len(rows)
    return torch.linalg.solve(gram + RIDGE * torch.eye(len(gram), dtype=gram.dtype), psi.mT @ g / len(rows))


def rms(difference: Tensor, width: int = 1) -> float:
    """Root mean square of the norms along the last axis, over the root of the width."""
    return float((difference.square().sum(dim=-1) / width).mean().sqrt())
