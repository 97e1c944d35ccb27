"""The constant observable: an eigenvalue 1 that says nothing about the state.

If 1 is in the span of the dictionary, c . phi = 1 for all states, so c A = c: the lifted dynamics always
have an eigenvalue 1. What it does say is where everything goes when nothing else is on the circle,

    lim A^l phi = u (c . phi) = u,        A u = u,  c . u = 1,

one lifted point for every start. z' = W z + c0 with phi = (1, z) has u = (1, (I - W)^-1 c0).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from .verdict import Case, Verdict

CONSTANT_TOLERANCE = 10.0  # c A = c must hold to this many times the noise
UNSURE = 10.0  # observables that are zero to less than this many errors may be zero or not


def discount(
    verdict: Verdict, constant: int | ArrayLike, delta: float, up: NDArray | None = None, units: NDArray | None = None
) -> Verdict:
    """The verdict on the state, the constant's eigenvalue left out of J1.

    `up` takes phi to the observables in which "vanishing" is judged, the constant one left out. `units`: what the
    observables of the verdict are to be multiplied by to be those that `constant` is about.
    """
    n = verdict.eigenvalues.size
    c, index = _covector(constant, n)
    if units is not None:
        c = c * units
    T, Q = verdict._terms[0].T, verdict._terms[0].Q
    cQ = c @ Q
    off = float(np.linalg.norm(cQ @ T - cQ) / np.linalg.norm(c))
    if off > CONSTANT_TOLERANCE * delta:
        raise ValueError(
            f"constant={constant!r} is none: ||c A - c|| / ||c|| = {off:.1e}, noise allows {delta:.1e}; "
            "give the index of the constant observable, the vector c with c.phi = 1, or a larger noise"
        )
    if verdict.case in ("undecided", "divergent") or not verdict.fixed:
        return verdict
    dropped = verdict.fixed[-1]
    verdict = replace(verdict, fixed=verdict.fixed[:-1], constant=dropped)
    if verdict.case != "fixed-point" or verdict.fixed:
        note = "One eigenvalue 1 belongs to the constant observable and is not counted in J1."
        return replace(verdict, reasons=(*verdict.reasons, note))
    projector = next(p for p in verdict.projectors if p.kind == "fixed")
    u = projector.matrix @ c.conj()
    u = u / (c @ u)
    case: Case = "fixed-point"
    note = "The only eigenvalue 1 belongs to the constant observable: every start ends at one and the same point"
    if up is None and index is not None:
        up = np.delete(np.eye(n), index, axis=0)
    if up is not None:
        others = float(np.linalg.norm(up @ u))
        error = CONSTANT_TOLERANCE * projector.error * projector.norm * max(1.0, 1.0 / projector.separation)
        if others <= error:
            case, note = "origin", f"{note}, where all other observables vanish (to {others:.1e})"
        elif others <= UNSURE * error:
            case, note = (
                "undecided",
                f"{note}; its other observables are {others:.1e}, zero or not: error {error:.1e}",
            )
    # the constant is exactly one, so its eigenvalue is: with the others certainly inside, nothing was assumed
    certain = case == "fixed-point" and all(p.kind == "fixed" for p in verdict.projectors)
    return replace(verdict, case=case, certain=certain, point=u, reasons=(*verdict.reasons, note + "."))


def _covector(constant: int | ArrayLike, n: int) -> tuple[NDArray, int | None]:
    if isinstance(constant, (int, np.integer)) and not isinstance(constant, bool):
        if not -n <= constant < n:
            raise ValueError(f"constant={constant} is no index of {n} observables")
        index = int(constant) % n
        return np.eye(n)[index], index
    c = np.asarray(constant, dtype=complex if np.iscomplexobj(constant) else float)
    if c.shape != (n,) or not np.all(np.isfinite(c)) or not np.any(c):
        raise ValueError(f"constant must be an index or a nonzero vector of {n} numbers; got shape {c.shape}")
    return c, None
