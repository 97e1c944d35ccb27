"""Rows of Table 2 on one device, and how fast they train. Searches are `search_run.py`'s.

    python benchmarks/classification.py speed --out results/h200/classification-steps.json
    python benchmarks/classification.py train cifar10/sim-single mnist/mondeq-multi --seeds 0 1 2 --runs results/h200

`train` writes a run directory a seed.
"""

import argparse
import itertools
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.config import Run
from koopsim.nn import padding
from koopsim.presets import run_of
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.tasks import build_task
from koopsim.train import prepare, train
from koopsim.train.state import keep_model_only

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def label(run: Run) -> str:
    recipe, bandwidth = run.recipe, getattr(getattr(run.model, "fourier", None), "bandwidth", "")
    drop = f"/{recipe.step_size}" if recipe.schedule == "step" else ""
    return (
        f"batch {recipe.batch_size} lr {recipe.learning_rate:g} {recipe.schedule}{drop} {recipe.epochs} epochs "
        f"{bandwidth}".rstrip()
    )


def rounded(figures: dict) -> str:
    return json.dumps({k: float(f"{v:.5g}") for k, v in figures.items() if isinstance(v, float)})


# ---------------------------------------------------------------- training


def final(arguments: argparse.Namespace) -> None:
    began, tasks = time.monotonic(), {}
    for name, seed in itertools.product(arguments.presets, arguments.seeds):
        if time.monotonic() - began > arguments.seconds:
            print(f"out of time before {name}, seed {seed}", flush=True)
            continue
        run = replace(run_of(name), seed=seed)
        run = replace(run, task=replace(run.task, train=arguments.images))
        if arguments.epochs:
            run = replace(run, recipe=replace(run.recipe, epochs=arguments.epochs))
        folder = arguments.runs / f"{name.replace('/', '-').replace(':', '-')}-seed{seed}"
        directory = RunDirectory.create(folder, run, name, overwrite=True)
        try:
            if run.task not in tasks:
                tasks = {run.task: build_task(run.task, DEVICE)}
            result = train(run, directory, name, DEVICE, listen=Lines(name), task=tasks[run.task])
        except Exception as error:  # the next row must not suffer
            print(f"{name} seed {seed}: {type(error).__name__}: {error}", flush=True)
            continue
        keep_model_only(directory.checkpoint_file)
        if seed != arguments.seeds[0]:  # the weights of one seed are enough
            directory.checkpoint_file.unlink()
        pace = result["train_seconds"] / run.recipe.epochs
        print(f"{name} seed {seed}  {label(run)}  test {rounded(result['test'])}  {pace:.3f} s/epoch", flush=True)


class Lines:
    """An epoch's line now and then."""

    def __init__(self, name: str):
        self.name, self.last = name, 0.0

    def __call__(self, event: dict) -> None:
        if event["event"] == "epoch" and time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            print(f"  {self.name} {rounded({k: float(v) for k, v in event.items() if k != 'event'})}", flush=True)


# ---------------------------------------------------------------- speed


def speed(arguments: argparse.Namespace) -> None:
    rows = []
    for name, batch, precision, eager in itertools.product(
        arguments.presets, arguments.batch, arguments.precision, [False, True] if arguments.eager else [False]
    ):
        run = run_of(name)
        run = replace(run, precision=precision, recipe=replace(run.recipe, batch_size=batch))
        run = replace(run, task=replace(run.task, train=arguments.images, dataset=arguments.data or run.task.dataset))
        try:
            padding.TILE = arguments.tile
            if arguments.rows or arguments.parts:
                from koopsim.nn.kernels import norm as norm_kernels

                norm_kernels.ROWS = arguments.rows or norm_kernels.ROWS
                norm_kernels.PARTS = arguments.parts or norm_kernels.PARTS
            _, trainer = prepare(run, DEVICE, capture=False if eager else None)
            trainer.tune()
            trainer.run(0, min(70, trainer.steps_per_epoch))  # warm
            times = []
            for epoch in range(arguments.repeats):
                trainer.start_epoch(epoch)
                if DEVICE.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                trainer.run(0, trainer.steps_per_epoch)
                if DEVICE.type == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
        except Exception as error:
            print(f"{name} batch {batch} {precision}: {type(error).__name__}: {error}", flush=True)
            continue
        row = {"name": name, "batch": batch, "precision": precision, "captured": trainer.capture}
        row |= {"images": len(trainer.x), "seconds_per_epoch": sorted(times)[len(times) // 2]}
        row["milliseconds_per_step"] = 1e3 * row["seconds_per_epoch"] / trainer.steps_per_epoch
        row |= {k: float(v) / trainer.steps_per_epoch for k, v in trainer.diagnostics.items()}
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.profile:
            print(profile(trainer), flush=True)
    if arguments.out:
        write_json(arguments.out, {"rows": rows, "environment": environment()})


def profile(trainer) -> str:
    """Where the device's time goes in twenty steps."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    trainer.start_epoch(0)
    with profiled(activities=[ProfilerActivity.CUDA]) as kept:
        trainer.run(0, min(20, trainer.steps_per_epoch))
        torch.cuda.synchronize()
    events = sorted(kept.key_averages(), key=lambda e: -e.self_device_time_total)[:24]
    lines = [f"{e.self_device_time_total / 20:9.1f} us/step  {e.count / 20:6.1f} x  {e.key[:110]}" for e in events]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, work in (("train", final), ("speed", speed)):
        sub = verbs.add_parser(verb)
        sub.set_defaults(work=work)
        sub.add_argument("--images", type=int, help="use only so many training images")
        sub.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after this long")
        if verb == "train":
            sub.add_argument("presets", nargs="+")
            sub.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            sub.add_argument("--epochs", type=int)
            sub.add_argument("--runs", type=Path, required=True)
        if verb == "speed":
            sub.add_argument("--presets", nargs="+", default=["cifar10/sim-single"])
            sub.add_argument("--batch", type=int, nargs="+", default=[512])
            sub.add_argument("--precision", nargs="+", default=["bf16"])
            sub.add_argument("--data", help="other images than the preset's, such as an .npz of random ones")
            sub.add_argument("--eager", action="store_true", help="the uncaptured step too")
            sub.add_argument("--repeats", type=int, default=5)
            sub.add_argument("--tile", type=int, default=padding.TILE, help="channels are padded to these")
            sub.add_argument("--rows", type=int, help="pixels of a tile in the normalisation's kernels")
            sub.add_argument("--parts", type=int, help="programs that share one of its sums")
            sub.add_argument("--profile", action="store_true", help="and where the time goes")
            sub.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.work(arguments)


if __name__ == "__main__":
    main()
