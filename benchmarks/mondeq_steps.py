"""Milliseconds per training step of the monDEQs, where they go, and how many splitting steps the solves take.

    python benchmarks/mondeq_steps.py [--batch 128] [--modes eager captured parts inverses]
        [--inverses kernel blocks lu] [--precisions high] [--strength 1] [--tune] [--float32] [--profile]
        [--out FILE.json]

Each row is one model: forward, backward, no optimiser, random images, the median over repeats. `--strength` sets the
Frobenius norms of A and B: 1 is how training starts, trained models have more and take more steps. The mode `parts`
times what a step is made of, one by one; `inverses` those at the frequencies of each tier. With `--precisions high`
iterates are kept in float16 unless `--float32` is said. A row is a process of its own, eager ones first: a capture that
fails spoils the process it happens in.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

from koopsim.implicit import inverse, monotone
from koopsim.implicit.circular import Grid
from koopsim.implicit.monotone import MonDEQ, _largest
from koopsim.implicit.monotone_operator import Chain
from koopsim.implicit.splitting import Projection, advance
from koopsim.implicit.stored import StoredChain
from koopsim.nn import count_parameters
from koopsim.runs import environment, write_json

SIZES = {
    "cifar10/mondeq-single": ((3, 32, 32), (81,), False),
    "cifar10/mondeq-multi": ((3, 32, 32), (16, 32, 60), False),
    "mnist/mondeq-single": ((1, 28, 28), (56,), False),
    "mnist/mondeq-multi": ((1, 28, 28), (16, 32, 32), False),
    "mnist/mondeq-connected": ((1, 28, 28), (87,), True),
}
MODES = ("eager", "inverses", "parts", "captured")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def stepper(model: MonDEQ, batch: int):
    x, y = torch.randn(batch, *model.image, device=DEVICE), torch.randint(0, 10, (batch,), device=DEVICE)

    def step() -> None:
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
        model.diagnostics()

    return step, x


def captured(work):
    """The work replayed from a CUDA graph, so that launches are not what is timed; on a CPU the work itself."""
    if not CUDA:
        return work
    torch.cuda.synchronize()
    stream = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def milliseconds(work, repeats: int) -> float:
    """The median over repeats, on CUDA by events around ten calls."""
    times = []
    for _ in range(repeats + 2):
        if CUDA:
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(10):
                work()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) / 10)
        else:
            began = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def first_tier(T: Chain | StoredChain, w: torch.Tensor, t: torch.Tensor):
    """Its grid, what T is given of it and where T writes what it finds; a chain that is not stored writes nowhere."""
    tier = T.tiers[0]
    if isinstance(T, StoredChain):
        given, found = T._layouts(transposed=False)
        return tier.grid, given.parts(w)[0], found.parts(t)[0]
    return tier.grid, w[: tier.size].reshape(tier.grid.rows, tier.grid.columns, tier.depth, -1), None


def there(grid: Grid, into: torch.Tensor, stored: bool) -> torch.Tensor:
    return grid.stored_transform(into) if stored else grid.transform(into)


def back(grid: Grid, spectrum: torch.Tensor, out: torch.Tensor | None) -> None:
    grid.inverse(spectrum) if out is None else grid.stored_inverse(spectrum, out)


def parts(model: MonDEQ, x: torch.Tensor, repeats: int) -> dict[str, float]:
    """Each part of a step captured and timed by itself."""
    with torch.no_grad():
        W = model.operator.linear()
        T = model._step(W)
        q = model._inject(x)
        c = q / q.abs().amax()
        P = Projection(model.inside, rectify=True)
        z = torch.relu(c)
        units = Projection((z > 0).view(torch.uint8), rectify=False)
        storage, adjoint = T.storage(), T.storage(transposed=True)
        w, u = storage.put(z, storage.w), adjoint.put(z, adjoint.w)
        t, v = T(w), T.transposed(u)
        grid, into, out = first_tier(T, w, t)
        spectrum = there(grid, into, out is not None)
        product = torch.bmm(T.matrices[0], spectrum)

    def recorded() -> None:
        for p in model.operator.parameters():
            p.grad = None
        model.operator.linear().recorded(z, q).backward(q)

    def symbols() -> None:
        for p in model.operator.parameters():
            p.grad = None
        torch.autograd.backward(list(model.operator.linear().matrices), list(W.matrices))

    def read_off() -> None:
        at = z.detach().requires_grad_()
        model.readout(model._features(at)).sum().backward()

    found = {
        "inject and its gradient": lambda: model._inject(x).backward(q),
        "symbols": model.operator.linear,
        "symbols and their gradient": symbols,
        "inverse and step matrices": lambda: model._step(W),
        "affine map": lambda: T(w),
        "affine map, transposed": lambda: T.transposed(u),
        "first tier: transform": lambda: there(grid, into, out is not None),
        "first tier: product": lambda: torch.bmm(T.matrices[0], spectrum),
        "first tier: back": lambda: back(grid, product, out),
        "projection": lambda: advance(t, c, P, storage, True, False),
        "projection and residual": lambda: advance(t, c, P, storage, True, False, t),
        "backward projection": lambda: advance(v, c, units, adjoint, True, False),
        "largest entries and scaling": lambda: q * (model.alpha / _largest(q)),
        "symbols, record of W z and their gradients": recorded,
        "readout and its gradient": read_off,
    }
    return {name: milliseconds(captured(work), repeats) for name, work in found.items()}


def inverses(model: MonDEQ, method: str, repeats: int) -> dict[str, float]:
    """Of random matrices, as many and as large as each tier has; captured, which PyTorch's LU cannot be."""
    times = {}
    for tier, matrix in zip(model.tiers, model.operator.linear().matrices, strict=True):
        F, n = matrix.shape[0], tier.depth
        A = torch.randn(F, n, n, dtype=torch.complex64, device=DEVICE) / n**0.5
        W = torch.view_as_real(-A.mH @ A).movedim(-1, 1).contiguous()
        a = torch.tensor(0.5, device=DEVICE)
        dtype = torch.float16 if len(model.tiers) == 1 else torch.float32
        chosen = None if method == "auto" else method

        def work(W=W, a=a, chosen=chosen, dtype=dtype) -> None:
            inverse.reflected_resolvent(W, a, chosen, dtype)

        times[f"{F} of {n} x {n}"] = milliseconds(work if method == "lu" else captured(work), repeats)
    return times


def profile(work) -> str:
    """Where the device's time goes in ten steps."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA if CUDA else ProfilerActivity.CPU]) as kept:
        for _ in range(10):
            work()
        if CUDA:
            torch.cuda.synchronize()
    spent = "self_device_time_total" if CUDA else "self_cpu_time_total"
    events = sorted(kept.key_averages(), key=lambda e: -getattr(e, spent))[:30]
    return "\n".join(f"{getattr(e, spent) / 10:9.1f} us/step  {e.count / 10:6.1f} x  {e.key[:110]}" for e in events)


def row(arguments: argparse.Namespace) -> dict:
    """The one row that the arguments name."""
    (name,), (mode,) = arguments.models, arguments.modes
    (method,), (precision,) = arguments.inverses, arguments.precisions
    torch.set_float32_matmul_precision(precision)
    if arguments.float32:
        monotone.COARSE = float("inf")
    if method != "auto":
        inverse._fitting = lambda W: method
    found: dict = {"model": name, "mode": mode, "inverse": method, "precision": precision}
    found |= {"batch": arguments.batch, "strength": arguments.strength}
    image, tiers, connected = SIZES[name]
    torch.manual_seed(0)
    model = MonDEQ(image, tiers, connected).to(DEVICE)
    if not connected:
        with torch.no_grad():
            model.operator.log_g.fill_(torch.tensor(arguments.strength).log())
            model.operator.h.fill_(arguments.strength)
    step, x = stepper(model, arguments.batch)
    with torch.no_grad():
        storage = model._step(model.operator.linear()).storage()
    found |= {"stored": str(storage.dtype).removeprefix("torch."), "paired": storage.paired}
    found |= {"parameters": count_parameters(model)}
    found["alpha"] = model.tune_alpha(x) if arguments.tune else float(model.alpha)
    if mode == "inverses":
        return found | {"inverses_ms": inverses(model, method, arguments.repeats)}
    if mode == "parts":
        return found | {"parts_ms": parts(model, x, arguments.repeats)}
    step()
    found |= {key: float(value) for key, value in model.diagnostics().items()}
    if mode == "captured":
        model.adapt()
        found["budget"] = model.variant
        step = captured(step)
    found["ms"] = milliseconds(step, arguments.repeats)
    if CUDA:
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if arguments.profile:
        print(profile(step), file=sys.stderr, flush=True)
    return found


def measured(arguments: argparse.Namespace, mode: str, name: str, method: str, precision: str) -> dict:
    """The row from a process of its own, or what went wrong in it."""
    command = [sys.executable, __file__, "--row", "--models", name, "--modes", mode, "--inverses", method]
    command += ["--precisions", precision, "--batch", str(arguments.batch), "--strength", str(arguments.strength)]
    command += ["--repeats", str(arguments.repeats), *["--tune"][: arguments.tune], *["--profile"][: arguments.profile]]
    command += ["--float32"][: arguments.float32]
    done = subprocess.run(command, capture_output=True, text=True)
    if arguments.profile:
        print(done.stderr, flush=True)
    if done.returncode:
        wrong = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"model": name, "mode": mode, "inverse": method, "precision": precision, "error": wrong[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--modes", nargs="+", default=MODES if CUDA else ["eager"], choices=MODES)
    parser.add_argument("--inverses", nargs="+", default=["auto"], choices=["auto", *inverse.METHODS])
    parser.add_argument("--precisions", nargs="+", default=["high"], choices=["highest", "high"], help="high: TF32")
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--tune", action="store_true", help="tune alpha first")
    parser.add_argument("--float32", action="store_true", help="never keep iterates in float16")
    parser.add_argument("--profile", action="store_true", help="and which kernels take the time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--row", action="store_true", help="one row, in this process")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.row:
        print(json.dumps(row(arguments)))
        return
    rows = []
    for mode in sorted(arguments.modes, key=MODES.index):
        for name in arguments.models:
            for method in arguments.inverses:
                for precision in arguments.precisions:
                    rows.append(measured(arguments, mode, name, method, precision))
                    print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        write_json(arguments.out, {"rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
