"""What small fixed examples come to, written down in kept_numbers.json: a change of the code that moves one is noticed.

    python tests/kept_numbers.py        writes them anew (two minutes); the diff shows what moved
    python tests/kept_numbers.py more   keeps them but for what this machine's own processor does not agree on

They are not right because they stand there: other tests say what is right. These say that nothing moved, which is
what thresholds, seeds, initial scales and iteration counts inside functions have no other witness for.

Processors add in different orders, and some examples stand where the last digit decides. So every number is computed by
several processors' kernels (ARITHMETICS, all of which run here); what they do not agree on is kept as MOVES and is no
witness. Their agreement has to be twice as good as what a test then asks for.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

KEPT = Path(__file__).parent / "kept_numbers.json"
FIRST = 3  # values of an array that are kept as they are
MOVES = "(moves)"
WRITE = "KOOPSIM_WRITE_NUMBERS"  # a file that gets a line a name instead of a comparison
NEWER = {"OPENBLAS_CORETYPE": "SkylakeX"}
OLDER = {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
         "ONEDNN_MAX_CPU_ISA": "AVX2"}  # fmt: skip
OLDEST = {"OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
          "ONEDNN_MAX_CPU_ISA": "SSE41"}  # fmt: skip
ARITHMETICS = (NEWER, OLDER, OLDEST, {"OPENBLAS_CORETYPE": "Sandybridge"}, {"OPENBLAS_CORETYPE": "Prescott"})


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
    if os.environ.get(WRITE):
        with Path(os.environ[WRITE]).open("a") as file:
            file.write(json.dumps([name, rel, near, now]) + "\n")
        return
    kept = json.loads(KEPT.read_text())
    assert name in kept, f"{name} was never kept: python tests/kept_numbers.py writes it"
    moved = _moved(unpacked(kept[name]), now, rel, near, name)
    assert not moved, f"{moved}; if that is meant: python tests/kept_numbers.py"


def _moved(was: Any, now: Any, rel: float, near: float, where: str) -> str | None:
    if was == MOVES:
        return None
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        pairs = [(f"{where}/{key}", was[key], now[key]) for key in was]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{where}/{n}", a, b) for n, (a, b) in enumerate(zip(was, now, strict=True))]
    elif type(was) is float and isinstance(now, float | int) and not isinstance(now, bool):
        return None if close(was, now, rel, near) else f"{where}: {was} became {now}"
    else:
        return None if was == now else f"{where}: {str(was)[:80]} became {str(now)[:80]}"
    return next((found for at, a, b in pairs if (found := _moved(a, b, rel, near, at))), None)


def close(a: float, b: float, rel: float, near: float) -> bool:
    return math.isclose(a, b, rel_tol=rel, abs_tol=near) or (math.isnan(a) and math.isnan(b))


def agreed(values: Sequence[Any], rel: float, near: float) -> Any:
    """What all arithmetics found, to half of the tolerance; MOVES in the place of what they did not."""
    first = values[0]
    if all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {key: agreed([v[key] for v in values], rel, near) for key in first}
    if all(isinstance(v, list) and isinstance(first, list) and len(v) == len(first) for v in values):
        return [agreed(parts, rel, near) for parts in zip(*values, strict=True)]
    if all(type(v) is float for v in values):
        return first if all(close(first, v, rel / 2, near / 2) for v in values) else MOVES
    return first if all(v == first and type(v) is type(first) for v in values) else MOVES


def packed(value: Any) -> Any:
    """Of a list of words each different one once, and for each place the number of its own."""
    if isinstance(value, dict):
        return {key: packed(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    known = list(dict.fromkeys(value)) if all(isinstance(part, str) for part in value) else value
    if len(known) < len(value):
        return {"outcomes": known, "which": " ".join(str(known.index(one)) for one in value)}
    return [packed(part) for part in value]


def unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [unpacked(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"outcomes", "which"}:
        return [value["outcomes"][int(n)] for n in value["which"].split()]
    return {key: unpacked(part) for key, part in value.items()}


def computed(arithmetic: Mapping[str, str], tests: Sequence[str]) -> dict[str, Any]:
    """{name: (rel, near, value)} by one processor's kernels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "numbers"
        environment = os.environ | {"OMP_NUM_THREADS": "1", WRITE: str(file)} | dict(arithmetic)
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *tests], env=environment, check=True)
        return {name: rest for name, *rest in map(json.loads, file.read_text().splitlines())}


def main(more: bool = False) -> None:
    here = Path(__file__).parent
    tests = [str(f) for f in sorted(here.rglob("test_*.py")) if "from kept_numbers import" in f.read_text()]
    found = [computed(arithmetic, tests) for arithmetic in (({},) if more else ARITHMETICS)]
    if more:
        before = {name: unpacked(value) for name, value in json.loads(KEPT.read_text()).items()}
        found.insert(0, {name: (rel, near, before.get(name, now)) for name, (rel, near, now) in found[0].items()})
    kept = {
        name: packed(agreed([one[name][2] for one in found], rel, near)) for name, (rel, near, _) in found[0].items()
    }
    KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n")


if __name__ == "__main__":
    main(more="more" in sys.argv[1:])
