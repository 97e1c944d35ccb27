"""Distil and warm-start a trained DEQ: what a SIM saves its solver, and how close it comes to its equilibria.

    python benchmarks/bridge_steps.py digits|mondeq|RUN [--out FILE] [--epochs N] [--inputs N]

digits   a two-layer tanh cell on scikit-learn's 8 x 8 digits     trained here, seconds
mondeq   a fully connected monDEQ of 87 units on the same         trained here, a minute
RUN      a DEQ's run directory: results/h200/copy-deq, the paper's size, takes a CPU a quarter of an hour
"""

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bridge import DistillWarning, Student, closed_form, compare, distill
from koopsim.bridge.distill import equilibria
from koopsim.bridge.step_counts import count_steps
from koopsim.implicit import DEQ, MonDEQ
from koopsim.nn import MLP
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.spectral import Monomials
from koopsim.tasks import build_task
from koopsim.training import load_run

TOLERANCES = (1e-2, 1e-3, 1e-4)


class TwoLayerCell(nn.Module):
    """f(z, x) = tanh(W_2 relu(W_1 z + U x + b) + c)."""

    def __init__(self, inputs: int, state: int, width: int):
        super().__init__()
        self.first, self.inject = nn.Linear(state, width), nn.Linear(inputs, width)
        self.second = nn.Linear(width, state)

    def initial(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.second.out_features)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.second(F.relu(self.first(z) + self.inject(x))))


def digits(connected: bool, epochs: int):
    """(model, inputs, held-out inputs, what its student is made of): trained on 1,400 digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(data.images, dtype=torch.float32)[order] / 16  # type: ignore[attr-defined]
    y = torch.as_tensor(data.target)[order]  # type: ignore[attr-defined]
    torch.manual_seed(0)
    if connected:
        x = x[:, None]
        model, readout = MonDEQ((1, 8, 8), tiers=(87,), connected=True), nn.Identity()
        student = Student(nn.Sequential(nn.Flatten(), MLP(64, 128, 64)))
    else:
        x, readout = x.flatten(1), nn.Linear(32, 10)
        model = DEQ(TwoLayerCell(64, 32, 64), tol=1e-4, max_steps=60)
        student = Student(readout=readout)
    adam = torch.optim.Adam([*model.parameters(), *readout.parameters()], lr=2e-3)
    for _ in range(epochs):
        if connected:
            model.start_epoch(x[:64])
        for rows in torch.randperm(1400).split(64):
            out = model(x[rows])
            loss = F.cross_entropy(readout(out if connected else out[0]), y[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
    model.tol = 1e-4
    return model.eval(), x[:1400], x[1400:], student


def of_run(run: Path):
    model, task = load_run(run).eval(), build_task(RunDirectory(run).read_config()[1].task)
    return model, task.split("train")[0], task.split("test")[0], Student()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=30, help="of the training of digits and mondeq")
    parser.add_argument("--inputs", type=int, default=2000, help="at most so many are distilled from, a tenth tested")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DistillWarning)  # it is in the report
    here = options.which in ("digits", "mondeq")
    model, x, x_test, student = digits(options.which == "mondeq", options.epochs) if here else of_run(options.which)
    x, x_test = x[: options.inputs], x_test[: max(20, options.inputs // 10)]
    began = time.perf_counter()
    sim, report = distill(model, x, student)
    distilled = {**dataclasses.asdict(report), "seconds": time.perf_counter() - began}
    print(report, flush=True)
    z, good = equilibria(model, x[:64])
    splittings, solvers = ("peaceman-rachford", "forward-backward"), ("picard", "anderson", "broyden")
    methods = splittings if isinstance(model, MonDEQ) else solvers
    rows = count_steps(model, sim, x_test, z[good].mean(dim=0), methods, TOLERANCES)
    print(*rows, sep="\n", flush=True)
    enough = options.which == "digits" and len(x) > 600
    closed = closed_form(model, x[:600], Monomials(1), rtol=1e-6) if enough else None
    errors = compare(model, x_test, sim, closed)
    result = {"what": __doc__, "which": options.which, "distilled": distilled, "relative_errors": errors, "steps": rows}
    out = options.out or Path(__file__).parents[1] / "results" / f"bridge-{Path(options.which).name}.json"
    write_json(out, result | {"environment": environment()})


if __name__ == "__main__":
    main()
