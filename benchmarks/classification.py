"""Table 2 on one device: choose on the validation images, then train three seeds on all of them.

    python benchmarks/classification.py speed --out results/h200/classification-steps.json
    python benchmarks/classification.py search cifar10/sim-single --batch 64 128 --lr 3e-3 1e-2 \
        --schedule onecycle step --epochs 20 40 --out results/h200/search-cifar10-sim-single.json
    python benchmarks/classification.py train cifar10/sim-single mnist/mondeq-multi --seeds 0 1 2 --runs results/h200

`search` trains its trials side by side, each captured on a stream of its own, judged by their last validation accuracy.
`train` writes a run directory a seed; `--from SEARCH.json ...` takes the best trial of a search in place of the preset.
"""

import argparse
import itertools
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.config import Model, Run, from_dict, to_dict
from koopsim.nn import padding
from koopsim.presets import run_of
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.tasks import Task, build_task
from koopsim.train import prepare, train
from koopsim.train.state import keep_model_only

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUND = 4  # steps a trial queues before it is the next one's turn: more would fill the queue, and none would overlap


# ---------------------------------------------------------------- search


def grid(arguments: argparse.Namespace) -> list[Run]:
    base = replace(run_of(arguments.preset), train_on="train")
    base = replace(base, task=replace(base.task, train=arguments.images))
    runs = []
    axes = [arguments.batch, arguments.lr, arguments.schedule, arguments.epochs, arguments.bandwidth or [None]]
    if arguments.like and arguments.like.exists():  # another search has settled all but learning rate and bandwidth
        found = from_dict(Run, json.loads(arguments.like.read_text())["trials"][0]["run"]).recipe
        lrs = [found.learning_rate * factor for factor in arguments.factors]
        axes[:4] = [[found.batch_size], lrs, [found.schedule], [found.epochs]]
        arguments.drop = found.step_size / found.epochs
    for batch, lr, schedule, epochs, bandwidth in itertools.product(*axes):
        recipe = replace(base.recipe, batch_size=batch, learning_rate=lr, schedule=schedule, epochs=epochs)
        if schedule == "step":
            recipe = replace(recipe, step_size=max(1, round(epochs * arguments.drop / 5) * 5))
        for name in ("weight_decay", "label_smoothing", "average", "cutout"):
            if getattr(arguments, name) is not None:
                recipe = replace(recipe, **{name: getattr(arguments, name)})
        model = base.model
        if bandwidth is not None:
            model = replace(model, fourier=replace(model.fourier, bandwidth=bandwidth))
        runs.append(replace(base, model=model, recipe=recipe))
    return runs


class Trial:
    """One run on its own stream."""

    def __init__(self, run: Run, task: Task):
        self.run, self.task = run, task
        self.stream = torch.cuda.Stream() if DEVICE.type == "cuda" else None
        with torch.cuda.stream(self.stream):
            _, self.trainer = prepare(run, DEVICE, task=task)
            self.trainer.warm_up()
            if self.trainer.capture and len(self.trainer.x) % self.trainer.size:
                self.trainer.graph(len(self.trainer.x) % self.trainer.size)
        self.figures: dict[str, float] = {}

    def start(self, epoch: int) -> None:
        with torch.cuda.stream(self.stream):
            self.trainer.start_epoch(epoch)

    def steps(self, first: int) -> None:
        """Queue a few steps; the host goes on to the next trial while the device works."""
        last = min(first + ROUND, self.trainer.steps_per_epoch)
        if first < last:
            with torch.cuda.stream(self.stream):
                self.trainer.run(first, last)

    def judge(self) -> None:
        with torch.cuda.stream(self.stream):
            self.figures = self.task.evaluate(self.trainer.result(), "valid")
            self.figures["train_loss"] = float(self.trainer.losses.double().mean())


def search(arguments: argparse.Namespace) -> None:
    runs, done, began = grid(arguments), [], time.monotonic()
    task = build_task(runs[0].task, DEVICE)
    for start in range(0, len(runs), arguments.at_once):
        if time.monotonic() - began > arguments.seconds:
            print(f"out of time: {len(runs) - start} trials were not begun", flush=True)
            break
        trials = [Trial(run, task) for run in runs[start : start + arguments.at_once]]
        for epoch in range(max(t.run.recipe.epochs for t in trials)):
            going = [trial for trial in trials if epoch < trial.run.recipe.epochs]
            for trial in going:
                trial.start(epoch)
            for first in range(0, max(trial.trainer.steps_per_epoch for trial in going), ROUND):
                for trial in going:
                    trial.steps(first)
        for trial in trials:
            trial.judge()
            print(f"{time.monotonic() - began:6.1f} s  {label(trial.run)}  {rounded(trial.figures)}", flush=True)
        done += [{"run": to_dict(t.run), "valid": t.figures} for t in trials]
    done.sort(key=lambda row: -row["valid"]["accuracy"])
    write_json(arguments.out, {"seconds": time.monotonic() - began, "trials": done, "environment": environment()})


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


def chosen(name: str, searches: list[Path]) -> Run:
    """The preset, with the recipe and bandwidth of the best trial where a search of that model is among `searches`."""
    run = run_of(name)
    for file in searches:
        if file.exists():
            best = from_dict(Run, json.loads(file.read_text())["trials"][0]["run"])
            alike = best.task.dataset == run.task.dataset and best.recipe.augments == run.recipe.augments
            if alike and without_bandwidth(best) == without_bandwidth(run):
                run = replace(run, model=best.model, recipe=best.recipe)
    return run


def without_bandwidth(run: Run) -> Model:
    fourier = getattr(run.model, "fourier", None)
    return replace(run.model, fourier=replace(fourier, bandwidth=1.0)) if fourier else run.model


def final(arguments: argparse.Namespace) -> None:
    began, tasks = time.monotonic(), {}
    for name, seed in itertools.product(arguments.presets, arguments.seeds):
        if time.monotonic() - began > arguments.seconds:
            print(f"out of time before {name}, seed {seed}", flush=True)
            continue
        run = replace(chosen(name, arguments.searches), seed=seed)
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
                from koopsim.nn import norm_kernels

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
    for verb, work in (("search", search), ("train", final), ("speed", speed)):
        sub = verbs.add_parser(verb)
        sub.set_defaults(work=work)
        sub.add_argument("--images", type=int, help="use only so many training images")
        sub.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after this long")
        if verb == "search":
            sub.add_argument("preset")
            sub.add_argument("--batch", type=int, nargs="+", default=[64])
            sub.add_argument("--lr", type=float, nargs="+", default=[5e-3])
            sub.add_argument("--schedule", nargs="+", default=["onecycle"])
            sub.add_argument(
                "--drop", type=float, default=0.4, help="the step schedule drops there: a share of the epochs"
            )
            sub.add_argument("--epochs", type=int, nargs="+", default=[20])
            sub.add_argument("--like", type=Path, help="take batch, schedule and epochs from the best of this search")
            sub.add_argument("--factors", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="and its lr times these")
            sub.add_argument("--bandwidth", type=float, nargs="+")
            for name in ("--weight-decay", "--label-smoothing", "--average"):
                sub.add_argument(name, type=float)
            sub.add_argument("--cutout", type=int)
            sub.add_argument("--at-once", type=int, default=8)
            sub.add_argument("--out", type=Path, required=True)
        if verb == "train":
            sub.add_argument("presets", nargs="+")
            sub.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            sub.add_argument("--epochs", type=int)
            sub.add_argument("--runs", type=Path, required=True)
            sub.add_argument("--from", dest="searches", type=Path, nargs="*", default=[])
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
