"""How fast the verbs are: seconds an epoch, seconds of a set of pictures, steps a second of a stack, smoke sizes.

    python benchmarks/speed.py epoch cifar10/sim-single --batches 512 64 --out classification-steps.json
    python benchmarks/speed.py epoch cifar10/mondeq-single --batches 128 --precision tf32 --out mondeq-steps.json
    python benchmarks/speed.py pictures FOLDER --precisions bf16 tf32 --out image-timing.json
    python benchmarks/speed.py stack --out search-stack.json
    python benchmarks/speed.py smoke --repeats 5 --out smoke.json           # on a CPU, minutes
    python benchmarks/speed.py smoke --beside OTHER/.venv/bin/python        # another checkout's, in turns

Seconds are those a run says of itself: its steps, without compiling, reading and evaluating. An epoch's are the median
over epochs, smoke sizes' the least of the repeats, which take turns.
"""

import argparse
import itertools
import statistics
import sys
from pathlib import Path

from verbs import koopsim, trained, write

SMOKE = ("copy/sim-single", "digits/sim-single", "image/sim-rff")


def epoch(arguments: argparse.Namespace) -> dict:
    rows = []
    for name, batch in itertools.product(arguments.presets, arguments.batches):
        words = ["--recipe.batch-size", batch, "--recipe.epochs", arguments.epochs, "--precision", arguments.precision]
        result = trained(name, *words, *arguments.more)
        times = [0.0, *(line["seconds"] for line in result["metrics"])]
        seconds = statistics.median(after - before for before, after in itertools.pairwise(times))
        row = {"model": name, "batch": batch, "precision": arguments.precision}
        row |= {"mode": "captured" if result["captured"] else "eager", "seconds_per_epoch": seconds}
        row["ms"] = 1e3 * seconds * arguments.epochs / result["steps"]
        rows.append(row | {k: v for k, v in result["metrics"][-1].items() if k.endswith("solver_steps")})
    return {"rows": rows}


def pictures(arguments: argparse.Namespace) -> dict:
    rows, found = [], {}
    for precision in arguments.precisions:
        words = ["--task.pictures", arguments.folder, "--recipe.epochs", 20, "--precision", precision]
        result = trained("image/sim-rff", *words, *arguments.more)
        count, steps = len(result["pictures"]), round(1e3 * result["train_seconds"] / result["milliseconds_per_step"])
        found = {"pictures": count, "M": result["run"]["model"]["fourier"]["features"], "steps": steps}
        keys = ("train_seconds", "set_up_seconds", "captured", "milliseconds_per_step", "test")
        rows.append({"precision": precision} | {key: result.get(key) for key in keys})
    return found | {"rows": rows}


def stack(arguments: argparse.Namespace) -> dict:
    found = koopsim("bench", "stack")
    ours = found["comparisons"][0]["ours"]
    models = int(ours["name"].split()[0])
    row = {"kind": "stack", "models": models, "milliseconds_per_step": 1e3 * ours["seconds"]}
    return {"rows": [row | {"model_steps_per_second": models / ours["seconds"], "peak_bytes": ours["peak_bytes"]}]}


def smoke(arguments: argparse.Namespace) -> dict:
    pythons = {"here": sys.executable} | ({"beside": arguments.beside} if arguments.beside else {})
    times: dict[tuple[str, str], list[float]] = {}
    for _, name, (which, python) in itertools.product(range(arguments.repeats), SMOKE, pythons.items()):
        result = trained(name, "--scale", "smoke", "--device", "cpu", python=python)
        times.setdefault((name, which), []).append(result["train_seconds"])
    rows = [{"name": name, "of": which, "seconds": min(t), "of_each": t} for (name, which), t in times.items()]
    for row in rows:
        if arguments.beside:
            row["of_beside"] = row["seconds"] / min(times[row["name"], "beside"])
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for work in (epoch, pictures, stack, smoke):
        sub = verbs.add_parser(work.__name__)
        sub.set_defaults(work=work)
        sub.add_argument("--out", type=Path)
        if work is smoke:
            sub.add_argument("--repeats", type=int, default=5)
            sub.add_argument("--beside", help="the Python of another checkout's environment")
        if work is epoch:
            sub.add_argument("presets", nargs="+")
            sub.add_argument("--batches", type=int, nargs="+", default=[512])
            sub.add_argument("--precision", default="bf16")
            sub.add_argument("--epochs", type=int, default=5)
        if work is pictures:
            sub.add_argument("folder")
            sub.add_argument("--precisions", nargs="+", default=["bf16"])
        if work in (epoch, pictures):
            sub.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="more options of koopsim train")
    arguments = parser.parse_args()
    write(arguments.out, arguments.work(arguments))


if __name__ == "__main__":
    main()
