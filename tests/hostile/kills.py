"""Killed at any moment: what is run again, or resumed, ends with the figures of one that was not, and leaves no litter.

fork a verb -> kill -9 after a random time -> the same command, or --resume -> figures equal, no half-written file
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus import COPY, FIT, IMAGE
from warm import begin, run, wait

LONG = ["--recipe.epochs", "6"]


@dataclass(frozen=True)
class Work:
    """A verb that writes a folder: how it begins, how it goes on, and the file whose presence lets it go on."""

    name: str
    begins: list[str]
    goes_on: list[str] | None
    known_by: str


WORKS = [
    Work("train", ["train", *COPY, *LONG, "--out", "o"], ["train", "--resume", "o"], "o/config.json"),
    Work("train pictures", ["train", *IMAGE, *LONG, "--out", "o"], ["train", "--resume", "o"], "o/config.json"),
    Work(
        "tune",
        ["tune", *COPY, "--trials", "3", "--max-t", "2", "--out", "o"],
        ["tune", "--resume", "o"],
        "o/search.json",
    ),
    Work("fit", ["fit", "p.png", *FIT, "--steps", "60", "--out", "o"], None, "o/p/network.safetensors"),
]


def outcome(folder: Path) -> Any:
    """What must be the same: figures, not times."""
    where = folder / "o" / "p" / "result.json" if (folder / "o" / "p").exists() else folder / "o" / "result.json"
    said = json.loads(where.read_text())
    kept = {key: said.get(key) for key in ("test", "valid", "psnr", "network_bytes", "steps")}
    if "metrics" in said:
        kept["metrics"] = [{k: v for k, v in line.items() if k != "seconds"} for line in said["metrics"]]
    if isinstance(said.get("best"), dict):
        kept["best"] = {k: v for k, v in said["best"].items() if k != "seconds"}
    return kept


def killed(work: Work, rng: random.Random, root: Path, files: Path, truth: tuple[Any, float]) -> str | None:
    """What went wrong, in words; None where nothing did."""
    wanted, duration = truth
    here = root / "killed"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    shutil.copy(files / "p.png", here / "p.png")
    log = root / "log"
    for _ in range(rng.randint(1, 2)):
        again = work.goes_on if work.goes_on and (here / work.known_by).exists() else [*work.begins, "--overwrite"]
        pid = begin([*again, "--device", "cpu"], here, log)
        time.sleep(rng.random() * duration)
        os.kill(pid, signal.SIGKILL)
        wait(pid, log, 5)
    again = work.goes_on if work.goes_on and (here / work.known_by).exists() else [*work.begins, "--overwrite"]
    ended = run([*again, "--device", "cpu"], here, log, 60)
    if ended.status or ended.crashed:
        return f"{' '.join(again)}: status {ended.status}: {ended.err[-300:]}"
    if outcome(here) != wanted:
        return f"{work.name}: {outcome(here)} where {wanted} belongs"
    litter = [str(path) for path in here.rglob(".*koopsim-part")]
    return f"{work.name} left {litter[0]}" if litter else None


def truths(root: Path, files: Path) -> dict[str, tuple[Any, float]]:
    """(figures, seconds) of every work that nobody kills."""
    found = {}
    for work in WORKS:
        here = root / "whole"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        shutil.copy(files / "p.png", here / "p.png")
        ended = run([*work.begins, "--device", "cpu"], here, root / "log", 120)
        if ended.status:
            raise RuntimeError(ended.err[-2000:])
        found[work.name] = (outcome(here), ended.seconds)
    return found
