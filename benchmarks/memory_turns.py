"""A CIFAR-10 training step on a CPU that keeps the memory it frees, and that gives it back: ours and the paper's code.

    KOOPSIM_PAPER_CODE=... python benchmarks/memory_turns.py --out results/memory-turns-cpu.json

Four sides, a process each, in turns of random order. `koopsim bench paper` has the first and the third of them.
"""

import argparse
import os
import random
import statistics
import time
from pathlib import Path

import torch
from verbs import write

from koopsim.bench.machine import measured_machine
from koopsim.bench.paper import alone, cifar10_work
from koopsim.bench.setting import Setting, Sizes

SIDES = {
    "ours": ("koopsim", True),
    "ours, giving back": ("koopsim", False),
    "the paper's code": ("paper", False),
    "the paper's code, keeping": ("paper", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 1, 2])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    setting = Setting(torch.device("cpu"), measured_machine(torch.device("cpu")), Sizes())
    rows = []
    for repeat, threads in enumerate(arguments.threads):
        torch.set_num_threads(threads)
        works = {name: alone(setting, cifar10_work, side, kept=kept)() for name, (side, kept) in SIDES.items()}
        times: dict[str, list[float]] = {name: [] for name in works}
        order = random.Random(repeat)
        for turn in range(-3, arguments.turns):  # the first warm up
            for name in order.sample(list(works), len(works)):
                time.sleep(0.02)  # until the threads of the one before have gone to sleep
                began = time.perf_counter()
                works[name]()
                if turn >= 0:
                    times[name].append(time.perf_counter() - began)
        median = {name: statistics.median(own) for name, own in times.items()}
        least = {name: min(own) for name, own in times.items()}
        ratios = {name: own / median["ours"] for name, own in median.items()}
        rows.append({"threads": threads, "times ours": ratios, "seconds": median, "least": least})
    write(arguments.out, {"turns": arguments.turns, "load": os.getloadavg()[0], "rows": rows})


if __name__ == "__main__":
    main()
