"""Microseconds of the TCN's kernels and of copy memory's whole step, variant by variant, in captured graphs on CUDA.

    python benchmarks/kernel_variants.py [--kinds cluster] [--steps] [--turns] [--profiles] [--out FILE]
"""

import argparse
import os
from pathlib import Path

import torch

from koopsim.bench.setting import CUDA, Setting, in_precision, model_of
from koopsim.bench.training import copy_stepping, image_stepping
from koopsim.engine.capture import Recorder
from koopsim.nn import TCN
from koopsim.nn.kernels import tcn, tcn_cluster
from koopsim.nn.lift import residual_of
from koopsim.runs import environment, write_json


def timed(work, calls: int, rounds: int) -> float:
    """Milliseconds of a call by the device's clock, the median of the rounds of so many calls."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return sorted(times)[rounds // 2]


def replayed(work, repeats: int = 100) -> float:
    """Microseconds of one call, the median of five rounds of replays of a graph."""

    def ten() -> None:
        for _ in range(10):
            work()

    return 1e3 * timed(Recorder(torch.device("cuda")).record(ten, dict).replay, repeats // 10, rounds=5) / 10


def kernels(batch: int, models: int) -> dict[str, float]:
    """Forward and backward of the stack of layers at the preset's size, against float64."""
    torch.manual_seed(0)
    model = TCN(32).cuda()
    convs = [conv for block in model.blocks for conv in (block.first, block.second)]
    W, b = (t.detach()[None].repeat(models, *[1] * t.ndim) for t in model.normed_weights(convs))
    x = torch.randint(0, 10, (models, batch, 520, 1), device="cuda").float()
    R, r = (t.detach()[None].repeat(models, *[1] * t.ndim) for t in residual_of(model.blocks[0].residual, x))
    states = tcn._run(x, R, r, W, b)
    dy = torch.randn_like(states[0])
    exact = model.double().blocks(x[0].double())
    wanted = torch.autograd.grad((exact * dy[0].double()).sum(), model.blocks[3].second.bias)[0]
    _, sums = tcn._run_backward([x, R, W], list(states), dy, False)
    places = W[0].numel() + 7 * 10
    far = float((states[0][0] - exact.detach()).abs().max() / exact.detach().abs().max())
    far_back = float((sums[0, places : places + 10] - wanted).abs().max() / wanted.abs().max())
    g = W.new_empty(16 + 8, models, batch, 520, 10)

    def only_layers() -> None:
        if tcn_cluster.fits(x, W):
            tcn_cluster.backward(x, W, states, dy, g)
        else:
            tcn._layers_backward(g, W, states, dy)

    forward = replayed(lambda: tcn._run(x, R, r, W, b))
    both, layers = replayed(lambda: tcn._run_backward([x, R, W], list(states), dy, False)), replayed(only_layers)
    return {"forward": forward, "layers_backward": layers, "backward": both, "error": far, "error_backward": far_back}


def stepping(name: str, batch: int, precision: str = "float32"):
    """(a work of several captured training steps, how many): `koopsim bench`'s."""
    setting = Setting(torch.device("cuda"), None, CUDA, precision)  # pyright: ignore[reportArgumentType]
    model = model_of(name, setting.device)
    steps = (
        copy_stepping(model, setting, batch, 500)
        if name.startswith("copy")
        else image_stepping(model, setting, batch, (3, 32, 32))
    )
    with in_precision(precision):
        return steps.maker(setting, capture=True)(), steps.steps


def step(name: str, batch: int, precision: str = "float32") -> float:
    """Milliseconds of a captured training step, the median of seven rounds."""
    work, steps = stepping(name, batch, precision)
    return timed(work, 5, rounds=7) / steps


def turns(batch: int, rounds: int = 7) -> dict:
    """Milliseconds of copy memory's step through autograd and kernel after kernel (nn/direct.py), measured in turns."""
    works = {}
    for name, value in (("autograd", "0"), ("direct", "1")):
        os.environ["KOOPSIM_DIRECT"] = value  # read while the step is captured
        works[name] = stepping("copy/sim-single", batch)
    times = {name: [] for name in works}
    for _ in range(rounds):
        for name, (work, steps) in works.items():
            times[name].append(timed(work, 5, rounds=1) / steps)
    found = {name: sorted(own)[rounds // 2] for name, own in times.items()}
    print(f"batch {batch}: " + ", ".join(f"{name} {ms:.4f} ms" for name, ms in found.items()), flush=True)
    return {"batch": batch, "ms": found, "all": times}


def profile(name: str, batch: int, precision: str) -> dict:
    """The kernels of a captured step, the longest first."""
    work, steps = stepping(name, batch, precision)
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    found = sorted(recorded.key_averages(), key=lambda k: -k.self_device_time_total)
    rows = [(k.key[:100], k.count / steps, k.self_device_time_total / steps) for k in found if k.self_device_time_total]
    total, count = sum(r[2] for r in rows), sum(r[1] for r in rows)
    print(f"{name}, batch {batch}: {count:.0f} kernels, {total:.0f} us, step {step(name, batch, precision):.4f} ms")
    for key, times, us in rows[:22]:
        print(f"  {us:8.1f} us {times:5.1f} x  {key}")
    return {"name": name, "batch": batch, "precision": precision, "kernels": count, "us": total, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", action="store_true", help="whole training steps too")
    parser.add_argument("--turns", action="store_true", help="copy memory's step through autograd and without it")
    parser.add_argument("--profiles", action="store_true", help="and the kernels of each")
    parser.add_argument("--kinds", nargs="+", default=["layers", "cluster"])
    arguments = parser.parse_args()
    variants = [("layers", {"PRECISION": p, "ROWS": r}, {}) for p in ("ieee", "tf32x3") for r in (16, 32)]
    variants += [("cluster", {"PRECISION": "ieee"}, {"CLUSTER": 8, "SPLITS": s}) for s in (1, 2)]
    rows, profiles, in_turns = [], [], []

    def save() -> None:
        if arguments.out:
            found = {"rows": rows, "turns": in_turns, "profiles": profiles}
            write_json(arguments.out, found | {"environment": environment()})

    for kind, own, cluster in (v for v in variants if v[0] in arguments.kinds):
        os.environ["KOOPSIM_CLUSTERS"] = str(int(kind == "cluster"))
        for module, values in ((tcn, own), (tcn_cluster, cluster)):
            for name, value in values.items():
                setattr(module, name, value)
        for batch, models in ((1, 1), (20, 1), (1, 256)):
            row = {"kind": kind, **own, **cluster, "batch": batch, "models": models}
            try:
                row |= kernels(batch, models)
                if arguments.steps and models == 1:
                    row["step_ms"] = step("copy/sim-single", batch)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
            rows.append(row)
            save()
            print({k: round(v, 7) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    os.environ["KOOPSIM_CLUSTERS"], tcn_cluster.CLUSTER, tcn_cluster.SPLITS, tcn.ROWS = "1", 8, 2, 16
    for batch in (1, 20) if arguments.turns else ():
        in_turns.append(turns(batch))
        save()
    works = [("copy/sim-single", 1, "float32"), ("copy/sim-single", 20, "float32")]
    works += [("cifar10/sim-single", 512, "bf16"), ("cifar10/sim-single", 128, "bf16")]
    for work in works if arguments.profiles else []:
        profiles.append(profile(*work))
        save()


if __name__ == "__main__":
    main()
