"""What a DEQ's gradients are worth and what they cost: errors in float64, memory against steps, inference beside a SIM.

python benchmarks/equilibrium.py gradients [--out results/deq-gradients.json]          30 s on a core
python benchmarks/equilibrium.py memory [--device cuda] [--out results/deq-memory.json]
python benchmarks/equilibrium.py inference --device cuda [--out results/h200/mdeq-inference.json]
python benchmarks/equilibrium.py pace --device cuda [--out results/h200/mdeq-pace.json]
python benchmarks/equilibrium.py solver --device cuda --works multiscale copy --precision bf16 [--out FILE]
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from verbs import write

import koopsim
from koopsim.bench.machine import measured_machine
from koopsim.bench.peers import USUAL, WORKS, _solver_rows, loss_scale, solver_rows, solver_sides
from koopsim.bench.setting import Setting, sizes_for
from koopsim.bench.timing import measure
from koopsim.bench.training import image_stepping
from koopsim.implicit import DEQ, SOLVERS, Reversible
from koopsim.runs import environment, write_json

RESULTS = Path(__file__).parent.parent / "results" / "h200"
CPU_TURNS = 25
STEP = 1e-4  # of the difference quotients, fourth order


class TwoScales(nn.Module):
    """A fine state (B, 12) and a coarse one (B, 5) that hear of each other."""

    def __init__(self, rate: float = 0.8):
        super().__init__()
        W = torch.randn(17, 17, dtype=torch.float64)
        self.W = nn.Parameter(rate * W / torch.linalg.matrix_norm(W, ord=2))

    def initial(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(len(x), 12), x.new_zeros(len(x), 5)

    def forward(self, z: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, ...]:
        return torch.tanh(torch.cat(z, dim=1) @ self.W.T + x).split([12, 5], dim=1)


class OneState(TwoScales):
    """The same numbers in one tensor."""

    def initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.W.T + x)


def loss_of(deq: DEQ, x: Tensor) -> Tensor:
    z, _ = deq(x)
    return sum((part.sin().sum() for part in (z if isinstance(z, tuple) else (z,))), start=torch.zeros(()).double())


@torch.no_grad()
def difference(deq: DEQ, x: Tensor, W: Tensor, direction: Tensor) -> float:
    """The directional derivative in W by a central difference of fourth order."""
    kept, values = W.clone(), {}
    for k in (-2, -1, 1, 2):
        W.copy_(kept + k * STEP * direction)
        values[k] = float(loss_of(deq, x))
    W.copy_(kept)
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * STEP)


def gradients() -> dict:
    """Of every solver on one tensor and on a tuple, the implicit gradient; of the reversible iteration, its own."""
    rows = []
    for state, cell in (("tensor", OneState), ("tuple", TwoScales)):
        for name in (*SOLVERS, "reversible"):
            torch.manual_seed(0)
            own, x = cell(), torch.randn(4, 17, dtype=torch.float64)
            if name == "reversible":
                deq = DEQ(own, max_steps=12, tol=1e-30, gradient=Reversible(0.5))
            else:
                deq = DEQ(own, name, 400, 1e-14)
            (got,) = torch.autograd.grad(loss_of(deq, x), own.W)
            direction = torch.randn_like(own.W)
            direction /= direction.norm()
            want = difference(deq, x, own.W, direction)
            error = abs(float((got * direction).sum()) - want) / abs(want)
            row = {"state": state, "solver": name, "relative_error_to_finite_difference": error}
            if name == "reversible":
                exact = unrolled_gradient(own, x, 0.5, 12)
                row["relative_error_to_unrolled"] = float((got - exact).abs().max() / exact.abs().max())
            rows.append(row)
    return {"rows": rows, "worst_finite_difference": max(r["relative_error_to_finite_difference"] for r in rows)}


def unrolled_gradient(cell: TwoScales, x: Tensor, b: float, steps: int) -> Tensor:
    """Autograd through the reversible iteration in the open."""
    joined = OneState()
    joined.W = cell.W
    y = z = torch.zeros_like(x)
    for _ in range(steps):
        y = (1 - b) * y + b * joined(z, x)
        z = (1 - b) * z + b * joined(y, x)
    return torch.autograd.grad(z.sin().sum(), cell.W)[0]


def memory(device: torch.device) -> dict:
    """The most memory of a forward and backward pass, 10 against 100 solver steps."""
    rows = []
    for gradient in ("implicit", "reversible", "jacobian-free", "neumann", "unrolled"):
        peaks = {steps: peak(gradient, steps, device) for steps in (10, 100)}
        rows.append({"gradient": gradient, "bytes": peaks, "ratio": peaks[100] / peaks[10]})
    return {"rows": rows, "what": "peak bytes above the model and its data, batch 256, width 512, Anderson"}


def peak(gradient: str, steps: int, device: torch.device) -> int:
    torch.manual_seed(0)
    layer = nn.Linear(512, 512).to(device)
    nn.init.orthogonal_(layer.weight, 0.9)
    cell, x = (lambda z, x: torch.tanh(layer(z) + x)), torch.randn(256, 512, device=device)

    def step() -> None:
        if gradient == "unrolled":
            z = torch.zeros_like(x)
            for _ in range(steps):
                z = cell(z, x)
        else:
            how = Reversible(0.03) if gradient == "reversible" else gradient
            z, _ = DEQ(cell, "anderson", steps, 1e-30, how)(x)
        z.sum().backward()
        layer.zero_grad()

    step()
    return measured_peak(step, device)


def measured_peak(step, device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        step()
    total = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            total += event.nbytes()
            most = max(most, total)
    return most


BESIDE = ("cifar10/sim-single", "cifar10/mondeq-single", "cifar10/mondeq-multi", "cifar10/mdeq")


def trained(name: str, device: torch.device) -> nn.Module:
    """A model of Table 2 with the weights that results/h200 has of its first seed."""
    return koopsim.load(RESULTS / f"{name.replace('/', '-')}-seed0", device)


def pace(device: torch.device, quick: bool) -> dict:
    """Seconds of an epoch of CIFAR-10, by the captured training step at batch 128 in bf16, each alone on the device."""
    setting, batch = Setting(device, measured_machine(device), sizes_for(device, quick), "bf16"), 2 if quick else 128
    steppings = {name: image_stepping(trained(name, device), setting, batch, (3, 32, 32)) for name in BESIDE}
    makers = {name: stepping.maker(setting, setting.capture) for name, stepping in steppings.items()}
    timings = measure(makers, device, 5, {name: stepping.steps for name, stepping in steppings.items()})
    rows = [{"model": n, "milliseconds_a_step": 1e3 * t.seconds, "seconds_an_epoch": 391 * t.seconds,
             "spread": 1e3 * t.spread} for n, t in timings.items()]  # fmt: skip
    return {"rows": rows, "batch": batch, "precision": "bf16", "captured": setting.capture, "weights": "results/h200"}


def inference(device: torch.device, quick: bool) -> dict:
    """Milliseconds a batch: the multiscale DEQ beside SIM and monDEQ of its size, trained."""
    rows = []
    for batch in (1, 2 if quick else 4096):
        x, makers = torch.randn(batch, 3, 32, 32, device=device), {}
        for name in BESIDE:
            model = trained(name, device).eval()

            def make(model=model, x=x):
                def work() -> None:
                    with torch.inference_mode():
                        model(x)

                return work

            makers[name] = make
        for name, timing in measure(makers, device, 5).items():
            rows.append({"model": name, "batch": batch, "milliseconds": 1e3 * timing.seconds})
    return {"rows": rows, "weights": "results/h200"}


def torchdeq(device: torch.device) -> dict:
    """The same small model in both: gradients against the closed form, and milliseconds a training step."""
    from torchdeq import get_deq

    torch.manual_seed(0)
    own, x = OneState(), torch.randn(4, 17, dtype=torch.float64)
    exact = torch.autograd.grad(loss_of(DEQ(own, "newton", 100, 1e-14), x), own.W)[0]
    theirs = {"torchdeq, as it comes": {}, "torchdeq, ift=True": {"ift": True}, "torchdeq, ift=True, tol=1e-6": {
        "ift": True, "f_tol": 1e-6, "b_tol": 1e-6, "f_stop_mode": "rel", "b_stop_mode": "rel"}}  # fmt: skip
    errors = {}
    for name, options in theirs.items():
        (z, *_), _ = get_deq(**options)(lambda z: own(z, x), torch.zeros_like(x))
        errors[name] = torch.autograd.grad(z.sin().sum(), own.W)[0]
    ours = {"koopsim, as it comes": DEQ(own), "koopsim, tol=1e-6": DEQ(own, max_steps=60, tol=1e-6)}
    errors |= {name: torch.autograd.grad(loss_of(deq, x), own.W)[0] for name, deq in ours.items()}
    size = torch.linalg.vector_norm
    rows = [{"what": name, "gradient_error": float(size(g - exact) / size(exact))} for name, g in errors.items()]
    setting = Setting(device, measured_machine(device), replace(sizes_for(device, quick=True), turns=CPU_TURNS))
    return {"gradients": rows, "times": [row for found in times(setting) for row in found]}


def times(setting: Setting) -> Iterator[list[dict]]:
    """Rows of `koopsim bench solver`: a cell of one's own, with every solver."""
    scale = loss_scale(setting, "own")
    for solver in ("anderson", "broyden", "picard"):
        for row in _solver_rows(setting, "own", solver, scale):
            sides = {"ours": row.ours, "theirs": row.other}
            said = {f"{k}_{n}": v for k, side in sides.items()
                    for n, v in (("milliseconds", 1e3 * side.timing.seconds), ("reached", side.reached))}  # fmt: skip
            mine, other = processor(setting, solver, scale)
            said |= {
                "processor_ratio": other / mine,
                "ours_processor_ms": 1e3 * mine,
                "theirs_processor_ms": 1e3 * other,
            }
            yield [{"solver": solver, "ratio": row.other.timing.seconds / row.ours.timing.seconds} | said]


def processor(setting: Setting, solver: str, scale: float) -> tuple[float, float]:
    """Seconds of processor time of a step, ours and theirs in turns: what others do on the machine is not in it."""
    sides = solver_sides(setting, "own", solver, scale)
    works, spent = [sides[n].maker(setting, capture=False)() for n in ("koopsim", "torchdeq")], ([], [])
    for _ in range(2 * CPU_TURNS):
        for work, seconds in zip(works, spent, strict=True):
            began = time.thread_time()
            work()
            seconds.append(time.thread_time() - began)
    return statistics.median(spent[0]), statistics.median(spent[1])


def solver(arguments: argparse.Namespace, device: torch.device) -> dict:
    """Rows of `koopsim bench solver` for some works, each written down when it is there."""
    sizes = sizes_for(device, arguments.quick)
    sizes = replace(sizes, turns=arguments.turns or sizes.turns, solver_steps=arguments.steps or sizes.solver_steps)
    sizes = replace(sizes, solvers=tuple(arguments.solvers or sizes.solvers))
    setting = Setting(device, measured_machine(device), sizes, arguments.precision)
    rows: list[dict] = []
    for row in solver_rows(setting, arguments.works):
        rows.append(row.as_dict())
        print(f"{row.work}: {row.ours.name} {row.ratio:.2f}", flush=True)
        if arguments.out:
            write_json(arguments.out, {"precision": arguments.precision, "rows": rows, "environment": environment()})
    return {"precision": arguments.precision, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gradients", "torchdeq", "memory", "inference", "pace", "solver"))
    parser.add_argument("--works", nargs="+", default=list(USUAL), choices=list(WORKS))
    parser.add_argument("--solvers", nargs="+", choices=("anderson", "broyden", "picard"))
    parser.add_argument("--turns", type=int)
    parser.add_argument("--steps", type=int, help="in a turn")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began, device = time.monotonic(), torch.device(arguments.device)
    found = {"gradients": gradients, "memory": lambda: memory(device)}
    found["inference"] = lambda: inference(device, arguments.quick)
    found["torchdeq"] = lambda: torchdeq(device)
    found["pace"] = lambda: pace(device, arguments.quick)
    found["solver"] = lambda: solver(arguments, device)
    figures = found[arguments.what]()
    write(arguments.out, figures | {"device": str(device), "seed": 0, "seconds": time.monotonic() - began})


if __name__ == "__main__":
    main()
