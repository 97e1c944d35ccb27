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
from collections.abc import Mapping, Sized
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import koopsim
from koopsim.config import to_dict
from koopsim.kinds import model_kind, task_kind
from koopsim.presets import PRESETS, run_of
from koopsim.searching.space import space_of

LEDGER = Path(__file__).parent / "ledger.json"
ROOMS = (
    "nn", "implicit", "spectral", "engine", "tasks", "datasets", "searching", "sklearn", "bridge", "files", "pictures",
    "schedule", "training", "fitting", "fit_folder", "config", "kinds", "spaces", "picture_codec",
    "picture_network", "models", "learning", "origin",
)  # fmt: skip
FEW = 2000  # entries; more is a table of data


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


def told(value: Any, depth: int = 4) -> Any:
    """A value as JSON, `...` where it is not one to be written down (a function, a tensor, a table of data)."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, complex | torch.dtype | np.dtype | type) or inspect.isfunction(value):
        return getattr(value, "__qualname__", None) or str(value)
    if not depth or (isinstance(value, Sized) and len(value) > FEW):
        return ...
    if isinstance(value, Mapping):
        return {getattr(k, "__qualname__", None) or str(k): told(v, depth - 1) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((told(v, depth - 1) for v in value), key=str)
    if isinstance(value, tuple | list):
        return [told(v, depth - 1) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: told(getattr(value, f.name, ...), depth - 1) for f in dataclasses.fields(value)}
    return ...


def defaults(thing: Any) -> dict[str, Any]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: told(p.default) for p in parameters if p.default is not p.empty}


def of_class(where: str, value: type) -> dict[str, Any]:
    """What a class holds: fields' defaults (made, where they are made), numbers beside them, its methods' defaults."""
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(value):
        found[f"{where} frozen"] = getattr(vars(value).get("__dataclass_params__"), "frozen", ...)
        for f in dataclasses.fields(value):
            made = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            found |= {} if made is dataclasses.MISSING else {f"{where}.{f.name}": told(made)}
    for inner, held in vars(value).items():
        held = held.__func__ if isinstance(held, staticmethod | classmethod) else held
        if inspect.isfunction(held):
            found |= {f"{where}.{inner}({k})": v for k, v in defaults(held).items()}
        elif not inner.startswith("_") and inner != "kinds":  # which grow with plugins
            found.setdefault(f"{where}.{inner}", told(held))
    return found


def of_preset(name: str) -> dict[str, Any]:
    """Its run at both sizes, the spaces it is searched in, its memory and what is published of it."""
    run, found = PRESETS[name].run, {f"preset {name}": told(PRESETS[name], 8)}
    kind, model = task_kind(run.task), model_kind(run.model)
    for scale in ("paper", "smoke"):
        found[f"preset {name}, {scale}"] = told(run_of(name, scale), 8)
        found[f"space {name}, {scale}"] = told(space_of(run, scale), 8)
        found[f"rows {name}, {scale}"] = [kind.rows(scale), kind.repeats(scale), kind.seconds(name, scale)]
    points = model.bytes_a_point(run.model, 2, 4) if name.startswith("image/") else None
    found[f"model {name}"] = [model.slug(run.model), model.title(run.model), model.limit_dim(run.model), points]
    found[f"published {name}"] = told(kind.published(name), 8)
    task = to_dict(run.task)
    found[f"place {name}"] = [kind.slug(task), kind.place({"run": {"task": task}}), kind.title]
    found[f"look {name}"] = [told(model.look(run.model, best)) for best in (False, True)]
    return found


def entries() -> dict[str, Any]:
    """`module.NAME` of what is named, `module.function(argument)` of defaults, `module.Class.field`, and presets."""
    found: dict[str, Any] = {}
    for module in modules():
        for name, value in vars(module).items():
            where = f"{module.__name__.removeprefix('koopsim.')}.{name}"
            if inspect.isfunction(value) or inspect.isclass(value):
                if value.__module__ == module.__name__:
                    known = {f"{where}({k})": v for k, v in defaults(value).items()}
                    found |= of_class(where, value) if inspect.isclass(value) else known
            elif name.isupper() or not (name.startswith("_") or isinstance(value, dict | list | set)):
                found[where] = told(value)
    for name in sorted(PRESETS):
        found |= of_preset(name)
    return {k: v for k, v in json.loads(json.dumps(found, default=str)).items() if v != "Ellipsis"}


def differ(was: Any, now: Any) -> bool:
    """A field that is new is no change; one that is gone is."""
    if isinstance(was, dict) and isinstance(now, dict):
        return any(key not in now or differ(was[key], now[key]) for key in was)
    return was != now


def test_no_default_and_no_named_number_has_changed():
    written, now = json.loads(LEDGER.read_text()), entries()
    changed = {k: (written[k], now[k]) for k in written.keys() & now.keys() if differ(written[k], now[k])}
    assert not changed, f"(was, is): {changed}; if that is meant: python tests/test_ledger.py"
    assert len(written.keys() & now.keys()) > 0.8 * len(now), "many new names: python tests/test_ledger.py"
    assert koopsim.__name__  # imported as a package, not from a path of its own


if __name__ == "__main__":
    LEDGER.write_text(json.dumps(dict(sorted(entries().items())), indent=0) + "\n")
