"""Pictures as networks on a CPU: a step network by network, as a stack, in bfloat16 and by the paper's code, in turns;
what bfloat16 learns.

    KOOPSIM_PAPER_CODE=... python benchmarks/picture_cpu_turns.py steps --out results/picture-cpu-turns.json   # quiet
    python benchmarks/picture_cpu_turns.py learnt --out results/picture-bf16-learnt.json

Each side has a process, as it trains, the paper's as its script runs. `learnt` is about valid pixels of pictures that
are in no table: it looks at no test pixel.
"""

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from bf16_turns import CPU, inside
from torch.nn import functional as F
from verbs import write

from koopsim.bench.apart import apart
from koopsim.bench.machine import measured_machine
from koopsim.bench.paper import their_model, their_steps
from koopsim.bench.stacks import random_pictures
from koopsim.bench.timing import Work, measure
from koopsim.config import ImageRegressionConfig
from koopsim.engine.drive import as_it_trains
from koopsim.engine.gradients import InTurn
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.kinds import model_kind
from koopsim.nn.products import multiplies_bf16
from koopsim.presets import run_of
from koopsim.tasks import ImageRegression
from koopsim.tasks.image_regression import PAPER_SIZE

STEPS = (("image/sim-rff", 1, 512), ("image/sim-two", 1, 512), ("image/sim-rff", 4, 256), ("image/sim-rff", 16, 64))
THEIRS = "image/sim-rff"  # beside the paper's code
LEARNT = ("photographs", "text")  # of seed 11, two pictures each
SIZE, LOOKS, STEPS_A_LOOK = 128, 5, 100
MODELS = ("image/sim-rff", "image/sim-two")


def a_step(name: str, count: int, size: int, side: str) -> Work:
    torch.manual_seed(0)
    task = random_pictures(count, size, CPU)
    if side == "paper":
        points, colours = (t.view(1, *t.shape[-2:]) for t in task.split("train"))
        return their_steps(their_model(name), F.mse_loss, points, colours, 1)()
    run = replace(run_of(name), precision="bf16" if side == "bf16" else "float32")
    part = Stacked([run], task, CPU, 1, Way(capture=False)).part
    if side == "stacked":
        part.gradients = cast(InTurn, part.gradients).stacked
    part.begin_epoch()

    def work() -> None:
        part.rewind()
        part.advance(0, 1)

    return work


def steps(turns: int) -> list[dict]:
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, count, size in STEPS:
            sides = ["float32", "stacked"] + ["bf16"] * multiplies_bf16() + ["paper"] * ((name, count) == (THEIRS, 1))
            makers = {side: apart(partial(a_step, name, count, size, side), partial(inside, side)) for side in sides}
            seconds = {side: timing.seconds for side, timing in measure(makers, CPU, turns).items()}
            row = {"model": name, "pictures": count, "size": size, "threads": threads, "seconds": seconds}
            rows.append(row | {"times float32": {s: own / seconds["float32"] for s, own in seconds.items()}})
            print(rows[-1], flush=True)
    return rows


def learnt(seeds: int) -> list[dict]:
    """PSNR of valid pixels, the mean of several looks, each picture's own."""
    rows = []
    for name in MODELS:
        for pictures in LEARNT:
            config = ImageRegressionConfig(pictures, SIZE, count=2, seed=11, steps_an_epoch=STEPS_A_LOOK)
            task, found = ImageRegression(config), {}
            for precision in ("float32", "bf16"):
                for seed in range(seeds):
                    base = run_of(name)
                    model = model_kind(base.model).coarser(base.model, PAPER_SIZE / SIZE)
                    run = replace(base, model=model, task=config, precision=precision, seed=seed)
                    stack, looks = Stacked([run], task, CPU, LOOKS, Way(capture=False)), []
                    with as_it_trains(CPU):
                        for _ in range(LOOKS):
                            stack.begin_epoch()
                            stack.advance(0, stack.epoch_steps)
                            stack.finish_epoch()
                            looks.append([own["psnr"] for own in stack.judged([0, 1], "valid", [0, 1])])
                    found.setdefault(precision, []).append(looks)
                    print(name, pictures, precision, seed, looks[-1], flush=True)
            last = {p: torch.tensor(own)[:, -3:].mean(1).flatten() for p, own in found.items()}
            apart_by = last["bf16"] - last["float32"]
            about = {"model": name, "pictures": pictures, "size": SIZE, "steps": LOOKS * STEPS_A_LOOK, "psnr": found}
            rows.append(about | {"bf16 less float32": {"mean": float(apart_by.mean()), "std": float(apart_by.std())}})
            print(rows[-1]["bf16 less float32"], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("steps", "learnt"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    table = {"steps": partial(steps, arguments.turns), "learnt": partial(learnt, arguments.seeds)}
    rows = {what: table[what]() for what in arguments.what}
    write(arguments.out, {"machine": measured_machine(CPU).name, "load": os.getloadavg()[0], **rows})


if __name__ == "__main__":
    main()
