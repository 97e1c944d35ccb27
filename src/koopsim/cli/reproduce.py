"""koopsim reproduce: the paper's tables and figures, from the first step to the page."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError

Target = Literal["table1", "table2", "table3", "figure1", "figure2", "figure3", "figure4", "figure5", "all"]


@dataclass(frozen=True)
class Arguments:
    """Train, evaluate and report what a table or figure of the paper needs. Give the same command again to go on."""

    targets: Annotated[tuple[Target, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT ...")]
    """Which ones, by the paper's numbers: table1 table2 table3 figure1 ... figure5, or all."""
    scale: Literal["paper", "smoke"] = "paper"
    """The paper's size, or the same code at a size that ends in minutes on two cores."""
    out: Path = Path("reproduced")
    """Where runs and report go."""
    only: tuple[str, ...] = ()
    """Only runs with one of these words in their name, such as 'sim' or 'mnist'."""
    seeds: int | None = None
    """How many seeds; by default three for Table 2 at the paper's size, else one."""
    natural: str = "photographs"
    """Table 3's first set of pictures: a folder, kodak16, the paper's data_div2k.npz, or scikit-learn's photographs."""
    text: str = "text"
    """Table 3's second set: a folder, the paper's data_2d_text.npz, or text pictures made here."""
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
    from koopsim.engine.drive import Stopped, pick_device
    from koopsim.progress import Progress
    from koopsim.reproduction import BEFORE, Wanted, draw_report, plan, refuse_missing_data, searched, work
    from koopsim.searching.carrying_out import How
    from koopsim.training import Session

    pictures = (arguments.natural, arguments.text)
    wanted = Wanted(
        arguments.targets, arguments.out, arguments.scale, arguments.seeds, arguments.only, pictures, arguments.search
    )
    for said in [BEFORE[target] for target in dict.fromkeys(arguments.targets) if target in BEFORE]:
        print(f"koopsim: {said}", file=sys.stderr)
    session = Session(pick_device(arguments.device))
    cuda = session.device.type == "cuda"
    jobs = plan(wanted, cuda)
    announce(jobs, str(session.device))
    if arguments.dry_run:
        return _say_json(jobs, []) if arguments.json else 0
    refuse_missing_data(jobs)
    try:
        if wanted.search:
            how = How(session, retrain=0, shown=Progress)
            jobs = plan(wanted, cuda, searched(jobs, wanted, how))
        work(jobs, session, Progress, lambda text: print(f"koopsim: {text}", file=sys.stderr))
    except Stopped:
        print("koopsim: stopped and saved. Give the same command again to go on.", file=sys.stderr)
        return 130
    reported, files = draw_report(wanted, jobs)
    if arguments.json:
        return _say_json(jobs, files)
    if reported:
        from koopsim.cli.report import show_report

        show_report(*reported)
    if files:
        print(f"also in {wanted.out / 'report'}/: {', '.join(f.name for f in files)}")
    return 0


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


def _say_json(jobs: list, files: list[Path]) -> int:
    plan = [{"name": j.name, "folder": str(j.folder), "state": j.state, "seconds": j.seconds} for j in jobs]
    print(json.dumps({"runs": plan, "files": [str(f) for f in files]}, indent=2))
    return 0
