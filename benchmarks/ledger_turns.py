"""Whether the kernels of a solver's books win: a captured training step with them and with tensors, in turns.

    python benchmarks/ledger_turns.py [--out results/h200/ledger-turns.json]                           60 s on an H200

Both sides are built in one process, captured, and replayed turn by turn; kept are kernels that win 10%.
"""

import argparse
import itertools
from pathlib import Path

import torch
from verbs import write

from koopsim.bench.peers import solver_stepping
from koopsim.bench.setting import CUDA, QUICK, Setting, in_precision
from koopsim.bench.timing import measure
from koopsim.implicit import iteration
from koopsim.implicit.ledger import Ledger, ledger_of

WAYS = {"kernels": ledger_of, "tensors": Ledger}  # on a CPU, to try this script out: NumPy's and torch's


def turns(work: str, solver: str, arguments: argparse.Namespace) -> dict:
    """Seconds of a step with either, asked for when the step is captured."""
    device, precision = torch.device(arguments.device), "bf16" if work == "multiscale" else "float32"
    setting = Setting(device, None, QUICK if arguments.quick else CUDA, precision)  # pyright: ignore
    sides = {name: solver_stepping("koopsim", solver, setting, work) for name in WAYS}

    def maker(name: str):
        def make():
            iteration.ledger_of = WAYS[name]
            work = sides[name].maker(setting, capture=setting.capture)()
            if not setting.capture:  # nothing is recorded: the choice is made in every step
                return lambda: (setattr(iteration, "ledger_of", WAYS[name]), work())[1]
            iteration.ledger_of = ledger_of
            return work

        return make

    with in_precision(precision):
        found = measure({n: maker(n) for n in WAYS}, device, arguments.turns, {n: s.steps for n, s in sides.items()})
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    said = {"work": work, "solver": solver, "precision": precision}
    return said | {"tensors_over_kernels": row["tensors"]["seconds"] / row["kernels"]["seconds"]} | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for work, solver in itertools.product(("copy", "multiscale"), ("picard", "anderson")):
        rows.append(turns(work, solver, arguments))
        write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
