"""WarmStart on the recorded copy memory DEQ at the paper's T = 500, on a CPU.

    python benchmarks/bridge_copy500.py [--train 300] [--test 40] [--states FILE] [--out results/bridge-copy500.json]

A SIM is distilled from the DEQ's equilibria on training sequences; then solver steps from z_0 = 0, from the mean of
these equilibria and from the SIM on test sequences, at equal tolerance, and how far apart the answers are. Solving
300 sequences of 520 tokens is most of the time (a quarter of an hour): --states keeps the equilibria in a file, or
takes them from there.
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
from koopsim.implicit import SOLVERS, TransformerDEQ
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.tasks import build_task
from koopsim.training import load_run

HOME = Path(__file__).resolve().parent.parent
RUN = HOME / "results" / "h200" / "copy-deq"
BATCH = 4
HELD = 0.2  # of the training sequences, not fitted


@torch.no_grad()
def steps(deq, sim, mean, x, solver: str, tolerance: float) -> dict:
    deq.deq.solver, deq.deq.tol, deq.deq.max_steps = solver, tolerance, 25  # in eval mode: 100 steps
    starts = {"cold": None, "mean": mean.expand(len(x), *mean.shape), "warm": WarmStart(sim).start(deq, x)}
    row, found = {"solver": solver, "tolerance": tolerance}, {}
    for name, z0 in starts.items():
        parts = [solve(deq, part, None if z0 is None else z0[i : i + BATCH]) for i, part in batches(x)]
        found[name] = torch.cat([z for z, _ in parts])
        row[f"{name}_steps"] = float(torch.cat([info.steps for _, info in parts]).double().mean())
        row[f"{name}_unconverged"] = int(sum((~info.converged).sum() for _, info in parts))
    apart = {
        k: (z - found["cold"]).flatten(1).norm(dim=1) / found["cold"].flatten(1).norm(dim=1) for k, z in found.items()
    }
    return row | {
        "saved": 1 - row["warm_steps"] / row["cold_steps"],
        "saved_by_the_mean": 1 - row["mean_steps"] / row["cold_steps"],
        "apart_median": float(apart["warm"].median()), "apart_largest": float(apart["warm"].max()),
        "mean_apart_median": float(apart["mean"].median()), "mean_apart_largest": float(apart["mean"].max()),
    }  # fmt: skip


def batches(x: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """(where it begins, part): small ones, since a solve lasts as long as its slowest sequence."""
    return [(i, x[i : i + BATCH]) for i in range(0, len(x), BATCH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--states", type=Path, help="keep the equilibria here, or take them from here")
    parser.add_argument("--out", type=Path, default=HOME / "results" / "bridge-copy500.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    deq, task = load_run(RUN).eval(), build_task(RunDirectory(RUN).read_config()[1].task)
    assert isinstance(deq, TransformerDEQ)
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
            rows.append(steps(deq, sim, mean, x_test, solver, tolerance))
            print(rows[-1], flush=True)
    result = {"what": __doc__, "run": str(RUN.relative_to(HOME)), "distilled": distilled, "test": len(x_test)}
    write_json(options.out, result | {"steps": rows, "environment": environment()})


if __name__ == "__main__":
    main()
