"""koopsim reproduce: the paper's tables and figures, from the first step to the page."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Arguments:
    """Train, evaluate and report what a table or figure of the paper needs. Give the same command again to go on."""

    targets: Annotated[tuple[Literal["table1", "table2", "table3", "figure2", "figure3", "figure4", "all"], ...],
                       tyro.conf.Positional]  # fmt: skip
    """Which ones: table1 table2 table3 figure2 figure3 figure4, or all."""
    scale: Literal["paper", "smoke"] = "paper"
    """The paper's size, or the same code at a size that ends in minutes on two cores."""
    out: Path = Path("reproduced")
    """Where runs and report go."""
    only: tuple[str, ...] = ()
    """Only runs with one of these words in their name, such as 'sim' or 'mnist'."""
    seeds: int | None = None
    """How many seeds; by default three for Table 2 at the paper's size, else one."""
    natural: str = "photographs"
    """Table 3's first set of pictures: a folder, or scikit-learn's photographs."""
    text: str = "text"
    """Table 3's second set: a folder, or text pictures made here."""
    search: bool = False
    """First search each SIM's hyper-parameters (koopsim tune), then train with the best."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    dry_run: bool = False
    """Only say what would be done, and how long it may take."""
    json: bool = False
    """Print the plan and what was written as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "reproduce")
    if not arguments.targets:
        raise KoopsimError("Name a table or figure: koopsim reproduce table1, or all. --scale smoke ends in minutes.")
    from koopsim.reproduce import missing_data, plan
    from koopsim.train import pick_device

    device = pick_device(arguments.device)
    pictures = (arguments.natural, arguments.text)
    cuda = device.type == "cuda"
    settings = (arguments.targets, arguments.out, arguments.scale, arguments.seeds, arguments.only, pictures, cuda)
    jobs = plan(*settings)
    announce(jobs, str(device))
    if arguments.dry_run:
        return _say_json(jobs, []) if arguments.json else 0
    missing = missing_data(jobs)
    if missing:
        raise KoopsimError(f"These data sets are not here: fetch them with 'koopsim data get {' '.join(missing)}'.")
    if arguments.search:
        jobs = plan(*settings, chosen=searched(jobs, arguments))
    status = work(jobs, device)
    if status:
        return status
    files = draw(arguments, jobs)
    return _say_json(jobs, files) if arguments.json else 0


def searched(jobs: list, arguments: Arguments) -> dict:
    """The best configuration of each SIM by a search of its own; one that is finished is read, one cut off goes on."""
    from koopsim.cli import tune
    from koopsim.config import Run, from_dict
    from koopsim.search import SearchDirectory

    found = {}
    for name in dict.fromkeys(job.name for job in jobs if "/sim" in job.name):
        folder = arguments.out / "searches" / name.replace("/", "-")
        given = ["--retrain", "0", "--device", arguments.device]
        begun = (folder / "search.json").exists()
        how = ["--resume", str(folder)] if begun else [name, "--scale", arguments.scale, "--out", str(folder)]
        with contextlib.redirect_stdout(sys.stderr):
            if tune.main([*how, *given]):
                raise KoopsimError("The search was stopped and saved. Give the same command again to go on.")
        found[name] = from_dict(Run, SearchDirectory(folder).read_result()["best"]["run"])
    return found


def announce(jobs: list, device: str) -> None:
    """What is to be done, what is there already, and how long the rest may take."""
    left = [j for j in jobs if j.state != "done"]
    for job in jobs:
        time = "" if job.seconds is None else f"  about {job.seconds:.0f} s"
        word = {"done": "done", "begun": "to be resumed", "new": "to be trained"}[job.state]
        print(f"  {job.folder.name:<34} {word}{time if job.state != 'done' else ''}", file=sys.stderr)
    known = [j.left for j in left if j.left is not None]
    unknown = len(left) - len(known)
    if not jobs:
        return
    total = f"about {sum(known) / 60:.1f} minutes" if known else "not measured on such a device"
    more = f" and {unknown} not measured on such a device" if known and unknown else ""
    print(f"{len(left)} of {len(jobs)} runs to train on {device}: {total}{more}.", file=sys.stderr)


def work(jobs: list, device) -> int:
    """Carry out the jobs one by one; one that fails is named and costs the others nothing."""
    from koopsim.cli.progress import TrainingProgress
    from koopsim.reproduce import carry_out
    from koopsim.train import Stopped

    failed = []
    for job in jobs:
        try:
            with TrainingProgress(job.folder.name, job.run.recipe.epochs) as progress:
                carry_out(job, device, progress)
        except Stopped:
            print("koopsim: stopped and saved. Give the same command again to go on.", file=sys.stderr)
            return 130
        except KoopsimError as error:
            failed.append(f"{job.folder.name}: {error}")
            print(f"koopsim: {failed[-1]}", file=sys.stderr)
    if failed:
        raise KoopsimError(f"{len(failed)} of {len(jobs)} runs failed, the first is {failed[0]}")
    return 0


def draw(arguments: Arguments, jobs: list) -> list[Path]:
    """The report of all runs, and the figures that were asked for."""
    from koopsim.cli import report
    from koopsim.files import folders
    from koopsim.report.build import REPORT_FILES
    from koopsim.report.figure2 import figure2

    folder = arguments.out / "report"
    wanted, files = set(arguments.targets), []
    with folders.held(folder):
        folders.claim(folder, "report", REPORT_FILES)
        if jobs:
            quiet = contextlib.redirect_stdout(io.StringIO()) if arguments.json else contextlib.nullcontext()
            with quiet:
                report.main([str(arguments.out / "runs"), "--out", str(folder)])
        if wanted & {"figure2", "all"}:
            files += figure2(folder)
    if files and not arguments.json:
        print(f"also in {folder}/: {', '.join(f.name for f in files)}")
    return files


def _say_json(jobs: list, files: list[Path]) -> int:
    plan = [{"name": j.name, "folder": str(j.folder), "state": j.state, "seconds": j.seconds} for j in jobs]
    print(json.dumps({"runs": plan, "files": [str(f) for f in files]}, indent=2))
    return 0
