"""Whether what was read from a file is a run that every table and chart can show, and if not, why.

Checked once, at the door: behind it a run has the entries below, and its figures are numbers.
"""

from typing import Any

from koopsim.files.shapes import briefly
from koopsim.kinds import TaskKind, task_kinds
from koopsim.registry import TASKS, plugin_hint
from koopsim.report.kinds import Result, task_kind_of

LARGEST = 1e300  # anything real is smaller; a whole number in JSON may be larger than a float can be
NEEDED = {
    "name": str, "parameters": (int, list), "metrics": list, "run": dict, "environment": dict,
    "milliseconds_per_step": (int, float), "train_seconds": (int, float),
}  # fmt: skip


def problem(result: Any) -> str | None:
    """Why a value read from a file is not a run that can be shown; None for one that can."""
    if why := _bad_entries(result) or _bad_parts(result["run"]):
        return why
    kind = task_kind_of(result)
    return _bad_figure(result, kind) or _bad_curve(result, kind.curve.key)


def _bad_entries(result: Any) -> str | None:
    """An entry that is missing, or of another type than every run has it."""
    if not isinstance(result, dict):
        return f"not the result of a run (a {type(result).__name__}, expected an object)"
    missing = [key for key in NEEDED if key not in result]
    if missing and "network_bytes" in result:
        return "the fit of one picture (koopsim fit), not a run"
    if missing:
        return f"not the result of a run (no {', '.join(missing)})"
    for key, kind in NEEDED.items():
        if not isinstance(result[key], kind) or isinstance(result[key], bool):
            return f"not the result of a run ({key} is {briefly(result[key])})"
    return None


def _bad_parts(run: Result) -> str | None:
    """A configuration without a task, a model or a recipe of which the tables take something."""
    task, model, recipe = (run.get(part) for part in ("task", "model", "recipe"))
    if not isinstance(task, dict) or not isinstance(recipe, dict) or not isinstance(model, dict):
        return "not the result of a run (its run lacks a task, a model or a recipe)"
    if why := _bad_model(model):
        return why
    if not isinstance(task.get("kind"), str) or task["kind"] not in TASKS:
        known = ", ".join(kind.config.__name__ for kind in task_kinds())
        return f"its task is of the kind {briefly(task.get('kind'))}; expected one of {known}.{plugin_hint()}"
    if not all(_count(recipe.get(key)) for key in ("epochs", "batch_size")):
        epochs, batch = (briefly(recipe.get(key)) for key in ("epochs", "batch_size"))
        return f"its recipe has {epochs} epochs of batches of {batch}"
    setting, kind = TASKS[task["kind"]].setting or ("kind", str)
    if not isinstance(task.get(setting), kind) or (kind is int and not _count(task[setting])):
        return f"the {setting} of its task is {briefly(task.get(setting))}; expected {kind.__name__}"
    return None


def _bad_model(model: dict[str, Any]) -> str | None:
    """A model that cannot be called by a name."""
    if not isinstance(model.get("kind"), str):
        return f"its model is of the kind {briefly(model.get('kind'))}; expected a name"
    for part in ("fourier", "forward"):
        if not isinstance(model.get(part), dict | None):
            return f"the {part} of its model is {briefly(model[part])}; expected settings by name"
    method = (model.get("forward") or {}).get("method")
    return None if isinstance(method, str | None) else f"its model is solved by {briefly(method)}; expected a name"


def _bad_figure(result: Result, kind: TaskKind) -> str | None:
    """A figure that is missing or not a number, where a table needs one."""
    for key in ("train_seconds", "milliseconds_per_step"):
        if not _finite(result[key]) or result[key] < 0:
            return f"{key} is {briefly(result[key])}; expected a number"
    if isinstance(result["parameters"], list) and not kind.many:
        return f"parameters is {briefly(result['parameters'])}; expected a number"
    if kind.many and not isinstance(result.get("pictures", []), list):
        return f"pictures is {briefly(result['pictures'])}; expected a list of names"
    if "test" not in result:
        return None
    if not isinstance(result["test"], dict):
        return f"its test is {briefly(result['test'])}; expected figures by name"
    for key in kind.shown:
        if not _finite(result["test"].get(key)):
            return f"its test {key} is {briefly(result['test'].get(key))}; expected a number"
    return _not_numbers(result["test"], "its test")


def _bad_curve(result: Result, figure: str) -> str | None:
    """A line of the metrics that no curve can be drawn through."""
    for place, line in enumerate(result["metrics"], 1):
        if not isinstance(line, dict):
            return f"line {place} of its metrics is {briefly(line)}; expected an object"
        for key in ("epoch", "seconds", figure):
            if not _finite(line.get(key)):
                return f"{key} is {briefly(line.get(key))} in line {place} of its metrics; expected a number"
        if why := _not_numbers(line, f"line {place} of its metrics"):
            return why
    return None


def _not_numbers(figures: dict[str, Any], where: str) -> str | None:
    odd = [key for key, value in figures.items() if not isinstance(value, (int, float))]
    return f"{odd[0]} is {briefly(figures[odd[0]])} in {where}; expected a number" if odd else None


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < LARGEST
