"""The paper's two-tier equation without training: P'_1 of the lifted dynamics, by one least-squares fit.

    phi = (a(x), psi(z, x)):   a(x) is the same a step later, psi(f(z, x), x) = C_a a + C psi          paper, eq. (4)
    P'_1 phi = (a, (I - C)^-1 C_a a)          where averages along the iteration end                    eq. (10)
    E[g(z) | x] = D P'_1 phi                  D reads g off phi: least squares

Functions of x alone are eigenfunctions of eigenvalue 1, exactly; observables are made orthogonal to them under the
samples, so what is left, C, has no eigenvalue 1 unless one input has more than one invariant set. Then the long run
depends on the start, and the answer is refused. The modulus of C's largest eigenvalue is the mixing rate: on the circle
for cycles, whose averages converge all the same (the Cesaro limit of case (iii)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from koopsim.bridge.hidden import Implicit, check_inputs, in_float64, orbit_of, seen_inputs, starts_around
from koopsim.bridge.measures import embed, embedding, long_run, rms
from koopsim.errors import KoopsimError
from koopsim.nn import SIM
from koopsim.spectral import RandomFourier
from koopsim.spectral.mean_embedding import median_distance

Array = NDArray[Any]
NEGLIGIBLE = 1e-5  # directions of a below this share of the largest are dropped,
COARSE = 1e-2  # and of psi: what is left of functions of x after a small misfit must not be blown up to an observable
ONE = 1e-3  # an eigenvalue of C this close to 1 is a second invariant set


@dataclass(frozen=True)
class ClosedMeasure:
    """x -> E[g(z)] under the invariant measure of x, without iterating: `closed.average(g)(x)`."""

    misfit: float  # of the fit a step ahead, relative
    eigenvalues: Array  # of C: the Perron-Frobenius spectrum beside the ones
    observables: tuple[int, int]  # of x alone, and of (z, x) orthogonal to them
    projector: Array  # P'_1 on rows (a, psi), idempotent
    _held: Callable[[Array], Array]
    _samples: tuple[Array, Array]  # states and lifted samples, for D
    _seen: Callable[[Tensor], Array]

    @property
    def mixing_rate(self) -> float:
        return float(np.abs(self.eigenvalues).max()) if self.eigenvalues.size else 0.0

    def average(self, observable: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The function x -> E[g(z)], for any g of states (m, d) -> (m, k)."""
        states, lifted = self._samples
        if not callable(observable):
            raise KoopsimError(f"average takes a function of states (m, {states.shape[1]}); got {observable!r:.60}.")
        found = torch.as_tensor(observable(torch.as_tensor(states)), dtype=torch.float64)
        g = (found if found.dim() else found.expand(len(states), 1)).numpy()
        if len(g) != len(states):
            raise KoopsimError(f"average needs a row for each of {len(states)} states; g gave shape {g.shape}.")
        D = np.linalg.lstsq(lifted, g, rcond=NEGLIGIBLE)[0]
        start = self.projector[: self.observables[0]] @ D

        def answer(x: Tensor) -> Tensor:
            return torch.as_tensor(self._held(self._seen(x)) @ start)

        return answer


def closed_measure(
    deq: Implicit, inputs: Tensor, features: int = 300, input_features: int = 200, burn: int = 50, steps: int = 60,
    starts: int = 1, seed: int = 0,
) -> ClosedMeasure:  # fmt: skip
    """Fit one step of the lifted dynamics over `inputs` and project onto its eigenvalue 1.

    features  random Fourier features of (z, x), and `input_features` of x alone
    burn      steps that are not looked at;   steps: those that are
    starts    z_0, and others around it at random: with more than one, several invariant sets of one input are noticed
    """
    check_inputs(inputs)
    deq = in_float64(deq)
    x = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad():
        states = orbit_of(*starts_around(deq, x, starts, 1.0, seed), burn + steps)[:, burn:]
        seen = np.repeat(seen_inputs(deq, x).cpu().numpy(), starts, axis=0)
    if not np.all(np.isfinite(states)):
        raise KoopsimError(f"The iteration blew up within {burn + steps} steps; it has no invariant measure.")
    _, L, d = states.shape
    z, after = states[:, :-1].reshape(-1, d), states[:, 1:].reshape(-1, d)
    u = np.repeat(seen, L - 1, axis=0)
    scales = tuple((t.mean(axis=0), np.maximum(t.std(axis=0), 1e-12)) for t in (z, seen))
    joint = _features(np.hstack([_unit(z, scales[0]), _unit(u, scales[1])]), features, seed)
    alone = _features(_unit(seen, scales[1]), input_features, seed + 1)

    def of_inputs(u: Array) -> Array:
        return np.hstack([np.ones((len(u), 1)), alone.transform(_unit(u, scales[1]))])

    def of_both(z: Array, u: Array) -> Array:
        return joint.transform(np.hstack([_unit(z, scales[0]), _unit(u, scales[1])]))

    a, psi = of_inputs(u), of_both(z, u)
    A, B, coupling = _orthogonal(a, psi)

    def held(u: Array) -> Array:
        return of_inputs(u) @ A

    def lift(z: Array, u: Array) -> Array:
        return np.hstack([held(u), of_both(z, u) @ B - held(u) @ coupling])

    now, then = lift(z, u), lift(after, u)
    ka, m = A.shape[1], len(z)
    C_a, C = now[:, :ka].T @ then[:, ka:] / m, now[:, ka:].T @ then[:, ka:] / m
    w = np.linalg.eigvals(C)
    if w.size and np.abs(w - 1).min() < ONE:
        raise KoopsimError(
            f"An eigenvalue {w[np.abs(w - 1).argmin()]:.5f} beside the functions of x: one input has several invariant "
            "sets, and the long run depends on the start. Look at each branch by itself."
        )
    P = np.zeros((ka + C.shape[0],) * 2)
    P[:ka, :ka] = np.eye(ka)
    P[:ka, ka:] = C_a @ np.linalg.inv(np.eye(len(C)) - C)
    misfit = float(np.linalg.norm(then[:, ka:] - now[:, :ka] @ C_a - now[:, ka:] @ C) / np.linalg.norm(then[:, ka:]))
    return ClosedMeasure(
        misfit, w[np.argsort(-np.abs(w))], (ka, C.shape[0]), P, held, (z, now),
        lambda x: seen_inputs(deq, x.double() if x.is_floating_point() else x).cpu().numpy(),
    )  # fmt: skip


def compare_measures(
    deq: Implicit, inputs: Tensor, sim: SIM, closed: ClosedMeasure | None = None
) -> dict[str, dict[str, float]]:
    """MMD to the invariant measure and error of E[z] (over the states' deviation), on inputs nobody was fitted to."""
    truth = long_run(deq, inputs, sim)
    like = next(sim.parameters())
    with torch.no_grad():
        m = embedding(sim, inputs.to(like) if inputs.is_floating_point() else inputs)
        ways = {"two-tier SIM": (m.double(), sim.nu(m).double())}
    if closed is not None:
        exact = in_float64(sim)
        with torch.no_grad():
            psi, mean = (closed.average(g)(inputs) for g in (lambda z: embed(exact, z), lambda z: z))
        ways["closed form"] = (psi, mean)
    out = {"long run": {"mmd": truth.floor, "averages": 0.0}}
    for name, (psi, mean) in ways.items():
        error = rms(mean - truth.mean, mean.shape[-1]) / truth.deviation
        out[name] = {"mmd": rms(psi - truth.embedding), "averages": error}
    return out


def _features(rows: Array, count: int, seed: int) -> RandomFourier:
    return RandomFourier(count, median_distance(rows, seed), seed).fit(rows)


def _unit(t: Array, scale: tuple[Array, Array]) -> Array:
    return (t - scale[0]) / scale[1]


def _orthogonal(a: Array, psi: Array) -> tuple[Array, Array, Array]:
    """(A, B, coupling): a A and psi B - a A coupling are orthonormal in the mean over the samples."""
    root = np.sqrt(len(a))
    A = _whitening(a / root)
    held = a @ A
    against = held.T @ psi / len(a)
    B = _whitening((psi - held @ against) / root, COARSE)
    return A, B, against @ B


def _whitening(t: Array, least: float = NEGLIGIBLE) -> Array:
    s, V = np.linalg.eigh(t.T @ t)
    keep = s > least**2 * max(s[-1], 1e-300)
    return V[:, keep] / np.sqrt(s[keep])
