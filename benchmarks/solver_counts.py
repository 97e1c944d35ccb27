"""A DEQ's training step here and in torchdeq: evaluations, how far the solves come, what the gradient is worth.

    python benchmarks/solver_counts.py [--out results/deq-evaluations.json]                           30 s on a core

Each work of `koopsim bench solver`, small, on a CPU: torchdeq's solver, ours to the residual of its answers, judged as
it judges, and ours as it comes, which waits for each part of a state. The gradient, of all parameters, is compared with
that of a float64 solve to 1e-12. In bf16 also to the 1e-3 that it does not resolve.
"""

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from verbs import write

from koopsim.bench.peers import RESIDUALS, loss_scale, solver_sides, solver_stepping
from koopsim.bench.reached import reached
from koopsim.bench.setting import Setting, Sizes
from koopsim.bench.training import Stepping
from koopsim.implicit import DEQ

BATCH, HORIZON = 8, 50
WORKS = (("copy", "float32"), ("own", "float32"), ("multiscale", "float32"), ("multiscale", "bf16"))
UNRESOLVED = 1e-3  # in bf16


def gradient(stepping: Stepping, autocast: torch.dtype | None = None) -> Tensor:
    """Of the loss of the first batch, in all parameters."""
    model = stepping.model.train()
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = stepping.loss(model(stepping.x[: stepping.batch]), stepping.y[: stepping.batch])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.double().flatten() for g in grads])


def exact(stepping: Stepping) -> Tensor:
    """The same in float64, both solves to 1e-12."""
    model = stepping.model.double()
    model.deq = DEQ(model.deq.cell, "anderson", 2000, 1e-12)  # pyright: ignore
    x = stepping.x.double() if stepping.x.is_floating_point() else stepping.x
    return gradient(replace(stepping, x=x))


def sides_of(setting: Setting, work: str, solver: str, scale: float) -> dict[str, Stepping]:
    """Those of the benchmark, ours as it comes, and in bf16 both to what is not resolved."""
    sides, tolerance = solver_sides(setting, work, solver, scale), RESIDUALS[setting.precision].tolerance

    def to(tol: float, name: str) -> Stepping:
        return solver_stepping(name, solver, setting, work, scale, (tol, tol))

    sides["koopsim, each part"] = to(tolerance, "koopsim")
    if tolerance > UNRESOLVED:
        sides |= {f"koopsim, each part, to {UNRESOLVED:g}": to(UNRESOLVED, "koopsim")}
        sides |= {f"torchdeq, to {UNRESOLVED:g}": to(UNRESOLVED, "torchdeq")}
    return sides


def rows_of(work: str, precision: str, batch: int) -> list[dict]:
    sizes = Sizes(horizon=HORIZON, solver_batch=batch, image_batch=batch)
    setting = Setting(torch.device("cpu"), None, sizes, precision)  # pyright: ignore
    scale, found = loss_scale(setting, work), []
    want = exact(solver_stepping("koopsim", "anderson", setting, work, scale))
    for solver in sizes.solvers:
        for name, stepping in sides_of(setting, work, solver, scale).items():
            error = float((gradient(stepping, setting.autocast) - want).norm() / want.norm())
            row = {"work": work, "precision": precision, "solver": solver, "side": name, "gradient_error": error}
            found.append(row | reached(stepping, setting.autocast).as_dict())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for work, precision in WORKS for row in rows_of(work, precision, arguments.batch)]
    write(arguments.out, {"rows": rows, "batch": arguments.batch, "horizon": HORIZON, "seed": 0})


if __name__ == "__main__":
    main()
