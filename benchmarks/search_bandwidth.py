"""Where should the bandwidth come from? The paper's log-uniform range against the median of the data.

    PYTHONPATH=src python benchmarks/search_bandwidth.py copy/sim-two digits/sim-two --trials 16 --out bandwidth.json

The same search again and again, with the bandwidth drawn from [1e-3, 1e3), fixed at the median distance of lifted
inputs, drawn from a tenth to ten times that, and in the lift's own units (`fourier.normalise`), fixed at 1 and drawn
from a tenth to ten; all other draws are the same. For each: the best trial and the middle one.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.search import Choice, LocalSearch, LogUniform, Median, Search, SearchDirectory, base_of, space_of
from koopsim.search.results import ranked, value_of
from koopsim.search.space import with_values
from koopsim.spaces import BANDWIDTH
from koopsim.train import pick_device

SOURCES = {
    "log 1e-3 1e3": (LogUniform(1e-3, 1e3), False),
    "median": (Median(), False),
    "median 0.1 10": (Median(0.1, 10), False),
    "normalised, 1": (Choice((1.0,)), True),
    "normalised, log 0.1 10": (LogUniform(0.1, 10), True),
}
NORMALISE = "model.fourier.normalise"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--scale", choices=["paper", "smoke"], default="smoke")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    rows = []
    for name in arguments.presets:
        for source, (parameter, normalise) in SOURCES.items():
            base = base_of(replace(run_of(name, arguments.scale), seed=arguments.seed))
            base = with_values(base, {NORMALISE: normalise})
            space = replace(space_of(base, arguments.scale), trials=arguments.trials)
            space = replace(space, parameters=space.parameters | {BANDWIDTH: parameter})
            search = Search(name, base, space, arguments.seed)
            with tempfile.TemporaryDirectory() as folder:
                trials = LocalSearch(search, SearchDirectory.create(folder, search), device).run()
            order = ranked(trials, space)
            figures = [t.curve[-1][space.metric] for t in order]
            first = [t.curve[0][space.metric] for t in trials if t.curve]  # before anything was pruned
            row = {"preset": name, "bandwidth": source, "metric": space.metric, "best": figures[0]}
            row |= {
                "median_after_one_epoch": statistics.median(first),
                "bandwidth_of_best": value_of(order[0], BANDWIDTH),
            }
            row |= {"learning_rate_of_best": order[0].run.recipe.learning_rate, "trials": len(trials)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.out:
        write_json(arguments.out, {"scale": arguments.scale, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
