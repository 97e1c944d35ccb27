"""Every default and every named number of the library, written down in ledger.json: none changes unnoticed.

Recorded figures hold for these values: thresholds of verdicts were set before the studies, defaults are what users
rely on. To change one is a decision: `python tests/test_ledger.py` writes the ledger anew, and the diff shows it.
New names are not asked for here; those that are gone are forgotten when it is written.
"""

import dataclasses
import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import koopsim

LEDGER = Path(__file__).parent / "ledger.json"
ROOMS = ("nn", "implicit", "spectral", "engine", "tasks", "datasets", "searching", "bridge", "files", "schedule")
PLAIN = (bool, int, float, str, type(None))


def modules() -> list[ModuleType]:
    found = []
    for room in ROOMS:
        top = importlib.import_module(f"koopsim.{room}")
        names = [top.__name__]
        if hasattr(top, "__path__"):
            names += [m.name for m in pkgutil.walk_packages(top.__path__, f"{top.__name__}.")]
        for name in names:
            if "kernels" not in name and "ray" not in name and "cuda" not in name:
                found.append(importlib.import_module(name))
    return found


def plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(plain(v) for v in value))


def defaults(thing: Any) -> dict[str, Any]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty and plain(p.default)}


def entries() -> dict[str, Any]:
    """`module.NAME` of named numbers, `module.function(argument)` of defaults, `module.Class.field` of dataclasses."""
    found: dict[str, Any] = {}
    for module in modules():
        for name, value in vars(module).items():
            where = f"{module.__name__.removeprefix('koopsim.')}.{name}"
            if name.isupper() and plain(value) and not isinstance(value, str):
                found[where] = value
            elif getattr(value, "__module__", None) != module.__name__:
                continue
            elif inspect.isfunction(value):
                found |= {f"{where}({k})": v for k, v in defaults(value).items()}
            elif inspect.isclass(value):
                if dataclasses.is_dataclass(value):
                    found |= {f"{where}.{f.name}": f.default for f in dataclasses.fields(value) if plain(f.default)}
                for inner, method in vars(value).items():
                    if inspect.isfunction(method):
                        found |= {f"{where}.{inner}({k})": v for k, v in defaults(method).items()}
    return json.loads(json.dumps(found))


def test_no_default_and_no_named_number_has_changed():
    written, now = json.loads(LEDGER.read_text()), entries()
    changed = {k: (written[k], now[k]) for k in written.keys() & now.keys() if written[k] != now[k]}
    assert not changed, f"(was, is): {changed}; if that is meant: python tests/test_ledger.py"
    assert len(written.keys() & now.keys()) > 0.8 * len(now), "many new names: python tests/test_ledger.py"
    assert koopsim.__name__  # imported as a package, not from a path of its own


if __name__ == "__main__":
    LEDGER.write_text(json.dumps(dict(sorted(entries().items())), indent=0) + "\n")
