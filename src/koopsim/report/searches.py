"""Searches: every trial's settings and validation figure, from `koopsim tune`'s folders and from kept JSON files.

    best so far at trial i  =  the best figure among the first i

Three forms are read: a folder with search.json and trials.csv; {"trials": [{"run", "valid" or "curve"}]}; and
{"members": [{"picture", "learning_rate", "curve"}]} of image regression, a search for each picture.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.json import read_json
from koopsim.registry import TASKS
from koopsim.report.kinds import figures, subject_of
from koopsim.words import PSNR

SHOWN = ("batch_size", "epochs", "schedule", "weight_decay", "shift", "flip", "rotate", "zoom", "cutout", "average")


@dataclass(frozen=True)
class TrialFound:
    """One trial: learning rate, the validation figure it is judged by (None: it failed), other settings in words."""

    learning_rate: float
    figure: float | None
    settings: str


@dataclass(frozen=True)
class SearchFound:
    """The trials of one search in the order they were drawn."""

    name: str  # of the file or folder
    subject: str  # "cifar10/sim-single": what was searched for
    metric: str  # loss, accuracy or psnr
    trials: tuple[TrialFound, ...]
    seconds: float | None
    doubts: tuple[str, ...] = ()  # what the search said of its own answer

    @property
    def lower_is_better(self) -> bool:
        known = figures().get(self.metric)
        return known is not None and known.lower

    def best(self) -> TrialFound | None:
        """The trial with the best figure."""
        known = [t for t in self.trials if t.figure is not None]
        sign = 1 if self.lower_is_better else -1
        return min(known, key=lambda t: sign * (t.figure or 0.0), default=None)


def running_best(search: SearchFound) -> list[float | None]:
    """The best figure among the first i trials, for each i."""
    better, best, found = min if search.lower_is_better else max, None, []
    for trial in search.trials:
        if trial.figure is not None:
            best = trial.figure if best is None else better(best, trial.figure)
        found.append(best)
    return found


def search_of_directory(folder: Path) -> SearchFound:
    """A search of `koopsim tune`."""
    from koopsim.searching.results import read_trials  # here: it brings torch along

    asked = read_json(folder / "search.json")
    file = folder / "trials.csv"
    if not file.exists():
        raise KoopsimError(f"a search without trials yet; koopsim tune --resume {folder}")
    try:
        metric, name = asked["space"]["metric"], asked["name"]
        trials = []
        for row in read_trials(file):
            values = {key.rpartition(".")[2]: text for key, text in row.items() if "." in key}
            rate = values.pop("learning_rate", asked["run"]["recipe"]["learning_rate"])
            lost = row["status"] in ("diverged", "failed")
            words = ", ".join([row["status"], *(f"{k} {v}" for k, v in values.items() if v)])
            trials.append(TrialFound(_rate(rate), None if lost else _figure(row[metric]), words))
        seconds = max((float(line[1]) for row in read_trials(file) for line in row["curve"]), default=None)
        result = folder / "result.json"
        doubts = read_json(result).get("doubts", []) if result.exists() else []
        return SearchFound(folder.name, str(name), str(metric), tuple(trials), seconds, tuple(map(str, doubts)))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise KoopsimError(f"not a search that can be shown ({error!r})") from error


def search_of_json(data: dict[str, Any], file: Path) -> SearchFound:
    """A search kept in one file."""
    try:
        if "members" in data:
            trials = tuple(_member(member) for member in data["members"])
            subject = f"{data['name']} on {data['set']}"
            return SearchFound(file.stem, subject, PSNR.key, trials, _figure(data.get("seconds")))
        runs = [trial["run"] for trial in data["trials"]]
        if not runs:
            raise KoopsimError("a search without trials")
        metric = TASKS[runs[0]["task"]["kind"]].judged.key
        trials = tuple(_trial(trial, metric) for trial in data["trials"])
        return SearchFound(file.stem, subject_of(runs[0]), metric, trials, _figure(data.get("seconds")))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise KoopsimError(f"not a search that can be shown ({error!r})") from error


def _trial(trial: dict[str, Any], metric: str) -> TrialFound:
    recipe, fourier = trial["run"]["recipe"], trial["run"]["model"].get("fourier")
    last = trial["valid"] if "valid" in trial else ([None, *trial["curve"]][-1] or {})
    figure = None if trial.get("error") else last.get(metric, last.get(f"valid_{metric}"))
    words = [f"{key.replace('_', ' ')} {recipe[key]}" for key in SHOWN if recipe.get(key)]
    words += [f"bandwidth {fourier['bandwidth']:g}"] if fourier else []
    return TrialFound(_rate(recipe["learning_rate"]), _figure(figure), ", ".join(words))


def _member(member: dict[str, Any]) -> TrialFound:
    words = [f"{key} {value}" for key, value in member.items() if key not in ("learning_rate", "curve", "seed")]
    figure = member["curve"][-1][1] if member["curve"] else None
    return TrialFound(_rate(member["learning_rate"]), _figure(figure), ", ".join(words))


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0 < rate < math.inf:
        raise KoopsimError(f"a trial's learning rate is {value}; expected a positive number")
    return rate


def _figure(value: Any) -> float | None:
    """A number, or None for what is missing, empty, infinite or not a number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
