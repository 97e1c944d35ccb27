"""Observe, distil, warm-start: what a SIM saves a trained DEQ, and how close three ways come to its equilibria.

    python benchmarks/bridge_steps.py [--out results/bridge-steps.json] [--copy-run DIR]

Two DEQs are trained here: the copy memory Universal Transformer at T = 5 (or a run you name), and a two-layer
tanh cell on scikit-learn's 8 x 8 digits. For each: verdicts on the hidden iteration against what it really
does, relative error of the distilled SIM and of the closed form (eq. 5 to 8) on inputs neither has seen, and
solver steps from z_0 = 0 and from the SIM's state at equal tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from koopsim.bridge import WarmStart, closed_form, compare, distill, linearise, observe
from koopsim.bridge.hidden import solve
from koopsim.config import CopyMemoryConfig
from koopsim.engine.slots import Stacked
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, TransformerDEQ, UnconvergedWarning
from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.spectral import Monomials
from koopsim.tasks import build_task
from koopsim.training import load_run

TOLERANCES = (1e-2, 1e-3, 1e-4)
SOLVERS = ("anderson", "broyden", "picard")


class TwoLayerCell(nn.Module):
    """f(z, x) = tanh(W_2 relu(W_1 z + U x + b) + c)."""

    def __init__(self, inputs: int, state: int, width: int):
        super().__init__()
        self.state = state
        self.first, self.inject, self.second = (
            nn.Linear(state, width),
            nn.Linear(inputs, width),
            nn.Linear(width, state),
        )

    def initial(self, x):
        return x.new_zeros(len(x), self.state)

    def forward(self, z, x):
        return torch.tanh(self.second(F.relu(self.first(z) + self.inject(x))))


def train_copy_memory() -> TransformerDEQ:
    """The paper's DEQ at a horizon that a laptop can train: about two minutes."""
    run = run_of("copy/deq", "smoke")
    task = CopyMemoryConfig(horizon=5, train=2000, valid=100, test=200)
    recipe = dataclasses.replace(run.recipe, batch_size=10, learning_rate=2e-3, epochs=8)
    run = dataclasses.replace(run, task=task, recipe=recipe)
    part = Stacked([run], build_task(task), torch.device("cpu"), recipe.epochs).part
    for epoch in range(recipe.epochs):
        print(f"  copy memory epoch {epoch + 1}: loss {float(part.epoch().mean()):.3g}", flush=True)
    return part.members.template.eval()  # type: ignore[return-value]


def train_digits() -> tuple[DEQ, nn.Linear, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A DEQ that reads handwritten digits; (deq, readout, train x, train y, test x, test y)."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    data = load_digits()
    x = torch.as_tensor(data.data, dtype=torch.float32) / 16  # type: ignore[attr-defined]
    y = torch.as_tensor(data.target)  # type: ignore[attr-defined]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    deq, readout = DEQ(TwoLayerCell(64, 32, 64), tol=1e-4, max_steps=60), nn.Linear(32, 10)
    adam = torch.optim.Adam([*deq.parameters(), *readout.parameters()], lr=2e-3)
    for _ in range(60):
        for rows in torch.randperm(1400).split(50):
            loss = F.cross_entropy(readout(deq(x[rows])[0]), y[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
    return deq, readout, x[:1400], y[:1400], x[1400:], y[1400:]


@torch.no_grad()
def steps(deq, sim, x) -> list[dict]:
    """Solver steps in the mean, from zero and from the SIM's state."""
    inner = deq.deq if isinstance(deq, TransformerDEQ) else deq
    before = inner.solver, inner.tol, inner.max_steps
    rows = []
    for solver in SOLVERS:
        for tol in TOLERANCES:
            inner.solver, inner.tol, inner.max_steps = solver, tol, 200
            cold_z, cold = solve(deq, x)
            warm_z, warm = WarmStart(sim)(deq, x)
            both = cold.converged & warm.converged
            apart = (cold_z - warm_z)[both].flatten(1).norm(dim=1) / cold_z[both].flatten(1).norm(dim=1)
            a, b = cold.steps[both].double().mean(), warm.steps[both].double().mean()
            rows.append(
                {
                    "solver": solver, "tolerance": tol, "cold_steps": float(a), "warm_steps": float(b),
                    "saved": float(1 - b / a), "cold_unconverged": float((~cold.converged).double().mean()),
                    "warm_unconverged": float((~warm.converged).double().mean()),
                    "apart_median": float(apart.median()), "apart_above_20_tolerances": int((apart > 20 * tol).sum()),
                }
            )  # fmt: skip
            print("  ", {k: round(v, 5) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    inner.solver, inner.tol, inner.max_steps = before
    return rows


def study(name: str, deq, x_train, x_test, dims, closed_inputs: int, route: dict, **options) -> dict:
    print(name, flush=True)
    seen, local = observe(deq, x_test[:32]), linearise(deq, x_test[:32])
    print("  ", seen.counts, seen.agreement, flush=True)
    began = time.perf_counter()
    sim, report = distill(deq, x_train, **options)
    seconds = time.perf_counter() - began
    print("  ", report, f"{seconds:.1f} s", flush=True)
    tried, errors = [], compare(deq, x_test, sim)
    for count in dims:
        row = {"dims": count}
        try:
            closed = closed_form(deq, x_train[:closed_inputs], Monomials(1), dims=count, rtol=1e-6, **route)
            row |= {"observables": closed.observables, "misfit": closed.misfit}
            row["relative_error"] = compare(deq, x_test, closed=closed)["closed form"]
        except KoopsimError as error:
            row["refused"] = str(error)
        tried.append(row)
        print("  ", row, flush=True)
    found = [l for l in local if l.found]
    settled = seen.settled.tolist()
    result = {
        "name": name,
        "observed": {
            "inputs": 32, "verdicts": seen.counts, "agreement": seen.agreement, "settled": int(seen.settled.sum()),
            "jacobian_radius": [round(l.radius, 5) for l in found],
            "jacobian_agrees": sum(l.stable == s for l, s in zip(local, settled, strict=True) if l.found),
            "jacobian_found": len(found),
        },
        "distilled": {**dataclasses.asdict(report), "seconds": seconds},
        "closed_form": tried,
        "relative_errors": errors,
        "steps": steps(deq, sim, x_test),
    }  # fmt: skip
    print("  ", errors, flush=True)
    return result | {"_sim": sim}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "bridge-steps.json")
    parser.add_argument("--copy-run", type=Path, help="a trained copy/deq run directory to use instead")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UnconvergedWarning)  # reported as a share instead

    deq, readout, x, _, x_test, y_test = train_digits()
    digits = study("two-layer tanh cell, digits", deq, x, x_test, (16, None), 600, {}, readout=readout, epochs=100)
    sim = digits.pop("_sim")
    with torch.no_grad():
        digits["accuracy_deq"] = float((readout(deq(x_test)[0]).argmax(1) == y_test).double().mean())
        digits["accuracy_sim"] = float((sim(x_test).argmax(1) == y_test).double().mean())
    print("  ", digits["accuracy_deq"], digits["accuracy_sim"], flush=True)

    if arguments.copy_run:
        from koopsim.runs import RunDirectory

        copy_deq = load_run(arguments.copy_run)
        task = build_task(RunDirectory(arguments.copy_run).read_config()[1].task)
    else:
        copy_deq = train_copy_memory()
        task = build_task(CopyMemoryConfig(horizon=5, train=2000, valid=100, test=200))
    x, x_test = task.split("train")[0], task.split("test")[0]
    route = {"starts": 1, "steps": 40}  # from z_0 alone, and long: most samples are close to z*
    name = "Universal Transformer, copy memory"
    copied = study(name, copy_deq, x, x_test, (24, 40, 80, 120), 500, route, epochs=30, task=task)
    copied.pop("_sim")
    write_json(arguments.out, {"what": __doc__, "deqs": [digits, copied], "environment": environment()})


if __name__ == "__main__":
    main()
