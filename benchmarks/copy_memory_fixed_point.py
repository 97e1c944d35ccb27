"""Is the DEQ's figure that of its fixed point? The recorded DEQ, solved to 1e-5 by each solver, in float64.

python benchmarks/copy_memory_fixed_point.py [--sequences 40] [--out results/copy-deq-fixed-point.json]
"""

import argparse
import warnings
from pathlib import Path

import torch

from koopsim.config import CopyMemoryConfig
from koopsim.implicit import SOLVERS
from koopsim.runs import environment, write_json
from koopsim.tasks import CopyMemory
from koopsim.training import load_run

RUN = Path(__file__).resolve().parent.parent / "results" / "h200" / "copy-deq"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=40)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    task = CopyMemory(CopyMemoryConfig())
    x, y = (t[: arguments.sequences] for t in task.split("test"))
    model = load_run(RUN).double()
    rows = []
    for solver in SOLVERS:
        model.deq.solver, model.deq.max_steps, model.deq.tol = solver, 25, 1e-5  # in eval mode: 100 steps
        losses, info = [], []
        for xs, ys in zip(x.split(20), y.split(20), strict=True):
            losses.append(float(task.loss(model(xs), ys)) * len(xs))
            info.append(model.last_info.forward)
        steps = torch.cat([i.steps for i in info]).double()
        rows.append(
            {
                "solver": solver,
                "loss": sum(losses) / len(x),
                "converged": float(torch.cat([i.converged for i in info]).double().mean()),
                "steps": float(steps.mean()),
                "most_steps": float(steps.max()),
            }
        )
        print(rows[-1], flush=True)
    if arguments.out:
        write_json(arguments.out, {"sequences": len(x), "tolerance": 1e-5, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
