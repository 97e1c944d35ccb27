"""What is given to a fit, checked: finite numbers of one width, cut into stretches (`trajectories.py`).

    a trajectory, several, or pairs  ->  float64 or complex128 arrays  ->  states, what phi sees of them, controls

scikit-learn's checks say what is wrong in a paragraph and take half a millisecond a trajectory: what is plainly good
passes without them, and the common mistakes get a sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

from koopsim.files.masks import unmasked

from .delays import Delays
from .trajectories import Stretch, layout, stretches

Array = NDArray[Any]  # float64, or complex128 for complex states
LARGEST = 1e150


def checked_parts(estimator: Any, X: Any, y: Any, first: bool) -> tuple[str, list[Array]]:
    """How the data are laid out, and each array of theirs, checked; `first`: they decide how wide states are."""
    kind, raw = layout(X, y)
    parts: list[Array] = []
    for i, part in enumerate(raw):
        if kind == "many" and np.ndim(part) == 2 and np.shape(part)[0] < 2:
            raise ValueError(f"trajectory {i} has {np.shape(part)[0]} sample(s); a pair needs at least 2")
        parts.append(checked_states(estimator, part, first and i == 0, 1 if kind == "pairs" else 2))
    return kind, parts


def checked_states(estimator: Any, part: Any, first: bool = False, least: int = 1) -> Array:
    """Finite float64 or complex128, at least so many rows, as wide as what was fitted."""
    if _plainly_good(estimator, part, first, least):
        return part
    part = unmasked(part)
    array: Any = np.asarray(part)
    _require_samples(array)
    require_squares(array)
    wanted: Any = np.float64
    if not np.iscomplexobj(array):
        return validate_data(estimator, part, reset=first, dtype=wanted, ensure_min_samples=least)  # type: ignore[return-value]
    validate_data(estimator, array.real, reset=first, dtype=wanted, ensure_min_samples=least)
    check_array(array.imag, dtype=wanted)
    return array.astype(np.complex128, copy=False)


def _plainly_good(estimator: Any, part: Any, first: bool, least: int) -> bool:
    """What scikit-learn's checks would let pass unchanged."""
    if type(part) is not np.ndarray or part.dtype != np.float64 or part.ndim != 2 or len(part) < least:
        return False
    if hasattr(estimator, "feature_names_in_") or not part.shape[1]:
        return False
    flat = part.ravel(order="K")
    with np.errstate(all="ignore"):  # half the price of looking at each; an overflow is looked at again
        if not np.isfinite(np.dot(flat, flat)):
            return False
    if first:
        estimator.n_features_in_ = part.shape[1]
    return part.shape[1] == estimator.n_features_in_


def require_squares(array: Array, what: str = "the states") -> None:
    """A fit sums squares, and the largest number there is is 1.8e308."""
    if array.dtype.kind in "fc" and array.size and float(np.abs(array).max()) > LARGEST:
        largest = float(np.abs(array).max())
        raise ValueError(f"{what} reach {largest:.1e}; squares beyond {LARGEST:.0e} overflow: use larger units")


def _require_samples(array: Array) -> None:
    if array.ndim == 1:
        raise ValueError(f"states are (samples, dimensions), got shape {array.shape}. Reshape your data: z[:, None].")
    wrong = ~np.isfinite(array) if array.dtype.kind in "fc" and array.ndim == 2 else np.zeros((1, 1), dtype=bool)
    if wrong.any():
        raise ValueError(
            f"{int(wrong.sum())} of {array.size} values are NaN, infinity or masked, the first in row "
            f"{int(wrong.any(axis=1).argmax())}: spectral.without_gaps(z) cuts a trajectory there"
        )


def stretches_of(
    kind: str, parts: list[Array], held: list[Array | None], control: list[Array | None], dictionary: Any
) -> tuple[list[Stretch], list[Stretch]]:
    """What the dictionary sees of trajectories, or of the two sides of pairs: then the second list has one too."""
    past = dictionary if isinstance(dictionary, Delays) else None
    if kind != "pairs":
        return stretches(parts, held, control, past), []
    if past is not None:
        raise ValueError("delays need trajectories: pairs have no past")
    u = held[0]
    X, Y = (Stretch(z, z if u is None else np.hstack([z, u]), control[0]) for z in parts)
    return [X], [Y]
