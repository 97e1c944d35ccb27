"""The paper from one command: which runs make which table or figure, and which of them are still to be done.

    table1, figure4    copy memory               table2               image classification
    table3, figure5    image regression          figure1, 2 and 3     what a SIM is, the cases; they need no run

A run that is finished is kept, one that was cut off goes on where it stopped, so the command can be given again
until all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from koopsim import datasets
from koopsim.config import Run, from_dict
from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.files import folders
from koopsim.kinds import Scale, task_kind, task_kinds
from koopsim.presets import run_of
from koopsim.progress import Progress
from koopsim.report import Findings, Report, build_report, find
from koopsim.report.build import REPORT_FILES
from koopsim.report.figure2 import figure2
from koopsim.report.overview import figure1, figure3
from koopsim.runs import RunDirectory
from koopsim.searching.carrying_out import How, Shown, resume_search, shown_nowhere, start_search
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.space import base_of, space_of
from koopsim.training import Session, resume_run, start_run

DRAWN = {"figure1": figure1, "figure2": figure2, "figure3": figure3}  # these need no run
BEFORE = {  # what a name meant before 0.2, when figures were counted from another one
    "figure3": "figure3 is the overview of SIMs, without a run; copy memory's curves, figure3 before 0.2, are figure4.",
    "figure4": "figure4 is copy memory's curves; the pictures, figure4 before 0.2, are figure5.",
}


def targets_known() -> tuple[str, ...]:
    """Every table and figure that can be asked for."""
    made = {name for kind in task_kinds() for name in (kind.table, *kind.figures) if name}
    return (*sorted(made | set(DRAWN), key=lambda name: (name.startswith("figure"), name)), "all")


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
    asked = [kind for kind in task_kinds() if target in (kind.table, *kind.figures)]
    return {name: own for kind in asked for name, own in kind.rows(scale).items()}


@dataclass(frozen=True)
class Wanted:
    """What of the paper is to be made, and at which size.

    seeds      of each row; None: three for Table 2 at the paper's size, else one
    only       keep the rows whose name contains one of these words
    pictures   the two sets of Table 3: a folder each, or the project's own
    search     first search each SIM's hyper-parameters
    """

    targets: tuple[str, ...]
    out: Path
    scale: Scale = "paper"
    seeds: int | None = None
    only: tuple[str, ...] = ()
    pictures: tuple[str, str] = ("photographs", "text")
    search: bool = False

    def __post_init__(self) -> None:
        for target in self.targets:
            if target not in targets_known():
                raise KoopsimError(f"There is no table or figure {target!r}." + did_you_mean(target, targets_known()))
        if self.seeds is not None and self.seeds < 1:
            raise KoopsimError(f"seeds is {self.seeds}; it must be at least 1.")


def plan(wanted: Wanted, cuda: bool = False, chosen: Mapping[str, Run] | None = None) -> list[Job]:
    """Every run the targets need, each once. `chosen` has what a search found, by preset: its model and recipe take the
    preset's place."""
    jobs = []
    for name, own in _names(wanted).items():
        base = run_of(name, own)
        kind = task_kind(base.task)
        if chosen and name in chosen:
            base = replace(base, model=chosen[name].model, recipe=chosen[name].recipe)
        seconds = kind.seconds(name, wanted.scale) if wanted.scale == "smoke" or cuda else None
        for seed in range(wanted.seeds or kind.repeats(wanted.scale)):
            for label, run in kind.variants(base, wanted.pictures, None if wanted.scale == "paper" else 2):
                folder = wanted.out / "runs" / f"{name.replace('/', '-')}{label}-seed{seed}"
                jobs.append(Job(name, replace(run, seed=seed), folder, _state(folder), seconds))
    return jobs


def _names(wanted: Wanted) -> dict[str, Scale]:
    """The presets behind the targets, each once, with the scale it is run at."""
    targets = targets_known() if "all" in wanted.targets else wanted.targets
    names: dict[str, Scale] = {name: own for target in targets for name, own in rows(target, wanted.scale).items()}
    kept: dict[str, Scale] = {name: own for name, own in names.items() if any(word in name for word in wanted.only)}
    if wanted.only and names and not kept:
        raise KoopsimError(f"None of these has {' or '.join(wanted.only)} in its name: {', '.join(names)}.")
    return kept if wanted.only else names


def _state(folder: Path) -> Literal["done", "begun", "new"]:
    if (folder / "result.json").exists():
        return "done"
    return "begun" if (folder / "config.json").exists() else "new"


def carry_out(job: Job, session: Session) -> None:
    """Train what is left of a job."""
    if job.state == "new":
        start_run(job.run, job.folder, job.name, session)
    if job.state == "begun":
        if RunDirectory(job.folder).read_config()[1] != job.run:
            raise KoopsimError(
                f"{job.folder} holds another run than {job.name} is now; move it away, or give another --out."
            )
        resume_run(job.folder, session)


def refuse_missing_data(jobs: Sequence[Job]) -> None:
    """Data sets that jobs need and that are not here."""
    here = {entry.name for entry in datasets.inventory() if entry.present}
    needed = {name for j in jobs if j.state != "done" for name in task_kind(j.run.task).data_sets(j.run.task)}
    if missing := sorted(needed - here):
        raise KoopsimError(f"These data sets are not here: fetch them with 'koopsim data get {' '.join(missing)}'.")


def searched(jobs: Sequence[Job], wanted: Wanted, how: How) -> dict[str, Run]:
    """The best configuration of each SIM by a search of its own; one that is finished is read, one cut off goes on."""
    found = {}
    for name in dict.fromkeys(job.name for job in jobs if "/sim" in job.name):
        folder = wanted.out / "searches" / name.replace("/", "-")
        base = base_of(run_of(name, wanted.scale))
        search = Search(name, base, space_of(base, wanted.scale), base.seed)
        begun = SearchDirectory(folder).search_file.exists()
        result = resume_search(folder, how) if begun else start_search(search, folder, how)
        found[name] = from_dict(Run, result["best"]["run"])
    return found


def work(jobs: Sequence[Job], session: Session, shown: Shown, failed: Callable[[str], None]) -> None:
    """Carry out the jobs one by one; one that fails is named and costs the others nothing."""
    errors = []
    for job in jobs:
        try:
            with shown(job.folder.name, job.run.recipe.epochs) as listen:
                carry_out(job, replace(session, listen=listen))
        except KoopsimError as error:
            errors.append(f"{job.folder.name}: {error}")
            failed(errors[-1])
    if errors:
        raise KoopsimError(f"{len(errors)} of {len(jobs)} runs failed, the first is {errors[0]}")


def reproduce(
    *targets: str, out: Path | str = "reproduced", scale: Scale = "paper", device: str = "auto", progress: bool = True
) -> list[Path]:
    """Train what tables and figures of the paper need and make the report: the files written.

    `koopsim.reproduce("table1", scale="smoke")`. Called again it goes on where it was stopped.
    """
    wanted = Wanted(targets or ("all",), Path(out), scale)
    session = Session(pick_device(device))
    jobs = plan(wanted, session.device.type == "cuda")
    refuse_missing_data(jobs)
    work(jobs, session, Progress if progress else shown_nowhere, lambda text: None)
    reported, files = draw_report(wanted, jobs)
    return [*(reported[1].files if reported else []), *files]


def draw_report(wanted: Wanted, jobs: Sequence[Job]) -> tuple[tuple[Findings, Report] | None, list[Path]]:
    """The report of all runs, where there are any, and the files of figures that need none."""
    folder, reported = wanted.out / "report", None
    with folders.held(folder):
        folders.claim(folder, "report", REPORT_FILES)
        if jobs:
            found = find([wanted.out / "runs"])
            reported = found, build_report(found, folder)
        asked = [draw for name, draw in DRAWN.items() if {name, "all"} & set(wanted.targets)]
        return reported, [file for draw in asked for file in draw(folder)]
