"""Whole searches of the paper on one device, timed: what `koopsim tune` does, with nothing but torch installed.

    PYTHONPATH=src python benchmarks/search_run.py copy/sim-single copy/sim-two --out $OUT/searches --retrain 1
    PYTHONPATH=src python benchmarks/search_run.py cifar10/sim-single --out $OUT/searches --seconds 540

Each search has a folder of its own in --out, with trials.csv, pictures and result.json. `--seconds` stops and saves in
time; the same command goes on from there. `--search` takes what `koopsim tune --search` takes, and `--confirm 5` trains
the five best again with other seeds before one is chosen.
"""

import argparse
import functools
import json
import os
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.presets import run_of
from koopsim.runs import write_json
from koopsim.search import LocalSearch, Search, SearchDirectory, Trial, base_of, space_of
from koopsim.search.confirm import confirmed
from koopsim.search.directory import search_to_dict
from koopsim.search.outcome import conclude
from koopsim.search.results import expected_epochs, ranked
from koopsim.search.space_text import space_from_arguments
from koopsim.tasks import Task
from koopsim.train import Stopped, pick_device


class Lines:
    """The best so far, now and then."""

    def __init__(self, search: Search):
        self.search, self.last = search, 0.0

    def __call__(self, event: dict) -> None:
        if event.get("event") != "trial" or time.monotonic() - self.last < 10:
            return
        self.last = time.monotonic()
        trials, space = event["trials"], self.search.space
        best = ranked(trials, space)[:1]
        shown = f"{best[0].last(space.metric):.4g} (trial {best[0].index}, t {best[0].t})" if best else "none"
        over, done = sum(t.over for t in trials), sum(t.t for t in trials)
        print(
            f"{self.search.name}  {event['seconds']:.0f} s  {over}/{len(trials)} over  {done} of about "
            f"{expected_epochs(trials, space):.0f} epochs  best {shown}",
            flush=True,
        )


def prepared(
    search: Search,
    directory: SearchDirectory,
    begun: bool,
    device: torch.device,
    arguments: argparse.Namespace,
    task: Task | None = None,
) -> LocalSearch:
    """The search, where it stands."""
    capture = False if arguments.eager else None
    local = LocalSearch(search, directory, device, capture, arguments.compile, Lines(search), task)
    if begun:
        local.load()
    return local


def trained(
    search: Search,
    directory: SearchDirectory,
    begun: bool,
    device: torch.device,
    arguments: argparse.Namespace,
    task: Task,
) -> list[Trial]:
    """Its trials at their end."""
    return prepared(search, directory, begun, device, arguments, task).run()


def _but_for_confirm(one: Search, other: Search) -> bool:
    """Whether two searches have the same trials: what is done after them may differ."""
    return replace(one, confirm=other.confirm, confirm_seeds=other.confirm_seeds) == other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", choices=["paper", "smoke"], default="paper")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--grace", type=int, help="epochs before a trial may be stopped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", nargs="*", default=[])
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--engine", choices=["auto", "stacked", "separate"], default="auto")
    parser.add_argument("--precision")
    parser.add_argument("--data", help="of classification: other images, such as an .npz")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--confirm", type=int, default=0, help="so many of the best are trained again before choosing")
    parser.add_argument("--confirm-seeds", type=int, default=3, help="with so many other seeds each")
    parser.add_argument("--retrain", type=int, default=0, help="seeds the best is trained again with")
    parser.add_argument("--seconds", type=float, help="stop and save after this long")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = pick_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    if arguments.seconds:
        timer = threading.Timer(arguments.seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
    for name in arguments.presets:
        run = replace(run_of(name, arguments.scale), seed=arguments.seed)
        if arguments.precision:
            run = replace(run, precision=arguments.precision)
        if arguments.data:
            run = replace(run, task=replace(run.task, dataset=arguments.data))
        base = base_of(run)
        space = space_from_arguments(space_of(base, arguments.scale), base, tuple(arguments.search))
        if arguments.trials:
            space = replace(space, trials=arguments.trials)
        if arguments.grace:
            space = replace(space, grace=arguments.grace)
        search = Search(
            name,
            base,
            space,
            arguments.seed,
            at_once=arguments.at_once,
            engine=arguments.engine,
            confirm=arguments.confirm,
            confirm_seeds=arguments.confirm_seeds,
        )
        folder = arguments.out / name.replace("/", "-").replace(":", "-")
        directory = SearchDirectory(folder)
        if directory.result_file.exists():
            continue
        begun = directory.search_file.exists() and _but_for_confirm(directory.read(), search)
        if not begun:
            directory = SearchDirectory.create(folder, search, overwrite=True)
        write_json(directory.search_file, search_to_dict(search))  # --confirm may be asked for later
        local = prepared(search, directory, begun, device, arguments)
        try:
            trials, seconds = local.run(), local.elapsed
            again = functools.partial(trained, device=device, arguments=arguments, task=local.task)
            rows = confirmed(search, directory, trials, again)
            capture, retrain = False if arguments.eager else None, arguments.retrain
            result = conclude(
                search, directory, trials, seconds, device, retrain, capture, task=local.task, confirmed=rows
            )
        except Stopped:
            print(f"{name}: stopped and saved after {local.elapsed:.0f} s", flush=True)
            return
        engines = [g.engine.describe() for g in local.groups if g.engine is not None]
        shown = {k: result[k] for k in ("name", "trials", "ended", "epochs", "seconds")}
        shown |= {"confirmed": rows} if rows else {}
        print(json.dumps(shown | {"best": result["best"]["values"], "engines": engines, "test": result.get("test")}))


if __name__ == "__main__":
    main()
