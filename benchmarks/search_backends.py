"""Trials a minute of `koopsim tune` on one machine: local, on Ray with a stack a worker, on Ray with a trial a worker.

    python benchmarks/search_backends.py --repeats 3 --out results/search-backends.json

Copy memory, small, in a fresh process each, timed from its start to its last trial, Ray's start included: what a user
waits for. They take turns; the figures are those of the median run. Ray takes every core.
"""

import argparse
import tempfile
import time
from pathlib import Path

from verbs import koopsim, write

SMALL = ("--task.horizon", 20, "--task.train", 100, "--max-t", 4, "--grace", 1, "--search", "batch_size=1")


WAYS = {"local": ("local",), "ray, stacks": ("ray",), "ray, a trial each": ("ray", "--engine", "separate")}


def tuned(way: str, trials: int) -> dict:
    """What a small search says, with its wall time."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = ("--scale", "smoke", "--retrain", 0, "--trials", trials, *SMALL, "--backend", *WAYS[way])
        found = koopsim("tune", "copy/sim-single", *words, "--out", Path(folder) / "search", fresh=True)
    return found | {"wall_seconds": time.monotonic() - began}


def backends(arguments: argparse.Namespace) -> dict:
    runs: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(arguments.repeats):
        for backend, done in runs.items():
            done.append(tuned(backend, arguments.trials))
            write(arguments.out, {"so_far": {way: [run["wall_seconds"] for run in done] for way, done in runs.items()}})
    rows = {}
    for backend, done in runs.items():
        run = sorted(done, key=lambda run: run["wall_seconds"])[len(done) // 2]
        minutes = run["wall_seconds"] / 60
        rows[backend] = {key: run[key] for key in ("trials", "ended", "epochs", "wall_seconds")}
        rows[backend] |= {"seconds_of_each": [run["wall_seconds"] for run in done]}
        rows[backend] |= {"trials_per_minute": run["trials"] / minutes, "epochs_per_minute": run["epochs"] / minutes}
    pace = {way: row["trials_per_minute"] for way, row in rows.items()}
    plain = pace["ray, a trial each"]
    return {"backends": rows, "ratio": pace["local"] / plain, "stacks_against_trials": pace["ray, stacks"] / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    write(arguments.out, backends(arguments))


if __name__ == "__main__":
    main()
