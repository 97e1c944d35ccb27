"""The paper from one command: which runs make which table or figure, and which of them are still to be done.

    table1, figure3    copy memory               table2    image classification
    table3, figure4    image regression          figure2   the spectrum's index sets, which needs no run

A run that is finished is kept, one that was cut off goes on where it stopped, so the command can be given again
until all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from koopsim.config import ClassificationConfig, ImageRegressionConfig, Run
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.presets import run_of

COPY = ("copy/sim-single", "copy/sim-two", "copy/deq")
KINDS = ("sim-single", "sim-two", "mondeq-single", "mondeq-multi")
PICTURES = ("image/sim-single", "image/sim-two", "image/sim-rff", "image/tancik")
TABLE_OF = {"figure3": "table1", "figure4": "table3"}
TARGETS = ("table1", "table2", "table3", "figure2", "figure3", "figure4", "all")

# Seconds of a run as measured: at the paper's size on one H200 (results/h200), at the smoke scale on one core.
PAPER_SECONDS = {
    "copy/sim-single": 52, "copy/sim-two": 53, "copy/deq": 529,
    "cifar10/sim-single": 13, "cifar10/sim-two": 9, "cifar10/mondeq-single": 156, "cifar10/mondeq-multi": 112,
    "svhn/sim-single": 13, "svhn/sim-two": 13, "svhn/mondeq-single": 266, "svhn/mondeq-multi": 155,
    "mnist/sim-single": 9, "mnist/sim-two": 9, "mnist/mondeq-single": 80, "mnist/mondeq-multi": 129,
}  # fmt: skip
SMOKE_SECONDS = {
    "copy/sim-single": 16, "copy/sim-two": 12, "copy/deq": 47,
    "digits/sim-single": 3, "digits/sim-two": 3, "digits/mondeq-single": 8, "digits/mondeq-multi": 11,
    "image/sim-single": 6, "image/sim-two": 6, "image/sim-rff": 5, "image/tancik": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A run of the paper: what it is, where it lives, how far it is, and what it may take."""

    name: str
    run: Run
    folder: Path
    state: Literal["done", "begun", "new"]
    seconds: float | None  # None where nobody has measured it on such a device

    @property
    def left(self) -> float | None:
        """Seconds still to be spent, an unfinished run counted in full."""
        return 0.0 if self.state == "done" else self.seconds


def rows(target: str, scale: str) -> tuple[str, ...]:
    """The presets behind a table or figure."""
    match TABLE_OF.get(target, target):
        case "table1":
            return COPY
        case "table2":
            sets = ("cifar10", "svhn", "mnist") if scale == "paper" else ("digits",)
            return tuple(f"{data}/{kind}" for data in sets for kind in KINDS)
        case "table3":
            return PICTURES
    return ()


def plan(
    targets: Sequence[str],
    out: Path,
    scale: str = "paper",
    seeds: int | None = None,
    only: Sequence[str] = (),
    pictures: tuple[str, str] = ("photographs", "text"),
    cuda: bool = False,
    chosen: Mapping[str, Run] | None = None,
) -> list[Job]:
    """Every run the targets need, each once; `only` keeps those whose name contains one of its words.

    Table 2 has three seeds at the paper's size, everything else one, unless `seeds` says otherwise. `pictures` are the
    two sets of Table 3: a folder each, or the project's own. `chosen` has what a search found, by preset: its model and
    recipe take the preset's place.
    """
    for target in targets:
        if target not in TARGETS:
            raise KoopsimError(f"There is no table or figure {target!r}." + did_you_mean(target, TARGETS))
    wanted = TARGETS[:-1] if "all" in targets else targets
    names = list(dict.fromkeys(name for target in wanted for name in rows(target, scale)))
    if only:
        kept = [name for name in names if any(word in name for word in only)]
        if names and not kept:
            raise KoopsimError(f"None of these has {' or '.join(only)} in its name: {', '.join(names)}.")
        names = kept
    jobs = []
    for name in names:
        base = run_of(name, "paper" if name.startswith("digits/") else scale)
        if chosen and name in chosen:
            base = replace(base, model=chosen[name].model, recipe=chosen[name].recipe)
        known = PAPER_SECONDS if scale == "paper" else SMOKE_SECONDS
        seconds = known.get(name) if scale == "smoke" or cuda else None
        repeats = seeds or (3 if isinstance(base.task, ClassificationConfig) and scale == "paper" else 1)
        for seed in range(repeats):
            for label, run in _variants(base, pictures, None if scale == "paper" else 2):
                folder = out / "runs" / f"{name.replace('/', '-')}{label}-seed{seed}"
                jobs.append(Job(name, replace(run, seed=seed), folder, _state(folder), seconds))
    return jobs


def _variants(run: Run, pictures: tuple[str, str], count: int | None) -> list[tuple[str, Run]]:
    """The run itself, or for image regression the run on each set of pictures, at most `count` of each."""
    if not isinstance(run.task, ImageRegressionConfig):
        return [("", run)]
    task = replace(run.task, count=count)
    return [(f"-{Path(name).name}", replace(run, task=replace(task, pictures=name))) for name in pictures]


def _state(folder: Path) -> Literal["done", "begun", "new"]:
    if (folder / "result.json").exists():
        return "done"
    return "begun" if (folder / "config.json").exists() else "new"


def carry_out(job: Job, device: Any, listen: Callable[[dict[str, Any]], None]) -> None:
    """Train what is left of a job."""
    from koopsim.runs import RunDirectory
    from koopsim.tasks import build_task
    from koopsim.train import train

    if job.state == "done":
        return
    task = None
    if job.state == "new":
        if not isinstance(job.run.task, ImageRegressionConfig):
            task = build_task(job.run.task, device)  # missing data stops here, before anything is written
        directory = RunDirectory.create(job.folder, job.run, job.name)
    else:
        directory = RunDirectory(job.folder)
        _, recorded = directory.read_config()
        if recorded != job.run:
            raise KoopsimError(
                f"{job.folder} holds another run than {job.name} is now; move it away, or give another --out."
            )
    train(job.run, directory, job.name, device, job.state == "begun", listen=listen, task=task)


def missing_data(jobs: Sequence[Job]) -> list[str]:
    """Data sets that jobs need and that are not here."""
    from koopsim import datasets

    here = {entry.name for entry in datasets.inventory() if entry.present}
    needed = {j.run.task.dataset for j in jobs if j.state != "done" and isinstance(j.run.task, ClassificationConfig)}
    return sorted(needed & set(datasets.NAMES) - here)
