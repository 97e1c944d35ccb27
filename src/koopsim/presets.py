"""Every row of the paper by name, with the number of parameters it was published with; and whatever plugins add.

    koopsim.build("copy/sim-single")        koopsim train copy/sim-single

A preset stands beside its task (tasks/table1.py and so on) or its model; here they are gathered when first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from textwrap import fill

from koopsim.config import Run
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.kinds import Preset, model_kind, task_kind, task_kinds
from koopsim.registry import MODELS, TASKS, plugin_hint


class Presets(Mapping[str, Preset]):
    """All presets by name: the paper's in its order, then those of other tasks, then those that models bring."""

    def __init__(self) -> None:
        self._gathered: dict[str, Preset] = {}
        self._of = (-1, -1)  # versions of the registries it was gathered from

    def _all(self) -> dict[str, Preset]:
        kinds = (*task_kinds(), *MODELS.values())
        if self._of != (TASKS.version, MODELS.version):
            found: dict[str, Preset] = {}
            for kind in kinds:
                own = kind.presets()
                for name in own.keys() & found.keys():
                    raise KoopsimError(f"Two kinds have a preset {name!r}, {type(kind).__name__} is one; rename it.")
                found |= own
            self._gathered, self._of = found, (TASKS.version, MODELS.version)
        return self._gathered

    def __getitem__(self, name: str) -> Preset:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


PRESETS = Presets()


def preset_lines() -> str:
    """All names for a person to read, those of a task together."""
    tasks: dict[str, list[str]] = {}
    for name in PRESETS:
        tasks.setdefault(name.partition("/")[0], []).append(name)
    lines = ("  ".join(names) for names in tasks.values())
    return "\n".join(
        fill(line, 100, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False) for line in lines
    )


def preset(name: str) -> Preset:
    """The preset called `name`; an unknown name says which one was probably meant."""
    if name not in PRESETS:
        raise KoopsimError(f"There is no preset {name!r}." + did_you_mean(name, PRESETS) + plugin_hint())
    return PRESETS[name]


def asked_run(what: str | Run, scale: str) -> tuple[str, Run]:
    """(name, run) of a preset's name, or of a run."""
    if isinstance(what, str):
        return what, run_of(what, scale)
    if not isinstance(what, Run):
        raise KoopsimError(f"This is {type(what).__name__}; expected a Run, or a preset's name: 'copy/sim-single'.")
    return "run", what


def run_of(name: str, scale: str = "paper") -> Run:
    """The run that trains preset `name`, at the paper's size or at one that ends in seconds.

    "cifar10/sim-single" goes by the paper's recipe, "cifar10/sim-single:best" by the freer one.
    """
    name, _, recipe = name.partition(":")
    found = preset(name)
    run = found.run
    if recipe not in ("", "paper", "best"):
        raise KoopsimError(f"There is no recipe {recipe!r}; expected paper or best.")
    if recipe == "best":
        if found.best is None:
            known = [other for other, p in PRESETS.items() if p.best]
            raise KoopsimError(f"{name} has no second recipe; these have one: {', '.join(known)}.")
        run = replace(run, recipe=found.best)
    if scale not in ("paper", "smoke"):
        raise KoopsimError(f"The scale is {scale!r}; expected paper or smoke.")
    if scale == "paper":
        return run
    run = task_kind(run.task).smoke(name, run)
    return model_kind(run.model).smoke(run)
