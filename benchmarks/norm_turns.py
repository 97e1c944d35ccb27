"""A CIFAR-10 training step on a CPU: with our BatchNorm, with PyTorch's, by the paper's code, in turns of random order.

    KOOPSIM_PAPER_CODE=... python benchmarks/norm_turns.py --out results/norm-turns-cpu.json

`koopsim bench paper` has five turns of two sides; here are three sides and more turns, so that 4% can be seen.
"""

import argparse
import os
import random
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from verbs import write

from koopsim.bench.machine import measured_machine
from koopsim.bench.paper import IMAGES, their_model, their_steps
from koopsim.bench.setting import Setting, Sizes, model_of
from koopsim.bench.training import image_stepping
from koopsim.nn import vgg


def by_twin(x, running, weight, bias, momentum, eps):
    return F.batch_norm(x, *running, weight, bias, True, momentum, eps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 1, 2])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    setting = Setting(torch.device("cpu"), measured_machine(torch.device("cpu")), Sizes())
    images = image_stepping(model_of(IMAGES, setting.device), setting, setting.sizes.image_batch, (3, 32, 32))
    ours = images.maker(setting, False)()
    paper = their_steps(their_model(IMAGES), F.cross_entropy, images.x, images.y, images.batch)()
    sides = {
        "ours": (ours, vgg.batch_norm),
        "PyTorch's BatchNorm": (ours, by_twin),
        "the paper's code": (paper, by_twin),
    }
    rows = []
    for repeat, threads in enumerate(arguments.threads):
        torch.set_num_threads(threads)
        times: dict[str, list[float]] = {side: [] for side in sides}
        order = random.Random(repeat)
        for turn in range(-1, arguments.turns):  # the first warms up
            for side in order.sample(list(sides), len(sides)):
                step, vgg.batch_norm = sides[side]
                began = time.perf_counter()
                step()
                if turn >= 0:
                    times[side].append(time.perf_counter() - began)
        median = {side: statistics.median(own) for side, own in times.items()}
        ratios = {side: own / median["ours"] for side, own in median.items()}
        least = {side: min(own) for side, own in times.items()}
        rows.append({"threads": threads, "times ours": ratios, "seconds": median, "least": least})
    write(arguments.out, {"turns": arguments.turns, "load": os.getloadavg()[0], "rows": rows})


if __name__ == "__main__":
    main()
