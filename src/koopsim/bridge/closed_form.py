"""The paper's route without training: the equilibrium from a Koopman matrix of the DEQ's own iteration.

    phi(f(z, x), x) = A phi(z, x)             EDMD with inputs held fixed        paper, eq. (3) and (4)
    lim A^l phi(z_0, x) = P_1 phi(z_0, x)     P_1 projects onto eigenvalue 1     eq. (7)
    z* ~ D P_1 phi(z_0, x)                    D reads z off phi: least squares   eq. (6) and (9)

Functions of x alone never change, so each is an eigenfunction of eigenvalue 1 exactly, whatever the misfit of
the rest: P_1 says which function of x the others end at. Exact where the dictionary is closed: for the affine
cell f = W z + U x + c, phi = (1, z, x) gives (I - W)^-1 (U x + c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from koopsim.bridge.distill import equilibria
from koopsim.bridge.hidden import (
    Implicit,
    Solvable,
    check_inputs,
    hidden_map,
    in_float64,
    orbit_of,
    seen_inputs,
    starts_around,
)
from koopsim.bridge.principal import principal
from koopsim.errors import KoopsimError
from koopsim.nn import SIM
from koopsim.spectral import EDMD, Verdict

Array = NDArray[Any]
EXACT = 1e-8  # functions of x are eigenfunctions of eigenvalue 1 to rounding: the noise P_1 is found with


@dataclass(frozen=True)
class ClosedForm:
    """x -> z* without iterating: `closed(x)`."""

    verdict: Verdict
    misfit: float  # of the Koopman matrix, relative: 0 where the dictionary is closed
    observables: int
    _deq: Any
    _model: EDMD
    _state: tuple[Array, Array]  # mean and directions of z
    _input: tuple[Array, Array]
    _read: Array  # D P_1, (state size, N)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        x = x.double() if x.is_floating_point() else x
        _, z0 = hidden_map(self._deq, x)
        z = (z0.reshape(len(x), -1).double().cpu().numpy() - self._state[0]) @ self._state[1]
        u = (seen_inputs(self._deq, x).cpu().numpy() - self._input[0]) @ self._input[1]
        out = self._model.transform(z, inputs=u) @ self._read.T
        return torch.as_tensor(out, dtype=z0.dtype, device=z0.device).reshape(z0.shape)


def closed_form(
    deq: Implicit, inputs: Tensor, dictionary: Any = None, steps: int = 12, starts: int = 3, spread: float = 0.5,
    dims: int | None = None, rtol: float | None = None, seed: int = 0,
) -> ClosedForm:  # fmt: skip
    """Fit the Koopman matrix of the hidden iteration over `inputs` and project onto its eigenvalue 1.

    dictionary  of (z, x) side by side; monomials of degree 2 by default
    dims        principal directions kept of z and of x; None keeps all
    """
    check_inputs(inputs)
    deq = in_float64(deq)
    x = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad():
        f, begun = starts_around(deq, x, starts, spread, seed)
        states = orbit_of(f, begun, steps)
        seen = seen_inputs(deq, x).cpu().numpy()
    if not np.all(np.isfinite(states)):
        raise KoopsimError(f"The hidden iteration blew up within {steps} steps; there is no limit to project onto.")
    state, held = principal(states.reshape(-1, states.shape[2]), dims), principal(seen, dims)
    z = (states - state[0]) @ state[1]
    u = np.repeat((seen - held[0]) @ held[1], starts, axis=0)
    model = EDMD(dictionary, rtol=rtol).fit(list(z), inputs=list(u))
    verdict = model.verdict(noise=EXACT)
    if verdict.limit is None:
        raise KoopsimError(
            f"The Koopman matrix has no limit: the verdict is {verdict.case}, with spectral radius "
            f"{float(np.abs(verdict.eigenvalues).max()):.4g}. Try more inputs, fewer dims or a smaller dictionary; "
            "for a cell that keeps moving, closed_measure(cell, inputs)."
        )
    lifted = np.concatenate([model.transform(t, inputs=v) for t, v in zip(z, u, strict=True)])
    D = np.linalg.lstsq(lifted, states.reshape(len(lifted), -1), rcond=1e-12)[0].T
    misfit = model.solution_.relative_residual
    return ClosedForm(verdict, misfit, model.n_observables_, deq, model, state, held, D @ np.real(verdict.limit))


def compare(
    deq: Solvable, inputs: Tensor, sim: SIM | None = None, closed: ClosedForm | None = None
) -> dict[str, float]:
    """|| z - z* || / || z* || of each way to z*, on inputs it should not have been fitted to; `mean` is the mean z*.

    z* is the solver's where it attracts, else where the iteration settles; inputs without one are left out.
    """
    z, converged = equilibria(deq, inputs)
    x, z = inputs[converged], z[converged].double()
    if not len(x):
        raise KoopsimError(f"None of {len(inputs)} inputs has an attracting equilibrium; there is nothing to compare.")
    ways: dict[str, Tensor] = {"mean": z.mean(dim=0).expand_as(z)}
    with torch.no_grad():
        if closed is not None:
            ways["closed form"] = closed(x)
        if sim is not None:
            ways["distilled SIM"] = sim.state(x).reshape(z.shape)
    return {name: float((way.double() - z).norm() / z.norm()) for name, way in ways.items()}
