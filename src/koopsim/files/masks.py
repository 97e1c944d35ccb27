"""Masked arrays: what the mask hides is missing, not the number that lies under it.

np.asarray forgets a mask without a word. Here a masked entry becomes NaN, which every reader of arrays either takes
for a missing sample or refuses in one sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from koopsim.errors import KoopsimError


def unmasked(values: Any) -> Any:
    """`values` as they are; of a masked array NaN where it is masked (whole numbers become float64)."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.getmaskarray(values).any():
        return values.data
    kept: Any = values if values.dtype.kind in "fc" else values.astype(np.float64)
    return kept.filled(np.nan)


def require_unmasked(values: Any, what: str) -> None:
    """For pixels and labels, which cannot be missing."""
    hidden = int(np.ma.getmaskarray(values).sum()) if isinstance(values, np.ma.MaskedArray) else 0
    if hidden:
        raise KoopsimError(f"{what} are a masked array with {hidden:,} of {values.size:,} hidden; fill or drop them.")
