"""Milliseconds per training step of the monDEQs, and how many splitting steps their solves take.

    python benchmarks/mondeq_steps.py [--batch 128] [--modes eager captured] [--inverses lu blocks newton-schulz]

Each row is one model: forward, backward, no optimiser, random images, the median over repeats. `--strength` sets the
Frobenius norms of A and B: 1 is how training starts, trained models have more and take more steps.
"""

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

from koopsim.implicit import inverse, splitting
from koopsim.implicit.monotone import MonDEQ
from koopsim.nn import count_parameters
from koopsim.runs import environment, write_json

SIZES = {
    "cifar10/mondeq-single": ((3, 32, 32), (81,), False),
    "cifar10/mondeq-multi": ((3, 32, 32), (16, 32, 60), False),
    "mnist/mondeq-single": ((1, 28, 28), (56,), False),
    "mnist/mondeq-multi": ((1, 28, 28), (16, 32, 32), False),
    "mnist/mondeq-connected": ((1, 28, 28), (87,), True),
}


def stepper(model: MonDEQ, batch: int, device: torch.device):
    x, y = torch.randn(batch, *model.image, device=device), torch.randint(0, 10, (batch,), device=device)

    def step() -> None:
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
        model.diagnostics()

    return step, x


def captured(step, device: torch.device):
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def milliseconds(step, device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def row(name: str, arguments: argparse.Namespace, device: torch.device, mode: str) -> dict:
    image, tiers, connected = SIZES[name]
    torch.manual_seed(0)
    model = MonDEQ(image, tiers, connected).to(device)
    if not connected:
        with torch.no_grad():
            model.operator.log_g.fill_(torch.tensor(arguments.strength).log())
            model.operator.h.fill_(arguments.strength)
    step, x = stepper(model, arguments.batch, device)
    alpha = model.tune_alpha(x) if arguments.tune else float(model.alpha)
    step()
    report = {key: float(value) for key, value in model.diagnostics().items()}
    if mode == "captured":
        model.adapt()
        step = captured(step, device)
    found = {"parameters": count_parameters(model), "alpha": alpha, "budget": model.variant} | report
    return found | {"ms": milliseconds(step, device, arguments.repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--modes", nargs="+", default=None, choices=["eager", "captured"])
    parser.add_argument("--inverses", nargs="+", default=[inverse.INVERSE], choices=list(inverse.INVERSES))
    parser.add_argument("--precisions", nargs="+", default=["highest"], choices=["highest", "high"], help="high: TF32")
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--tune", action="store_true", help="tune alpha first")
    parser.add_argument("--plain", action="store_true", help="do not fuse the small kernels")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    splitting.FUSED = not arguments.plain
    rows = []
    for name in arguments.models:
        for mode in arguments.modes or (["eager", "captured"] if device.type == "cuda" else ["eager"]):
            for inverse.INVERSE in arguments.inverses:
                for precision in arguments.precisions:
                    torch.set_float32_matmul_precision(precision)
                    found = {"model": name, "mode": mode, "inverse": inverse.INVERSE, "precision": precision}
                    found |= {"batch": arguments.batch, "strength": arguments.strength}
                    try:
                        found |= row(name, arguments, device, mode)
                    except RuntimeError as error:
                        found["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                    rows.append(found)
                    print(json.dumps(found), flush=True)
    if arguments.out:
        write_json(arguments.out, {"rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
