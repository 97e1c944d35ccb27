"""A monDEQ on a CPU: in blocks of rows and by oneDNN, and on whole states by PyTorch's own products, in turns.

    python benchmarks/mondeq_turns.py --out results/mondeq-turns-cpu.json         # two minutes, quiet cores

A training step at batch 128, and answers at batch 128 and 1. Memory that is freed is kept, as in training.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn import functional as F
from verbs import write

import koopsim
from koopsim.bench.machine import measured_machine
from koopsim.engine.freed import freed_memory_kept
from koopsim.implicit import inverse, splitting
from koopsim.nn import products

MODELS = ("svhn/mondeq-multi", "svhn/mondeq-single", "mnist/mondeq-single")
BATCH = 128


def works(name: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    model = koopsim.build(name)
    x, y = torch.randn(BATCH, *model.image), torch.randint(10, (BATCH,))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()

    def answer(count: int) -> None:
        with torch.inference_mode():
            model(x[:count])

    return {"step": step, "answers": lambda: answer(BATCH), "answer": lambda: answer(1)}


@contextmanager
def whole() -> Iterator[None]:
    with ExitStack() as patches:
        patches.enter_context(patch.object(splitting, "on_cpu", lambda x: False))
        patches.enter_context(patch.object(inverse, "MANY", 1 << 30))
        patches.enter_context(patch.object(products, "onednn_is_faster", lambda: False))
        yield


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, sides = [], {"ours": ExitStack, "whole": whole}
    with freed_memory_kept(torch.device("cpu")):
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for name in arguments.models:
                for what, work in works(name).items():
                    times: dict[str, list[float]] = {side: [] for side in sides}
                    order = random.Random(0)
                    for turn in range(-1, arguments.turns):  # the first warms up
                        for side in order.sample(list(sides), len(sides)):
                            with sides[side]():
                                took = seconds(work)
                            if turn >= 0:
                                times[side].append(took)
                    median = {side: statistics.median(own) for side, own in times.items()}
                    row = {"model": name, "what": what, "threads": threads, "seconds": median}
                    row |= {"least": {side: min(own) for side, own in times.items()}}
                    rows.append(row | {"times": median["whole"] / median["ours"]})
    machine = measured_machine(torch.device("cpu")).name
    write(arguments.out, {"machine": machine, "turns": arguments.turns, "load": os.getloadavg()[0], "rows": rows})


if __name__ == "__main__":
    main()
