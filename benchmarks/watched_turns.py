"""Whether a captured solve gains by leaving out samples that are done: a DEQ's step with and without, in turns.

    python benchmarks/watched_turns.py [--out results/h200/watched.json]                60 s on an H200

Both sides are built in one process, captured, and replayed turn by turn; kept are changes that win 10%. Tolerances are
those of `koopsim bench solver`: what torchdeq's answers have on copy memory (results/h200/deq-solver.json).
"""

import argparse
from pathlib import Path

import torch
from verbs import write

from koopsim.bench.peers import solver_stepping
from koopsim.bench.setting import CUDA, QUICK, Setting, in_precision
from koopsim.bench.timing import measure
from koopsim.implicit import gradient, iteration

TOLERANCES = {"picard": (2.2e-4, 8.3e-4), "broyden": (3.1e-4, 7.8e-4), "anderson": (1e-3, 1e-3)}


def turns(solver: str, count: int, device: torch.device, quick: bool) -> dict:
    """Seconds of a captured step, attention leaving samples out or not, and how many steps samples took."""
    setting, own = Setting(device, None, QUICK if quick else CUDA, "float32"), iteration.watches  # pyright: ignore
    sides = {name: solver_stepping("koopsim", solver, setting, "copy", 1.0, TOLERANCES[solver]) for name in WAYS}

    def maker(name: str):
        def make():
            iteration.watches = gradient.watches = own if WAYS[name] else (lambda f: False)  # asked when captured
            try:
                return sides[name].maker(setting, capture=setting.capture)()
            finally:
                iteration.watches = gradient.watches = own

        return make

    with in_precision("float32"):
        found = measure({n: maker(n) for n in WAYS}, device, count, {n: s.steps for n, s in sides.items()})
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    info = sides["all"].model.last_info
    said = {"steps": info.steps.tolist(), "backward_steps": info.backward.steps.tolist()}
    return {"solver": solver, "all_over_left_out": row["all"]["seconds"] / row["left out"]["seconds"]} | row | said


WAYS = {"left out": True, "all": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for solver in TOLERANCES:
        rows.append(turns(solver, arguments.turns, torch.device(arguments.device), arguments.quick))
        write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
