"""How far a forecast may be believed: its error on data whose future is known.

    e(h) = root mean square over starts l of  | z_{l+h} - forecast of it from z_l |

measured by starting at many samples of a trajectory and looking h steps ahead; best on one that was not fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .edmd import EDMD

Array = NDArray[Any]
MOST_STARTS = 400
LARGE = 1e150  # forecasts that have run away this far are counted as so far, not as infinity


def forecast_errors(model: EDMD, X: Any, steps: int, inputs: Any = None, control: Any = None) -> Array:
    """(steps + 1, d): e(h) of each state along the trajectory X; NaN for horizons longer than it."""
    Z, seen = model._seen(X, inputs)
    s, past = model.solution_, np.shape(X)[0] - len(Z)
    u = None if control is None else np.asarray(control, dtype=np.float64)
    u = u if u is None else (u[:, None] if u.ndim == 1 else u)[past:]
    found = np.full((steps + 1, Z.shape[1]), np.nan)
    found[0] = 0.0
    last = len(Z) - 1
    starts = np.unique(np.linspace(0, last, min(MOST_STARTS, len(Z))).astype(int))
    psi = model._lifted.lift(seen[starts]) @ s.down
    for h in range(1, min(steps, last) + 1):
        reach = starts + h <= last
        with np.errstate(over="ignore", invalid="ignore"):
            starts, psi = starts[reach], psi[reach] @ s.core
            if u is not None:
                psi = psi + u[starts + h - 1] @ s.control
            psi = np.nan_to_num(psi, nan=LARGE, posinf=LARGE, neginf=-LARGE)
            off = np.minimum(np.abs(psi @ s.decode - Z[starts + h]), LARGE)
        found[h] = np.sqrt(np.mean(off**2, axis=0))
    return found
