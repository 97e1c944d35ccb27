"""The linearisation at the equilibrium, which decides local stability exactly.

    J = df/dz at z* = f(z*, x):    rho(J) < 1  <=>  z <- f(z, x) settles from close by    (Ostrowski)

J is never formed for a large state: Arnoldi asks for y^T J only, one backward pass through one step of the
cell, and J and its transpose have the same eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor

from koopsim.bridge.hidden import Implicit, Progress, check_inputs, hidden_map, in_float64
from koopsim.implicit import anderson, picard

DENSE = 48  # up to this size the whole Jacobian is cheaper than Arnoldi
FIXED = 1e-6  # relative residual at which a point counts as an equilibrium
POLISH = 1e-10
ACCURACY = 1e-7  # of the eigenvalues, relative; rounding would take twice the products


@dataclass(frozen=True)
class Linearisation:
    """The leading eigenvalues of J at one input's equilibrium; none where no equilibrium was found."""

    eigenvalues: NDArray[Any]
    residual: float  # of the point, relative

    @property
    def found(self) -> bool:
        return self.residual < FIXED and self.eigenvalues.size > 0

    @property
    def radius(self) -> float:
        """rho(J), or nan where there is no equilibrium to linearise at."""
        return float(np.abs(self.eigenvalues).max()) if self.found else float("nan")

    @property
    def stable(self) -> bool | None:
        return self.radius < 1 if self.found else None


def linearise(deq: Implicit, inputs: Tensor, count: int = 6, progress: Progress | None = None) -> list[Linearisation]:
    """The `count` largest eigenvalues of df/dz at each input's equilibrium, in float64.

    progress  is told (inputs done, inputs in all)
    """
    check_inputs(inputs)
    deq = in_float64(deq)
    x = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad():
        f, z0 = hidden_map(deq, x)
        z, residuals = z0, torch.full((len(z0),), torch.inf, dtype=z0.dtype, device=z0.device)
        for solver in (anderson, picard):  # Broyden runs off where there is none, and a huge state has a small residual
            point, info = solver(f, z0, max_steps=200, tol=POLISH)
            better = info.residuals < residuals
            z = torch.where(better.view(-1, *[1] * (z.dim() - 1)), point, z)
            residuals = torch.where(better, info.residuals, residuals)
    found = []
    for i, r in enumerate(residuals.tolist()):
        w = _eigenvalues(deq, x[i : i + 1], z[i : i + 1], count) if r < FIXED else np.empty(0)
        found.append(Linearisation(w, r))
        if progress is not None:
            progress(i + 1, len(x))
    return found


def _eigenvalues(deq: Implicit, x: Tensor, z: Tensor, count: int) -> NDArray[Any]:
    at = z.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = hidden_map(deq, x)[0](at)
    n = at.numel()

    def transposed(y: NDArray[Any]) -> NDArray[Any]:
        grad = torch.as_tensor(np.ascontiguousarray(y), dtype=at.dtype, device=at.device).view_as(at)
        (out,) = torch.autograd.grad(value, at, grad, retain_graph=True, materialize_grads=True)
        return out.reshape(-1).cpu().numpy()

    if not value.requires_grad:  # the cell does not look at z
        return np.zeros(min(count, n), dtype=complex)
    if n <= max(DENSE, count + 2):
        J = np.stack([transposed(e) for e in np.eye(n)])
        w = np.linalg.eigvals(J)
    else:
        make: Any = LinearOperator  # its base class hides the signature from type checkers
        operator = make((n, n), matvec=transposed, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        try:
            w = eigs(operator, count, which="LM", v0=start, maxiter=50, tol=ACCURACY, return_eigenvectors=False)  # type: ignore[arg-type]
        except ArpackNoConvergence as error:
            w = error.eigenvalues
    w = np.asarray(w, dtype=complex)
    return w[np.argsort(-np.abs(w))][:count]
