"""Killed at any moment: what is run again, or resumed, ends with the bits of one that was not, and leaves no litter.

    fork a verb -> kill -9 after a random time, once or twice -> the same command, or --resume
    wanted: every figure, every line of metrics and every tensor equal; the files of an undisturbed run, and no other

`python tests/hostile/kills.py --kills 270 --jobs 2 --out results/kills.json`: seeded, the works in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from corpus import AHEAD, COPY, FIT, IMAGE, STORED, done_in, own_data, sounds_and_shapes
from warm import begin, run, wait, warm_up

LONG = ["--recipe.epochs", "40"]  # so that most kills find it training
MONDEQ = "digits/mondeq-single --scale smoke --device cpu --task.train 80 --task.test 20 --model.tiers 4".split()
TIMES = {"seconds", "train_seconds", "set_up_seconds", "milliseconds_per_step", "environment", "date", "command"}
TIMES |= {"curve"}  # of a fit: looked at whenever a quarter of a second is over, so at other steps each time
SEARCH = ["--trials", "4", "--max-t", "12", "--retrain", "1"]


@dataclass(frozen=True)
class Work:
    """A verb that writes a folder: how it begins, how it goes on, and the file whose presence lets it go on."""

    name: str
    begins: list[str]
    goes_on: list[str] | None
    known_by: str


def _train(name: str, what: list[str]) -> Work:
    goes_on = ["train", "--resume", "o", *(["--devices", "2"] if "--devices" in what else [])]
    return Work(name, ["train", *what, "--out", "o"], goes_on, "o/config.json")


def _tune(name: str, what: list[str]) -> Work:
    return Work(name, ["tune", *what, *SEARCH, "--out", "o"], ["tune", "--resume", "o"], "o/search.json")


WORKS = [
    _train("train", [*COPY, *LONG]),
    _train("train pictures", [*IMAGE, *LONG]),
    _tune("tune stacked", COPY),
    _tune("tune pictures", IMAGE),
    _tune("tune monDEQ", MONDEQ),
    _train("train a table", ["--data", "table.csv", "--target", "price", *LONG]),
    _train("train a forecaster", ["--data", "log.csv", *AHEAD, "--recipe.epochs", "6"]),
    _train("train streamed", ["--data", "arrays", *LONG]),
    _train("train in two processes", [*COPY, "--recipe.epochs", "8", "--devices", "2"]),
    Work(
        "train kept at a URL",
        ["train", *COPY, "--recipe.epochs", "8", "--out", "o", *STORED],
        ["train", "--resume", "o", *STORED],
        "o/config.json",
    ),
    Work("fit a folder", ["fit", "folder", *FIT, "--steps", "200", "--out", "o"], None, "o/1/network.safetensors"),
    Work("fit a sound", ["fit", "song.wav", *FIT, "--steps", "60", "--out", "o"], None, "o/song/network.safetensors"),
    Work("sklearn", ["@pickle", "o/estimator.safetensors"], None, "o/estimator.safetensors"),
    Work("forecast", ["forecast", "ahead", "--data", "log.csv", "--out", "o"], None, "o/forecast.json"),
    Work("fit --bytes", ["fit", "p.png", *FIT[:2], *FIT[-3:], "--bytes", "600", "--out", "o"], None, "o/p/network.ksp"),
    Work("fit", ["fit", "p.png", *FIT, "--steps", "400", "--out", "o"], None, "o/p/network.safetensors"),
]


@dataclass(frozen=True)
class Whole:
    """What a work leaves that nobody kills, and how long it takes."""

    left: dict[str, Any]
    seconds: float


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES}
    if isinstance(value, str) and value.startswith(tempfile.gettempdir()):
        return Path(value).name  # the same data in another folder
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def _content(path: Path) -> Any:
    """Of figures their values, of tensors their bytes, of the rest that it is there."""
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".safetensors":
        raw = path.read_bytes()  # the header's length, the header (which may tell times), the tensors
        return hashlib.sha256(raw[8 + int.from_bytes(raw[:8], "little") :]).hexdigest()
    return "there"


def left(folder: Path) -> dict[str, Any]:
    """{file: content} of all that a work left."""
    files = [p for name in ("o", "url") for p in sorted((folder / name).rglob("*")) if p.is_file()]
    return {str(p.relative_to(folder)): _content(p) for p in files}


def _fresh(here: Path, files: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    (here / "o").mkdir()
    for name in ("p.png", "table.csv", "log.csv", "song.wav"):
        shutil.copy(files / name, here / name)
    for name in ("arrays", "ahead", "folder"):
        shutil.copytree(files / name, here / name)


def killed(work: Work, rng: random.Random, root: Path, files: Path, whole: Whole) -> tuple[int, str | None]:
    """(how often it was killed, what was wrong then, in words; None where nothing was)."""
    here, log, hit = root / "killed", root / "log", 0
    _fresh(here, files)
    for _ in range(rng.randint(1, 2)):
        pid = begin(_again(work, here), here, log)
        time.sleep(rng.random() * whole.seconds)
        os.kill(pid, signal.SIGKILL)
        hit += wait(pid, log, 5).status == -signal.SIGKILL  # one that had ended already was not killed
    again = _again(work, here)
    ended = run(again, here, log, max(60.0, 20 * whole.seconds))
    if ended.status or ended.crashed:
        return hit, f"{work.name}: {' '.join(again)}: status {ended.status}: {ended.err[-300:]}"
    found = left(here)
    for name in sorted(found.keys() | whole.left.keys()):
        if name not in whole.left:
            return hit, f"{work.name}: litter: {name}"
        if (where := _difference(found.get(name), whole.left[name])) is not None:
            return hit, f"{work.name}: {name}: {where}"
    return hit, None


def _difference(got: Any, wanted: Any, where: str = "") -> str | None:
    """The first place at which two values differ, and how; None where they do not."""
    if isinstance(got, dict) and isinstance(wanted, dict) and got.keys() == wanted.keys():
        parts = ((key, got[key], wanted[key]) for key in wanted)
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        parts = zip(range(len(wanted)), got, wanted, strict=True)
    else:
        return None if got == wanted else f"{where or 'it'} is {str(got)[:150]} where {str(wanted)[:150]} belongs"
    return next((found for key, a, b in parts if (found := _difference(a, b, f"{where}/{key}"))), None)


def _again(work: Work, here: Path) -> list[str]:
    if work.begins[0].startswith("@"):  # no verb: it knows no options
        return work.begins
    again = work.goes_on if work.goes_on and (here / work.known_by).exists() else [*work.begins, "--overwrite"]
    return [*again, "--device", "cpu"]


def truths(root: Path, files: Path) -> dict[str, Whole]:
    """Every work once, undisturbed."""
    found = {}
    for work in WORKS:
        here = root / "whole"
        _fresh(here, files)
        verb = [] if work.begins[0].startswith("@") else ["--device", "cpu"]
        ended = run([*work.begins, *verb], here, root / "log", 120)
        if ended.status:
            raise RuntimeError(f"{work.name}: {ended.err[-2000:]}")
        found[work.name] = Whole(left(here), ended.seconds)
    return found


def _share(job: tuple[int, int, int, Path, dict[str, Whole], float]) -> dict[str, Any]:
    """One process's part of the kills."""
    number, jobs, seed, base, whole, until = job
    rng, root = random.Random(f"{seed}/{number}"), base / f"job{number}"
    root.mkdir()
    tried, faults, index = Counter(), [], number
    goal = int(os.environ["KOOPSIM_KILLS"])
    while sum(tried.values()) < goal // jobs + (number < goal % jobs) and time.monotonic() < until:
        work = WORKS[index % len(WORKS)]
        hit, wrong = killed(work, rng, root, base, whole[work.name])
        tried[work.name] += hit
        faults += [f"job {number}, {wrong}"] if wrong else []
        index += 1
    return {"tried": tried, "faults": faults}


def kill_campaign(kills: int, jobs: int, seed: int, minutes: float) -> dict[str, Any]:
    """So many kills, counted where they hit; what was found, as JSON values."""
    began = time.monotonic()
    warm_up()
    from PIL import Image

    os.environ["KOOPSIM_KILLS"] = str(kills)
    with tempfile.TemporaryDirectory(prefix="koopsim-kills-") as folder:
        base = Path(folder)
        Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).save(base / "p.png")
        rng, done = np.random.default_rng(seed), done_in(base / "log", base)
        own_data(base, rng, done)
        sounds_and_shapes(base)
        whole = truths(base, base)
        shares = [(n, jobs, seed, base, whole, began + 60 * minutes) for n in range(jobs)]
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            found = pool.map(_share, shares, chunksize=1)
    tried = sum((part["tried"] for part in found), Counter())
    faults = sorted(fault for part in found for fault in part["faults"])
    return {
        "seed": seed, "jobs": jobs, "kills": sum(tried.values()), "asked": kills, "by_work": dict(tried),
        "differ": sum("litter" not in f for f in faults), "litter": sum("litter" in f for f in faults),
        "faults": faults,
        "works": {work.name: {"argv": work.begins, "seconds": whole[work.name].seconds} for work in WORKS},
        "seconds": time.monotonic() - began,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=270)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after so long; what was tried counts")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    found = kill_campaign(given.kills, given.jobs, given.seed, given.minutes)
    told = f"{found['kills']} kills, {found['differ']} differ, {found['litter']} left litter; {found['seconds']:.0f} s"
    print("\n".join([*found["faults"], told]), file=sys.stderr)
    if given.out:
        from koopsim.runs import environment, write_json

        write_json(given.out, found | {"environment": environment()})
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
