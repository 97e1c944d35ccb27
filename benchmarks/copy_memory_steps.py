"""Milliseconds per training step on copy memory: SIMs and the DEQ, eager, captured, compiled and captured.

    python benchmarks/copy_memory_steps.py [--horizon 500] [--out results/....json]

Every row is the median over repeats of a chunk of steps in one process, after warm-up.
"""

import argparse
import json
import statistics
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.config import DEQConfig, SolverConfig
from koopsim.engine.slots import Stacked
from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task


def configured(name: str, batch: int, horizon: int, method: str | None):
    run = run_of(name)
    if isinstance(run.model, DEQConfig) and method:
        solver = SolverConfig(method, run.model.forward.max_steps, run.model.forward.tolerance)
        run = replace(run, model=replace(run.model, forward=solver, backward=solver))
    recipe = replace(run.recipe, batch_size=batch, epochs=20)
    return replace(run, recipe=recipe, task=replace(run.task, horizon=horizon, train=900, valid=100, test=10))


def milliseconds(run, device, mode: str, repeats: int, profile: bool) -> tuple[float, float, float | None]:
    """(median ms a step, spread, peak MiB)"""
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Stacked([run], build_task(run.task, device), device, 1, "captured" in mode, "compiled" in mode)

    def chunk(steps: int) -> float:
        trainer.begin_epoch()
        trainer.part.rewind()
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.advance(0, steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / steps

    chunk(3)
    steps = max(2, min(40, int(400 / max(chunk(3), 0.1)), trainer.epoch_steps))
    times = [chunk(steps) for _ in range(repeats)]
    if profile:
        print_kernels(trainer)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    return statistics.median(times), max(times) - min(times), peak


def print_kernels(trainer, steps: int = 3, rows: int = 25) -> None:
    """How many kernels a step has, and which of them take the time."""
    trainer.begin_epoch()
    trainer.part.rewind()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        trainer.advance(0, steps)
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda k: -k.self_device_time_total)
    count = sum(k.count for k in kernels) / steps
    total = sum(k.self_device_time_total for k in kernels) / steps
    print(f"  {count:.0f} kernels a step, {total:.0f} us of them on the device")
    for k in kernels[:rows]:
        print(f"  {k.count / steps:6.1f} x {k.self_device_time_total / k.count:7.2f} us  {k.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--horizon", type=int, default=500)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--models", nargs="+", default=["copy/sim-single", "copy/sim-two", "copy/deq"])
    parser.add_argument("--modes", nargs="+", default=None)
    parser.add_argument("--solvers", nargs="+", default=["anderson", "broyden"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also list the kernels of one step")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    modes = arguments.modes or (["eager", "captured", "compiled+captured"] if device.type == "cuda" else ["eager"])
    rows = []
    for name in arguments.models:
        for solver in arguments.solvers if name.endswith("deq") else [None]:
            for batch in arguments.batches:
                for mode in modes:
                    run = configured(name, batch, arguments.horizon, solver)
                    row = {"model": name, "solver": solver, "batch": batch, "mode": mode}
                    try:
                        ms, spread, peak = milliseconds(run, device, mode, arguments.repeats, arguments.profile)
                        row |= {"ms": ms, "spread": spread, "peak_mib": peak}
                    except Exception as error:
                        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    if arguments.out:
        write_json(arguments.out, {"horizon": arguments.horizon, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
