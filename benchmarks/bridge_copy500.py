"""WarmStart on the recorded copy memory DEQ at the paper's T = 500, on a CPU.

    python benchmarks/bridge_copy500.py [--train 300] [--test 10] [--states FILE] [--out results/bridge-copy500.json]

A SIM is distilled from the DEQ's equilibria on training sequences; then solver steps from z_0 = 0 and from the SIM
on test sequences, at equal tolerance, and how far apart the two answers are. Solving 300 sequences of 520 tokens is
most of the time (a quarter of an hour): --states keeps the equilibria in a file, or takes them from there.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import torch

from koopsim.bridge import WarmStart
from koopsim.bridge.distill import equilibria, relative_error, student, teach
from koopsim.bridge.hidden import solve
from koopsim.implicit import SOLVERS
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.tasks import build_task
from koopsim.train import load

HOME = Path(__file__).resolve().parent.parent
RUN = HOME / "results" / "h200" / "copy-deq"
HELD = 0.2  # of the training sequences, not fitted


@torch.no_grad()
def steps(deq, sim, x, solver: str, tolerance: float) -> dict:
    deq.deq.solver, deq.deq.tol, deq.deq.max_steps = solver, tolerance, 25  # in eval mode: 100 steps
    cold_z, cold = solve(deq, x)
    warm_z, warm = WarmStart(sim)(deq, x)
    apart = (cold_z - warm_z).flatten(1).norm(dim=1) / cold_z.flatten(1).norm(dim=1)
    a, b = float(cold.steps.double().mean()), float(warm.steps.double().mean())
    return {
        "solver": solver, "tolerance": tolerance, "cold_steps": a, "warm_steps": b, "saved": 1 - b / a,
        "cold_unconverged": int((~cold.converged).sum()), "warm_unconverged": int((~warm.converged).sum()),
        "apart_median": float(apart.median()), "apart_largest": float(apart.max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--states", type=Path, help="keep the equilibria here, or take them from here")
    parser.add_argument("--out", type=Path, default=HOME / "results" / "bridge-copy500.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    deq, task = load(RUN).eval(), build_task(RunDirectory(RUN).read_config()[1].task)
    x = task.split("train")[0][: options.train]
    if options.states and options.states.exists():
        z, converged = torch.load(options.states)
    else:
        z, converged = equilibria(deq, x, 20)
        if options.states:
            torch.save((z, converged), options.states)
    x, z = x[converged], z[converged]
    fitted = round((1 - HELD) * len(x))
    torch.manual_seed(0)
    sim = student(deq, x, z).to(z)
    began = time.perf_counter()
    teach(sim, x[:fitted], z[:fitted], options.epochs, 10, 3e-3)
    mean = z[:fitted].mean(dim=0)
    distilled = {
        "fitted": fitted, "heldout": len(x) - fitted, "unconverged": int((~converged).sum()),
        "train_error": relative_error(sim, x[:fitted], z[:fitted]),
        "heldout_error": relative_error(sim, x[fitted:], z[fitted:]),
        "error_of_the_mean_state": float((z[fitted:] - mean).norm() / z[fitted:].norm()),
        "seconds": time.perf_counter() - began,
    }  # fmt: skip
    print(distilled, flush=True)
    x_test, rows = task.split("test")[0][: options.test], []
    for solver in SOLVERS:
        for tolerance in (1e-2, 1e-3, 1e-4):
            rows.append(steps(deq, sim, x_test, solver, tolerance))
            print(rows[-1], flush=True)
    result = {"what": __doc__, "run": str(RUN.relative_to(HOME)), "distilled": distilled, "test": len(x_test)}
    write_json(options.out, result | {"steps": rows, "environment": environment()})


if __name__ == "__main__":
    main()
