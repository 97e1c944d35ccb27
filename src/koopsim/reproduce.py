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

from koopsim.config import Run
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.kinds import Scale, task_kind, task_kinds
from koopsim.presets import run_of

FIGURE2 = "figure2"  # needs no run


def targets_known() -> tuple[str, ...]:
    """Every table and figure that can be asked for."""
    made = [name for kind in task_kinds() for name in (kind.table, *kind.figures) if name]
    return (*sorted((*made, FIGURE2), key=lambda name: (name.startswith("figure"), name)), "all")


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


def rows(target: str, scale: Scale) -> dict[str, Scale]:
    """The presets behind a table or figure, each with the scale it is run at."""
    for kind in task_kinds():
        if target in (kind.table, *kind.figures):
            return kind.rows(scale)
    return {}


def plan(
    targets: Sequence[str],
    out: Path,
    scale: Scale = "paper",
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
        if target not in targets_known():
            raise KoopsimError(f"There is no table or figure {target!r}." + did_you_mean(target, targets_known()))
    wanted = targets_known() if "all" in targets else targets
    names = {name: own for target in wanted for name, own in rows(target, scale).items()}
    if only:
        kept = {name: own for name, own in names.items() if any(word in name for word in only)}
        if names and not kept:
            raise KoopsimError(f"None of these has {' or '.join(only)} in its name: {', '.join(names)}.")
        names = kept
    jobs = []
    for name, own in names.items():
        base = run_of(name, own)
        kind = task_kind(base.task)
        if chosen and name in chosen:
            base = replace(base, model=chosen[name].model, recipe=chosen[name].recipe)
        seconds = kind.seconds(name, scale) if scale == "smoke" or cuda else None
        for seed in range(seeds or kind.repeats(scale)):
            for label, run in kind.variants(base, pictures, None if scale == "paper" else 2):
                folder = out / "runs" / f"{name.replace('/', '-')}{label}-seed{seed}"
                jobs.append(Job(name, replace(run, seed=seed), folder, _state(folder), seconds))
    return jobs


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
        if not task_kind(job.run.task).many:
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
    needed = {name for j in jobs if j.state != "done" for name in task_kind(j.run.task).data_sets(j.run.task)}
    return sorted(needed - here)
