"""Searches side by side, each a `koopsim tune`: the two backends, and where a bandwidth should come from.

    python benchmarks/searches.py backends --repeats 3 --out results/search-backends.json
    python benchmarks/searches.py bandwidth copy/sim-two digits/sim-two --trials 24 --out results/search-bandwidth.json

backends   copy memory, small, in a fresh process each, timed from its start to its last trial, Ray's start included:
           what a user waits for. They take turns; the figures are those of the median run. Ray takes every core.
bandwidth  the same draws, with the bandwidth from the paper's range, from the median distance of lifted inputs, from
           a tenth to ten times that, and in the lift's own units; the best trial and the middle one after an epoch.
"""

import argparse
import csv
import json
import statistics
import tempfile
import time
from pathlib import Path

from verbs import koopsim, write

SMALL = ("--task.horizon", 20, "--task.train", 100, "--max-t", 4, "--grace", 1, "--search", "batch_size=1")
PSI = "model.fourier"
SOURCES = {
    "log 1e-3 1e3": ("bandwidth=log 1e-3 1e3", False), "median": ("bandwidth=median", False),
    "median 0.1 10": ("bandwidth=median 0.1 10", False), "normalised, 1": ("bandwidth=1", True),
    "normalised, log 0.1 10": ("bandwidth=log 0.1 10", True),
}  # fmt: skip


def tuned(*words: object, fresh: bool = False) -> tuple[dict, list[dict]]:
    """What a small search says, with its wall time, and its trials."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "search"
        found = koopsim("tune", *words, "--scale", "smoke", "--retrain", 0, "--out", out, fresh=fresh)
        with (out / "trials.csv").open(newline="") as file:
            return found | {"wall_seconds": time.monotonic() - began}, list(csv.DictReader(file))


def backends(arguments: argparse.Namespace) -> dict:
    runs: dict[str, list[dict]] = {"local": [], "ray": []}
    for _ in range(arguments.repeats):
        for backend, done in runs.items():
            words = ("--trials", arguments.trials, "--backend", backend, *SMALL)
            done.append(tuned("copy/sim-single", *words, fresh=True)[0])
    rows = {}
    for backend, done in runs.items():
        run = sorted(done, key=lambda run: run["wall_seconds"])[len(done) // 2]
        minutes = run["wall_seconds"] / 60
        rows[backend] = {key: run[key] for key in ("trials", "ended", "epochs", "wall_seconds")}
        rows[backend] |= {"seconds_of_each": [run["wall_seconds"] for run in done]}
        rows[backend] |= {"trials_per_minute": run["trials"] / minutes, "epochs_per_minute": run["epochs"] / minutes}
    return {"backends": rows, "ratio": rows["local"]["trials_per_minute"] / rows["ray"]["trials_per_minute"]}


def bandwidth(arguments: argparse.Namespace) -> dict:
    rows = []
    for name in arguments.presets:
        for source, (search, normalise) in SOURCES.items():
            units = f"--{PSI}.normalise" if normalise else f"--{PSI}.no-normalise"
            found, trials = tuned(name, units, "--trials", arguments.trials, "--search", f"{PSI}.{search}")
            first = [json.loads(trial["curve"])[0][-1] for trial in trials if trial["curve"] != "[]"]
            best = {key.rpartition(".")[2]: value for key, value in found["best"]["values"].items()}
            metric = found["metric"]
            row = {"preset": name, "bandwidth": source, "metric": metric, "best": found["best"][metric]}
            row |= {"median_after_one_epoch": statistics.median(first), "bandwidth_of_best": best.get("bandwidth")}
            rows.append(row | {"learning_rate_of_best": best["learning_rate"], "trials": len(trials)})
    return {"scale": "smoke", "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for work in (backends, bandwidth):
        sub = verbs.add_parser(work.__name__)
        sub.set_defaults(work=work)
        sub.add_argument("--trials", type=int, default=64 if work is backends else 24)
        sub.add_argument("--out", type=Path)
        if work is backends:
            sub.add_argument("--repeats", type=int, default=3)
        else:
            sub.add_argument("presets", nargs="+")
    arguments = parser.parse_args()
    write(arguments.out, arguments.work(arguments))


if __name__ == "__main__":
    main()
