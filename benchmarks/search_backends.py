"""Trials per minute of the two backends on one machine: the same search, stacked in one process and on Ray.

    python benchmarks/search_backends.py --repeats 3 --out results/search-backends.json

Each backend runs in a fresh process and is timed from its start to its last trial, Ray's start included: that is what a
user waits for. They take turns; the figures are those of the median run. `--horizon` and `--train` are those of copy
memory; the model is the paper's (17,294 parameters). Ray takes every core, the local backend one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path


def one(arguments: argparse.Namespace) -> None:
    """The search itself, in a process of its own; prints its figures as JSON."""
    began = time.monotonic()
    import torch

    from koopsim.presets import run_of
    from koopsim.search.directory import Search, SearchDirectory
    from koopsim.search.results import summary
    from koopsim.search.space import base_of, space_of
    from koopsim.spaces import Choice

    torch.set_num_threads(arguments.cores if arguments.one == "local" else 1)
    base = base_of(run_of(arguments.preset, "smoke"))
    base = replace(base, task=replace(base.task, horizon=arguments.horizon, train=arguments.train))
    space = replace(space_of(base, "smoke"), trials=arguments.trials, max_t=arguments.max_t, grace=1)
    space = replace(space, parameters=space.parameters | {"recipe.batch_size": Choice(tuple(arguments.batch))})
    search = Search(arguments.preset, base, space, backend=arguments.one)
    with tempfile.TemporaryDirectory() as folder:
        directory = SearchDirectory.create(folder, search)
        if arguments.one == "local":
            from koopsim.search.local import LocalSearch

            found = LocalSearch(search, directory, torch.device("cpu"))
        else:
            from koopsim.search.ray import RaySearch

            found = RaySearch(search, directory)
        trials = found.run()
    seconds = time.monotonic() - began
    figures = summary(trials, space, seconds)
    print(json.dumps({key: figures[key] for key in ("trials", "ended", "epochs", "seconds")}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="copy/sim-single")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=20)
    parser.add_argument("--train", type=int, default=100)
    parser.add_argument("--max-t", type=int, default=4)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--cores", type=int, default=1, help="threads of the local backend; Ray takes all cores")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--backends", nargs="+", default=["local", "ray"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments)
        return
    runs: dict[str, list[dict]] = {backend: [] for backend in arguments.backends}
    for _ in range(arguments.repeats):
        for backend in arguments.backends:
            environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.cores), RAY_USAGE_STATS_ENABLED="0")
            words = [sys.executable, __file__, "--one", backend, *sys.argv[1:]]
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            runs[backend].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(backend, json.dumps(runs[backend][-1]), flush=True)
    rows = {}
    for backend, done in runs.items():
        row = sorted(done, key=lambda run: run["seconds"])[len(done) // 2]
        minutes = row["seconds"] / 60
        rows[backend] = row | {"seconds_of_each": [run["seconds"] for run in done]}
        rows[backend] |= {"trials_per_minute": row["trials"] / minutes, "epochs_per_minute": row["epochs"] / minutes}
    settings = {k: v for k, v in vars(arguments).items() if k not in ("out", "one", "backends")}
    found = {"settings": settings, "backends": rows}
    if len(rows) == 2:
        found["ratio"] = rows["local"]["trials_per_minute"] / rows["ray"]["trials_per_minute"]
        print(f"local is {found['ratio']:.1f} times as fast")
    if arguments.out:
        from koopsim.runs import environment as recorded
        from koopsim.runs import write_json

        write_json(arguments.out, found | {"environment": recorded()})


if __name__ == "__main__":
    main()
