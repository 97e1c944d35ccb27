"""Where a local search stands, as one file: the verdicts so far, and the tensors of the trials in training.

A safetensors file with a JSON header, like a run's checkpoint: replaced whole or not at all, and it cannot carry code.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from torch import Tensor

from koopsim.config import Run, from_dict, to_dict
from koopsim.engine.checkpoint import State, split_parts
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, tensors_bytes
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.space import is_median, with_values
from koopsim.searching.trial import STATUSES, Trial
from koopsim.spaces import BANDWIDTH


def write_state(
    directory: SearchDirectory, position: dict[str, Any], trials: Sequence[Trial], tensors: dict[str, Tensor]
) -> None:
    """`position` is JSON values: whose turn it is, who waits, what ASHA has recorded."""
    rows = [asdict(t) | {"run": to_dict(t.run)} for t in trials]
    header = {"search": position | {"trials": rows}}
    directory.write(directory.state_file, tensors_bytes(tensors, header, str(directory.state_file)))


def read_state(
    directory: SearchDirectory, drawn: Sequence[Trial], metric: str
) -> tuple[dict[str, Any], list[Trial], dict[int, State]] | None:
    """(position, trials, tensors by group); None where nothing was saved yet. A broken file is refused.

    So is one of another search: its trials are those that `search.json` draws, and it knows the metric they are
    judged by.
    """
    path = directory.state_file
    try:
        tensors, header = read_tensors(path, "search state", finite=False, older=_of_old)  # NaN: one that diverged
        position = header["search"]
        trials = [Trial(**(t | {"run": from_dict(Run, t["run"])})) for t in position.pop("trials")]
        _require_sense(position, range(len(trials)))
        _require_trials(trials, metric)
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KoopsimError(f"{path} is not a whole search state ({error!r}). It cannot be used.") from error
    if len(trials) != len(drawn) or any(map(_differ, trials, drawn)):
        raise KoopsimError(f"{path} is the state of another search than {directory.search_file} asks for.")
    return position, trials, split_parts(tensors)[0]


def _of_old(tensors: Collection[str], header: Collection[str]) -> bool:
    """Of koopsim 0.1, or with no trial in training: a trial's place in its epoch was not kept yet."""
    return not any(name.endswith("positions") for name in tensors)


def _require(good: bool, field: str) -> None:
    if not good:
        raise ValueError(f"no good {field!r}")


def _require_sense(position: dict[str, Any], known: range) -> None:
    """Kinds and ranges of where the search stands, by the trials that are known; ValueError names the field."""
    for field in ("turn", "position"):
        _require(_whole(position[field]), field)
    _require(_real(position["seconds"]), "seconds")
    _require(isinstance(position["asha"], list), "asha")
    for rung in position["asha"]:
        good = all(i.isdecimal() and int(i) in known and _real(v, least=None) for i, v in rung.items())
        _require(good, "asha")
    _require(isinstance(position["groups"], list), "groups")
    for group in position["groups"]:
        _require(all(_whole(i) and i in known for i in group["waiting"]), "waiting")
        _require(all(i is None or (_whole(i) and i in known) for i in group["slots"]), "slots")
        _require(all(_whole(age) for age in group["ages"]), "ages")
        _require(len(group["ages"]) in (0, len(group["slots"])), "ages")


def _require_trials(trials: Sequence[Trial], metric: str) -> None:
    """The same of the trials, each epoch of which has the metric."""
    for place, trial in enumerate(trials):
        _require(trial.index == place and isinstance(trial.values, dict), "index")
        _require(trial.status in STATUSES and isinstance(trial.reason, str), "status")
        _require(all(_whole(line["t"], 1) and _real(line["seconds"]) for line in trial.curve), "curve")
        _require(all(_real(line.get(metric), least=None) for line in trial.curve), metric)


def _differ(saved: Trial, drawn: Trial) -> bool:
    """Whether a trial is another than the one of its number that is drawn; a median bandwidth is settled meanwhile."""
    median = is_median(drawn.values.get(BANDWIDTH))
    settled = {BANDWIDTH: saved.run.model.fourier.bandwidth} if median else {}  # pyright: ignore
    return json.dumps(saved.values) != json.dumps(drawn.values) or saved.run != with_values(drawn.run, settled)


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _real(value: Any, least: float | None = 0.0) -> bool:
    return type(value) in (int, float) and isfinite(value) and (least is None or value >= least)
