"""From a search space to trials: the run of each, with its drawn values in their places.

A parameter's name is its path in a `Run` ("recipe.learning_rate", "model.fourier.bandwidth"). What is searched over is
the task's and the model's own affair (kinds/); how it is drawn is in spaces.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from koopsim.config import Run, from_dict, to_dict
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.kinds import task_kind
from koopsim.spaces import SearchSpace


def space_of(run: Run, scale: str = "paper") -> SearchSpace:
    """The paper's search for this run (its appendix B), or one that ends in seconds."""
    return task_kind(run.task).space(run, scale == "smoke")


def base_of(run: Run) -> Run:
    """The run that a search varies: choices are made on the validation split, and who stops early is ASHA's choice."""
    return task_kind(run.task).search_base(replace(run, recipe=replace(run.recipe, patience=None)))


def trial_run(base: Run, values: dict[str, Any], index: int) -> Run:
    """The run of a trial. A bandwidth still to come from the data is left as the base has it."""
    known = {name: value for name, value in values.items() if not is_median(value)}
    return replace(with_values(base, known), seed=base.seed + index)


def is_median(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("median")


def with_values(run: Run, values: dict[str, Any]) -> Run:
    """The run with the entries at these paths replaced; a wrong type or an impossible value is refused by name."""
    data = to_dict(run)
    for path, value in values.items():
        *folders, leaf = path_of(run, path).split(".")
        place = data
        for folder in folders:
            place = place[folder]
        place[leaf] = value
    return from_dict(Run, data, "run")


def path_of(run: Run, name: str) -> str:
    """The whole path of a parameter; its last word is enough where only one path ends in it."""
    paths = list(_leaves(to_dict(run)))
    if name in paths:
        return name
    ends = [path for path in paths if path.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise KoopsimError(f"{name!r} could be {' or '.join(ends)}; give the whole of it.")
    if name.endswith("bandwidth"):
        raise KoopsimError("This model has no bandwidth: it has no Fourier features. Take a two-tier preset.")
    raise KoopsimError(f"A run has no entry {name!r} to search over." + did_you_mean(name, paths))


def _leaves(data: dict[str, Any], prefix: str = ""):
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif key != "kind":
            yield prefix + key
