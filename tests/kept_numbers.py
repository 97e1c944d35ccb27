"""What small fixed examples come to, written down in kept_numbers.json: a change of the code that moves one is noticed.

They are not right because they stand there: other tests say what is right. These say that nothing moved, which is
what thresholds, seeds, initial scales and iteration counts inside functions have no other witness for.
`KOOPSIM_WRITE_NUMBERS=1 python -m pytest tests -k numbers` writes them anew; the diff shows what moved.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

KEPT = Path(__file__).parent / "kept_numbers.json"
FIRST = 3  # values of an array that are kept as they are


def told(value: Any) -> Any:
    """A value as JSON; of an array its shape, its first values and two sums, of which one knows the order."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, np.ndarray):
        flat = value.ravel()
        if flat.dtype.kind not in "fcbiu":
            return [str(v) for v in flat[:20]]
        order = np.cos(np.arange(flat.size) + 1.0)
        sums = [told(flat.sum() if flat.size else 0.0), told((flat * order).sum() if flat.size else 0.0)]
        return {"shape": list(value.shape), "first": [told(v) for v in flat[:FIRST]], "sums": sums}
    if isinstance(value, Mapping):
        return {str(key): told(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [told(part) for part in value]
    if dataclasses.is_dataclass(value):
        return {f.name: told(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return type(value).__name__


def same(name: str, value: Any, rel: float = 1e-5, near: float = 1e-9) -> None:
    """`value` is what was kept under `name`, numbers up to `rel` of themselves or `near`."""
    now = json.loads(json.dumps(told(value)))
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if os.environ.get("KOOPSIM_WRITE_NUMBERS"):
        KEPT.write_text(json.dumps(dict(sorted((kept | {name: now}).items())), indent=0) + "\n")
        return
    assert name in kept, f"{name} was never kept: KOOPSIM_WRITE_NUMBERS=1 writes it"
    moved = _moved(kept[name], now, rel, near, name)
    assert not moved, f"{moved}; if that is meant: KOOPSIM_WRITE_NUMBERS=1"


def _moved(was: Any, now: Any, rel: float, near: float, where: str) -> str | None:
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        pairs = [(f"{where}/{key}", was[key], now[key]) for key in was]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{where}/{n}", a, b) for n, (a, b) in enumerate(zip(was, now, strict=True))]
    elif type(was) is float and isinstance(now, float | int) and not isinstance(now, bool):
        close = math.isclose(was, now, rel_tol=rel, abs_tol=near) or (math.isnan(was) and math.isnan(now))
        return None if close else f"{where}: {was} became {now}"
    else:
        return None if was == now else f"{where}: {str(was)[:80]} became {str(now)[:80]}"
    return next((found for at, a, b in pairs if (found := _moved(a, b, rel, near, at))), None)
