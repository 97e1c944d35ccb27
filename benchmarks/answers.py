"""Microseconds of a deployed answer at batch 1 to 8 on CUDA: one kernel, a captured graph, and where the time goes.

    python benchmarks/answers.py [--out results/h200/answers.json]

`waited` is what a caller waits for, from the call to the answer being there (a synchronise), in turns, the median;
`host` until the call returns; `device` the same work in a graph of ten, replayed. The error is against float64.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from verbs import write

import koopsim
from koopsim.nn.fuse import fuse

MODELS = {"cifar10/sim-single": (3, 32, 32), "mnist/sim-single": (1, 28, 28), "copy/sim-single": (520,)}


def waited(answer, x: torch.Tensor, calls: int = 200) -> tuple[float, float]:
    """(microseconds waited for, microseconds until the call came back), medians."""
    both = []
    for _ in range(calls):
        began = time.perf_counter()
        answer(x)
        back = time.perf_counter()
        torch.cuda.synchronize()
        both.append((1e6 * (time.perf_counter() - began), 1e6 * (back - began)))
    return statistics.median(b[0] for b in both), statistics.median(b[1] for b in both)


def on_device(answer, x: torch.Tensor) -> float:
    """Microseconds of the device's work, in a graph of ten."""
    with torch.cuda.stream(torch.cuda.Stream()):
        answer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            answer(x)
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / 100)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name in arguments.models:
        model, shape = koopsim.load(name, "cuda").eval(), MODELS[name]
        exact = fuse(koopsim.load(name, "cuda").eval().double())
        for batch in arguments.batches:
            x = torch.randint(0, 10, (batch, *shape)).float() if len(shape) == 1 else torch.randn(batch, *shape)
            x, row = x.cuda(), {"model": name, "batch": batch}
            deployed = koopsim.deploy(model, [tuple(x.shape)])
            few = deployed.of_few
            ways = {"graph": deployed.graphs[0], **({"one kernel": few} if few is not None else {})}
            want = exact(x.double())
            for turn in range(3):
                for way, answer in ways.items():
                    if turn == 0:
                        far = float((answer(x) - want).abs().max() / want.abs().max())
                        row[way] = {"error": far, "waited": [], "host": []}
                    for key, value in zip(("waited", "host"), waited(answer, x), strict=True):
                        row[way][key].append(value)
            for way, answer in ways.items():
                work = deployed.plainly if way == "graph" else answer
                row[way]["device"] = on_device(work, x)
            rows.append(row)
            write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
