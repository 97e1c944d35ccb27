"""A training step on a CPU where numbers next to zero are zero, and where they are not, before and after training.

    python benchmarks/subnormal_turns.py --out results/subnormal-turns-cpu.json         two minutes; quiet cores

Each side has a process and keeps the memory it frees. Fresh weights are those before the first step, trained ones the
zoo's. `subnormal share`: of the numbers of the output's gradient that are not zero, how many are below 2^-126.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from verbs import write

from koopsim.bench.apart import apart
from koopsim.bench.machine import measured_machine
from koopsim.bench.setting import Setting, Sizes, model_of
from koopsim.bench.timing import Work, measure
from koopsim.bench.training import Stepping, copy_stepping, image_of, image_stepping
from koopsim.engine.drive import as_it_trains
from koopsim.engine.freed import freed_memory_kept

NORMAL = 2.0**-126
MODELS = ("copy/sim-single", "copy/sim-two", "cifar10/sim-single")


def stepping(name: str, trained: bool, sizes: Sizes) -> Stepping:
    """Of copy memory at batch 20, of CIFAR-10 at 128."""
    setting = Setting(torch.device("cpu"), measured_machine(torch.device("cpu")), sizes)
    model = model_of(name, setting.device, trained)
    torch.manual_seed(0)
    if name.startswith("copy/"):
        return copy_stepping(model, setting, 20, sizes.horizon)
    return image_stepping(model, setting, sizes.image_batch, image_of(name))


def made(name: str, trained: bool) -> Work:
    sizes = Sizes()
    setting = Setting(torch.device("cpu"), measured_machine(torch.device("cpu")), sizes)
    return stepping(name, trained, sizes).maker(setting, False)()


@contextmanager
def inside(flushed: bool) -> Iterator[None]:
    device = torch.device("cpu")
    with as_it_trains(device) if flushed else freed_memory_kept(device):
        yield


def share(name: str, trained: bool) -> float:
    """Of the numbers of the output's gradient that are not zero, how many are subnormal."""
    given = stepping(name, trained, Sizes())
    outputs = given.model.train()(given.x[: given.batch])
    (gradient,) = torch.autograd.grad(given.loss(outputs, given.y[: given.batch]), outputs)
    sizes = gradient.abs()[gradient != 0]
    return float((sizes < NORMAL).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name in MODELS:
            for trained in (False, True):
                sides = {"zero": True, "as they are": False}
                makers = {side: apart(partial(made, name, trained), partial(inside, on)) for side, on in sides.items()}
                found = measure(makers, torch.device("cpu"), arguments.turns)
                seconds = {side: timing.seconds for side, timing in found.items()}
                row = {"model": name, "weights": "trained" if trained else "fresh", "threads": threads}
                row |= {"subnormal share": share(name, trained), "seconds": seconds}
                rows.append(row | {"times": seconds["as they are"] / seconds["zero"]})
    machine = measured_machine(torch.device("cpu")).name
    write(arguments.out, {"machine": machine, "turns": arguments.turns, "load": os.getloadavg()[0], "rows": rows})


if __name__ == "__main__":
    main()
