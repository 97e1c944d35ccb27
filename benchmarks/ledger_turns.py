"""Whether the kernels of a solver's books win: a captured training step with them and with tensors, in turns.

    python benchmarks/ledger_turns.py [--out results/h200/ledger-turns.json]                           60 s on an H200
    python benchmarks/ledger_turns.py --eager [--out results/h200/ledger-turns-eager.json]      the same, not captured

Both sides are built in one process, captured, and replayed turn by turn; kept are kernels that win 10%.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from verbs import write

from koopsim.bench.peers import solver_stepping
from koopsim.bench.setting import CUDA, QUICK, Setting, in_precision
from koopsim.bench.timing import measure
from koopsim.implicit import iteration
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.ledger import Ledger, ledger_of


def called(direct: bool) -> Callable[[Tensor, Tolerance], Ledger]:
    """The kernels as operators of torch, which see compile and export, or `direct`, called as they are."""

    def make(z: Tensor, tol: Tolerance) -> Ledger:
        if z.is_cuda:
            from koopsim.implicit.kernels import ledger

            for name in KERNELS:
                operator = OPERATORS.setdefault(name, getattr(ledger, name))
                setattr(ledger, name, getattr(ledger, f"_run_{name}") if direct else operator)
        return ledger_of(z, tol)

    return make


KERNELS = ("measure", "judge", "choose")
OPERATORS: dict[str, Callable[..., None]] = {}
WAYS = {"kernels": called(False), "direct": called(True), "tensors": Ledger}  # on a CPU NumPy's and torch's


def turns(work: str, solver: str, arguments: argparse.Namespace) -> dict:
    """Seconds of a step with either, asked for when the step is captured."""
    device, precision = torch.device(arguments.device), "bf16" if work == "multiscale" else "float32"
    setting = Setting(device, None, QUICK if arguments.quick else CUDA, precision)  # pyright: ignore
    sides = {name: solver_stepping("koopsim", solver, setting, work) for name in WAYS}

    def maker(name: str):
        def make():
            iteration.ledger_of = WAYS[name]
            capture = setting.capture and not arguments.eager
            work = sides[name].maker(setting, capture=capture)()
            if not capture:  # nothing is recorded: the choice is made in every step
                return lambda: (setattr(iteration, "ledger_of", WAYS[name]), work())[1]
            iteration.ledger_of = ledger_of
            return work

        return make

    with in_precision(precision):
        found = measure({n: maker(n) for n in WAYS}, device, arguments.turns, {n: s.steps for n, s in sides.items()})
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    said = {"work": work, "solver": solver, "precision": precision}
    over = {f"{name}_over_kernels": row[name]["seconds"] / row["kernels"]["seconds"] for name in ("direct", "tensors")}
    return said | over | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="without a captured graph: the host's part counts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for work, solver in itertools.product(("copy", "multiscale"), ("picard", "anderson")):
        rows.append(turns(work, solver, arguments) | {"captured": not arguments.eager})
        write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
