"""Seconds of training until CIFAR-10's SIM (single) names as many images right as the paper's: 79.4%.

    python benchmarks/time_to_accuracy.py --out results/h200/time-to-accuracy.json

The shortest recipe is chosen on the validation images: epochs from few to many, the first number of epochs at which a
trial reaches the target and a margin for the noise of 5,000 images. Three seeds then train on all 50,000 images; their
test accuracy is looked at once, at the end. `seconds` are those a run says of itself: all its steps, not the compiling,
not the evaluation; `process_seconds` those of a fresh `koopsim train`, from the start of Python to its end, kernels and
bytecode kept by one before it. With --chosen FILE the recipe is the one that an earlier record of this script found.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

from verbs import koopsim, trained, write

PLAIN = ("--recipe.schedule", "cosine", "--recipe.warm-up", 150, "--recipe.cutout", 0, "--recipe.average", 0)
MARGIN, RATES, SHIFTS = 0.006, (8e-3, 1.5e-2), (0, 2)
PLAIN += ("--recipe.label-smoothing", 0, "--recipe.batch-size", 512)


def chosen(arguments: argparse.Namespace, preset: list) -> tuple[list[dict], list]:
    """(every trial, the options of the first one that reaches the target and its margin, or else of the best)."""
    trials, tried = [], []
    for epochs in arguments.epochs:
        for rate, shift in itertools.product(RATES, SHIFTS):
            words = ["--recipe.epochs", epochs, "--recipe.learning-rate", rate, "--recipe.shift", shift]
            result = trained(*preset, *PLAIN, *words, "--train-on", "train")
            figures = {"accuracy": result["valid"]["accuracy"], "seconds": result["train_seconds"]}
            trials.append(figures | {"run": result["run"]})
            tried.append(words)
        best = max(range(len(trials)), key=lambda i: trials[i]["accuracy"])
        if trials[best]["accuracy"] >= arguments.target + MARGIN:
            break
    return trials, tried[best]


def recorded(file: Path) -> list:
    """The options that an earlier record settled on."""
    recipe = json.loads(file.read_text())["rows"][0]["run"]["recipe"]
    named = {"epochs": "epochs", "learning_rate": "learning-rate", "shift": "shift"}
    return [word for key, name in named.items() for word in (f"--recipe.{name}", recipe[key])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["cifar10/sim-single", "--recipe", "best"])
    parser.add_argument("--target", type=float, default=0.794)
    parser.add_argument("--epochs", type=int, nargs="+", default=[12, 15, 18, 22, 26, 30])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--chosen", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    trials, words = ([], recorded(arguments.chosen)) if arguments.chosen else chosen(arguments, arguments.preset)
    rows, begin = [], ["train", *arguments.preset, *PLAIN]
    koopsim(*begin, "--recipe.epochs", 1, "--out", Path(tempfile.mkdtemp()) / "run", fresh=True)
    for seed in arguments.seeds:
        began, out = time.perf_counter(), Path(tempfile.mkdtemp()) / "run"
        result = koopsim(*begin, *words, "--seed", seed, "--out", out, fresh=True)
        row = {"accuracy": result["test"]["accuracy"], "seconds": result["train_seconds"], "seed": seed}
        row |= {"process_seconds": time.perf_counter() - began, "set_up_seconds": result["set_up_seconds"]}
        rows.append(row | {"run": result["run"]})
        about = {"preset": " ".join(arguments.preset), "target": arguments.target, "margin": MARGIN}
        write(arguments.out, about | {"rows": rows, "trials": trials})


if __name__ == "__main__":
    main()
