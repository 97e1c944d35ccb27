"""Sequences in an .npz: x, and what is known of them.

x         (n, T, C) or (n, T); without y and lengths also one series, (T, C) or (T,); whole numbers are symbols
y         (n,) a label a sequence, or (n, T) a label a step: whole numbers or words
lengths   (n,) where they differ;   split (n,) of train, valid, test
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from koopsim.datasets.row_splits import SPELLINGS
from koopsim.datasets.sequences import Array, Sequences
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npz


def read_sequence_arrays(path: Path) -> Sequences:
    """The sequences in an .npz file."""
    arrays = read_npz(path)
    x = _values(arrays, path)
    n, T, C = x.shape
    lengths = arrays.get("lengths", np.full(n, T))
    if lengths.shape != (n,) or lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > T:
        raise KoopsimError(f"{path}: lengths are {lengths.dtype} {lengths.shape}; expected ({n},) from 1 to {T}.")
    ends = lengths.tolist()
    plain = x.dtype.kind in "iub"
    values = [own[:end].astype(np.float32 if plain else np.float64) for own, end in zip(x, ends, strict=True)]
    channels = tuple(f"x{j}" for j in range(C))
    found = Sequences(str(path), values, channels, tuple(map(str, range(n))), plain=plain)
    if "split" in arrays:
        found = replace(found, splits=_marks(arrays["split"], n, path))
    return _labelled(found, arrays["y"], ends, T) if "y" in arrays else found


def _values(arrays: dict[str, Array], path: Path) -> Array:
    """x as (n, T, C)."""
    if "x" not in arrays:
        raise KoopsimError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected x, and y where there are labels.")
    x = arrays["x"]
    if x.dtype.kind not in "fiub" or x.ndim not in (1, 2, 3) or x.size == 0:
        raise KoopsimError(f"{path}: x is {x.dtype} of shape {x.shape}; expected numbers (n, T, C), (n, T) or (T,).")
    one = x.ndim == 1 or (x.ndim == 2 and "y" not in arrays and "lengths" not in arrays)
    if one:
        return (x[:, None] if x.ndim == 1 else x)[None]
    return x[..., None] if x.ndim == 2 else x


def _labelled(found: Sequences, y: Array, ends: list[int], T: int) -> Sequences:
    n = len(found)
    if y.dtype.kind not in "iuUb" or y.shape not in ((n,), (n, T)):
        raise KoopsimError(
            f"{found.path}: y is {y.dtype} of shape {y.shape}; expected a label a sequence ({n},) or a step "
            f"({n}, {T}), whole numbers or words."
        )
    words, codes = np.unique(y, return_inverse=True)
    codes, classes = codes.reshape(y.shape).astype(np.int64), tuple(str(word) for word in words.tolist())
    if y.ndim == 1:
        return replace(found, labels=codes, classes=classes)
    return replace(found, tags=[own[:end] for own, end in zip(codes, ends, strict=True)], classes=classes)


def _marks(said: Array, n: int, path: Path) -> Array:
    marks = [SPELLINGS.get(str(word).lower()) for word in said.ravel().tolist()]
    if said.shape != (n,) or None in marks:
        raise KoopsimError(f"{path}: split is {said.shape}; expected train, valid or test for each of {n} sequences.")
    return np.array(marks, np.int8)
