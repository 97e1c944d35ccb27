"""Image classifiers on a CPU that multiplies bfloat16: a step in it, in float32 and by the paper's code; trials of a
search one by one and in a stack; what both precisions learn.

    KOOPSIM_PAPER_CODE=... python benchmarks/bf16_turns.py steps trials --out results/bf16-turns-cpu.json   quiet cores
    python benchmarks/bf16_turns.py learnt --out results/bf16-learnt.json

Each side has a process, as it trains, the paper's as its script runs. `learnt` is about valid images: it looks at no
test image.
"""

import argparse
import os
import statistics
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from verbs import write

from koopsim.bench.apart import apart
from koopsim.bench.machine import measured_machine
from koopsim.bench.paper import their_model, their_steps
from koopsim.bench.setting import Setting, Sizes, model_of
from koopsim.bench.timing import Work, measure
from koopsim.bench.training import image_of, image_stepping
from koopsim.engine.drive import as_it_trains
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.errors import KoopsimError
from koopsim.nn.products import multiplies_bf16
from koopsim.presets import run_of
from koopsim.tasks import build_task

CPU = torch.device("cpu")
STEPS = (("cifar10/sim-single", 128), ("cifar10/sim-single", 512), ("cifar10/sim-two", 128), ("mnist/sim-single", 128),
         ("digits/sim-single", 64), ("cifar10/mdeq", 32))  # fmt: skip
THEIRS = ("cifar10/sim-single",)  # beside the paper's code
TRIALS = ("digits/sim-single", "mnist/sim-single", "cifar10/sim-single")
LEARNT = ("cifar10/sim-single", 10_000, 8)  # a preset, so many images, so many epochs


def a_step(name: str, batch: int, side: str) -> Work:
    setting = Setting(CPU, measured_machine(CPU, 0.01), Sizes(), "bf16" if side == "bf16" else "float32")
    torch.manual_seed(0)
    given = image_stepping(model_of(name, CPU, trained=False), setting, batch, image_of(name))
    if side != "paper":
        return given.maker(setting, False)()
    return their_steps(their_model(name), F.cross_entropy, given.x, given.y, batch)()


def inside(side: str) -> AbstractContextManager[None]:
    return nullcontext() if side == "paper" else as_it_trains(CPU)


def steps(turns: int) -> list[dict]:
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, batch in STEPS:
            sides = ("bf16", "float32", *(("paper",) if name in THEIRS else ()))
            makers = {side: apart(partial(a_step, name, batch, side), partial(inside, side)) for side in sides}
            seconds = {side: timing.seconds for side, timing in measure(makers, CPU, turns).items()}
            row = {"model": name, "batch": batch, "threads": threads, "seconds": seconds}
            rows.append(row | {"times bf16": {side: own / seconds["bf16"] for side, own in seconds.items()}})
            print(rows[-1], flush=True)
    return rows


def an_epoch(name: str, trials: int, precision: str) -> Work:
    """Four steps of so many models in a stack: what a trial of a search does, with random images."""
    run = replace(run_of(name), precision=precision, train_on="train")
    run = replace(run, task=replace(run.task, train=285, test=10), recipe=replace(run.recipe, batch_size=64))
    runs = [replace(run, seed=seed) for seed in range(trials)]
    stack = Stacked(runs, build_task(run.task, CPU), CPU, 1, Way(capture=False))
    stack.begin_epoch()

    def work() -> None:
        stack.part.rewind()
        stack.advance(0, 4)

    return work


def trials(turns: int, together: int = 8) -> list[dict]:
    """Seconds of a model's step alone and of one in a stack, by one thread."""
    torch.set_num_threads(1)
    rows = []
    for name in TRIALS:
        for precision in ("float32", "bf16"):
            makers = {
                str(count): apart(partial(an_epoch, name, count, precision), partial(as_it_trains, CPU))
                for count in (1, together)
            }
            found = measure(makers, CPU, turns)
            each = {count: timing.seconds / int(count) / 4 for count, timing in found.items()}
            row = {"model": name, "precision": precision, "seconds": each}
            rows.append(row | {"stack": each[str(together)] / each["1"]})
            print(rows[-1], flush=True)
    return rows


def learnt(seeds: int) -> list[dict]:
    """Accuracy on valid images after a short training, a row a precision."""
    name, images, epochs = LEARNT
    base = run_of(name)
    base = replace(
        base, task=replace(base.task, train=images, test=10), train_on="train",
        recipe=replace(base.recipe, epochs=epochs, batch_size=64),
    )  # fmt: skip
    task, rows = build_task(base.task, CPU), []
    for precision in ("float32", "bf16"):
        found = []
        for seed in range(seeds):
            stack = Stacked([replace(base, precision=precision, seed=seed)], task, CPU, epochs, Way(capture=False))
            with as_it_trains(CPU):
                for _ in range(epochs):
                    stack.begin_epoch()
                    stack.advance(0, stack.epoch_steps)
                    stack.finish_epoch()
            found.append(stack.figures(0)["accuracy"])
            print(precision, seed, found[-1], flush=True)
        rows.append({"precision": precision, "accuracy": found, "mean": statistics.mean(found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("steps", "trials", "learnt"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not multiplies_bf16():
        raise KoopsimError("This processor does not multiply bfloat16 by itself; it needs AVX512-BF16 or AMX.")
    table = {"steps": partial(steps, arguments.turns), "trials": partial(trials, arguments.turns)}
    table["learnt"] = partial(learnt, arguments.seeds)
    rows = {what: table[what]() for what in arguments.what}
    write(arguments.out, {"machine": measured_machine(CPU).name, "load": os.getloadavg()[0], **rows})


if __name__ == "__main__":
    main()
