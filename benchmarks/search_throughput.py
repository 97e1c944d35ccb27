"""Model-steps per second of a stack: how many trials one device can carry at once.

    PYTHONPATH=src python benchmarks/search_throughput.py --stacks 1 8 64 128 512 --out results/h200/search-stack.json

A model-step is one optimiser step of one model. "alone" is the trainer of `koopsim train` (captured on CUDA, with its
hand-written kernels); every other row is a stack of so many trials of the same shapes.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.search.space import base_of
from koopsim.search.stack import Stacked
from koopsim.search.trial import alone
from koopsim.tasks import build_task


def seconds_per_step(trainer, steps: int, repeats: int, device: torch.device) -> float:
    """The best of a few repeats of `steps` steps."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.advance(0, steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / steps)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="copy/sim-single")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--horizon", type=int, help="of copy memory; the paper's 500 unless told")
    parser.add_argument("--images", type=int, help="of classification: use only so many")
    parser.add_argument("--precision", help="float32, tf32 or bf16; the preset's unless told")
    parser.add_argument("--stacks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no new row after this long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="do not capture")
    parser.add_argument("--compile", action="store_true", help="let torch.compile fuse the stack's small kernels")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    parser.add_argument("--profile", action="store_true", help="where the device's time goes, for the last stack")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = True
    device, began = torch.device(arguments.device), time.monotonic()
    base = base_of(run_of(arguments.preset))
    base = replace(base, recipe=replace(base.recipe, batch_size=arguments.batch))
    base = replace(base, precision=arguments.precision or base.precision)
    if arguments.horizon:
        base = replace(base, task=replace(base.task, horizon=arguments.horizon))
    if arguments.images:
        base = replace(base, task=replace(base.task, train=arguments.images))
    task = build_task(base.task, device)
    capture = False if arguments.eager else None
    rows = []

    def row(kind: str, models: int, seconds: float) -> None:
        memory = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
        found = {"kind": kind, "models": models, "milliseconds_per_step": 1e3 * seconds}
        rows.append(found | {"model_steps_per_second": models / seconds, "peak_mebibytes": memory})
        print(json.dumps(rows[-1]), flush=True)

    one = alone(base, task, device, capture)
    one.begin_epoch(0)
    one.advance(0, 3)
    row("alone", 1, seconds_per_step(one, arguments.steps, arguments.repeats, device))
    one = stack = None  # their memory is the next one's
    for size in arguments.stacks:
        if time.monotonic() - began > arguments.seconds:
            break
        stack = None
        runs = [replace(base, seed=seed) for seed in range(size)]
        try:
            stack = Stacked(runs, task, device, max_t=1, capture=capture, compile=arguments.compile)
            stack.warm_up()
            stack.begin_epoch()
            stack.advance(0, 3)
            seconds = seconds_per_step(stack, arguments.steps, arguments.repeats, device)
        except torch.OutOfMemoryError:
            print(f"a stack of {size} does not fit", flush=True)
            break
        row("stack", size, seconds)
    if arguments.profile and stack is not None:
        print(profile(stack, device), flush=True)
    if arguments.out:
        about = {"preset": arguments.preset, "batch": arguments.batch, "horizon": getattr(base.task, "horizon", None)}
        about |= {"precision": base.precision, "compile": arguments.compile, "captured": device.type == "cuda"}
        about |= {"threads": arguments.threads if device.type == "cpu" else None}
        write_json(arguments.out, about | {"rows": rows, "environment": environment()})


def profile(stack: Stacked, device: torch.device) -> str:
    """The kernels of ten steps, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profiled(activities=[kind]) as kept:
        stack.advance(0, 10)
        if device.type == "cuda":
            torch.cuda.synchronize()
    name = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = sorted(kept.key_averages(), key=lambda e: -getattr(e, name))[:24]
    return "\n".join(f"{getattr(e, name) / 10:9.1f} us/step  {e.count / 10:6.1f} x  {e.key[:100]}" for e in events)


if __name__ == "__main__":
    main()
