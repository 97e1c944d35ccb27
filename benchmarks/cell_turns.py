"""Whether the Transformer cell in a few kernels wins: an evaluation, a product with its transposed Jacobian and a DEQ's
captured training step with them and without, in turns.

    python benchmarks/cell_turns.py [--out results/h200/cell.json]                                     60 s on an H200
    python benchmarks/cell_turns.py --only parts --lanes 16 --threads 64                        other sizes of blocks

Both sides are built in one process, captured, and replayed turn by turn; kept are kernels that win 10%. Errors are the
largest difference from the twin in float64, over its largest entry.
"""

import argparse
import copy
from pathlib import Path

import torch
from torch import Tensor
from verbs import write

from koopsim.bench.setting import CUDA, QUICK, Setting, in_precision, model_of
from koopsim.bench.timing import measure
from koopsim.bench.training import copy_stepping
from koopsim.engine.capture import Recorder
from koopsim.implicit.gradient import pulled
from koopsim.implicit.kernels import cell as kernels

REPEATS = 20  # in a graph, so that the host is not measured


def recorded(f, z: Tensor):
    """y -> y df/dz by autograd."""
    at = z.detach().requires_grad_()
    with torch.enable_grad():
        tape = f(at)
    return lambda y: pulled(tape, at, y)


def far(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


def turn(work: str, batch: int, ways: dict, given: Tensor, want: Tensor, device: torch.device, turns: int) -> dict:
    """Seconds of a map, with the kernels and without, and how far its value is off. A way makes the map: what is
    recorded belongs to the stream it was recorded on."""

    def maker(way):
        def several():
            f = way()
            for _ in range(REPEATS):
                f(given)

        return lambda: Recorder(device).record(several, dict).replay if device.type == "cuda" else several

    errors = {f"{name}_error": far(way()(given), want) for name, way in ways.items()}
    found = measure({n: maker(w) for n, w in ways.items()}, device, turns, dict.fromkeys(ways, REPEATS))
    return {"work": work, "batch": batch} | _row(found) | errors


@torch.no_grad()
def parts(batch: int, length: int, turns: int, device: torch.device) -> list[dict]:
    """An evaluation and a product, at the trained cell."""
    torch.manual_seed(0)
    cell = copy.deepcopy(model_of("copy/deq", device).deq.cell)  # pyright: ignore
    z, y = (torch.randn(batch, length, cell.model_dim, dtype=torch.float64, device=device) for _ in range(2))
    u = torch.randn(batch, length, 3 * cell.heads * cell.head_dim, dtype=torch.float64, device=device)
    f = cell.prepare(u.float())
    exact = copy.deepcopy(cell).double().prepare(u)
    evaluated = {"kernels": lambda: f, "twin": f.plain}
    row = turn("evaluation", batch, evaluated, z.float(), exact(z), device, turns)
    at = z.float()
    products = {"kernels": lambda: f.transposed(at) or recorded(f, at), "twin": lambda: recorded(f, at)}
    return [row, turn("product", batch, products, y.float(), recorded(exact, z)(y), device, turns)]


def step(batch: int, length: int, turns: int, device: torch.device, quick: bool) -> dict:
    """A captured training step."""
    setting, own = Setting(device, None, QUICK if quick else CUDA, "float32"), kernels.can_fuse  # pyright: ignore
    sides = {n: copy_stepping(model_of("copy/deq", device), setting, batch, length) for n in ("kernels", "twin")}

    def maker(name: str):
        def make():
            kernels.can_fuse = own if name == "kernels" else (lambda u, sizes: False)  # asked when the step is captured
            try:
                return sides[name].maker(setting, capture=setting.capture)()
            finally:
                kernels.can_fuse = own

        return make

    found = measure({n: maker(n) for n in sides}, device, turns, {n: s.steps for n, s in sides.items()})
    said = {f"{n}_steps": [int(i.steps.max()), int(i.backward.steps.max())]
            for n, s in sides.items() if (i := s.model.last_info)}  # fmt: skip  # pyright: ignore
    return {"work": "captured step" if setting.capture else "step", "batch": batch} | _row(found) | said


def _row(found: dict) -> dict:
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    return row | {"twin_over_kernels": found["twin"].seconds / found["kernels"].seconds}


def table(rows: list[dict]) -> str:
    lines = [f"{'work':14} {'batch':>5} {'kernels us':>11} {'twin us':>11} {'ratio':>6}  errors of both"]
    for row in rows:
        us = [1e6 * row[name]["seconds"] for name in ("kernels", "twin")]
        off = [f"{row[f'{n}_error']:.1e}" for n in ("kernels", "twin") if f"{n}_error" in row]
        lines.append(
            f"{row['work']:14} {row['batch']:5} {us[0]:11.1f} {us[1]:11.1f} {us[1] / us[0]:6.2f}  {' '.join(off)}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--horizon", type=int, default=500)
    parser.add_argument("--only", choices=("parts", "step"))
    parser.add_argument("--lanes", type=int, help="threads of a tile of queries or keys; else by the batch")
    parser.add_argument("--threads", type=int, help="of a block of queries or keys; else by the batch")
    parser.add_argument("--row-threads", type=int, default=kernels.ROW_THREADS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kernels.ROW_THREADS = given.row_threads
    for name in ("FEW", "MANY"):
        lanes, threads = getattr(kernels, name)
        setattr(kernels, name, (given.lanes or lanes, given.threads or threads))
    rows, device = [], torch.device(given.device)
    with in_precision("float32"):
        for batch in given.batches:
            if given.only != "step":
                rows += parts(batch, given.horizon + 20, given.turns, device)
            if given.only != "parts":
                rows.append(step(batch, given.horizon, given.turns, device, given.quick))
            write(given.out, {"rows": rows, "lanes": given.lanes, "threads": given.threads})
    print(table(rows))


if __name__ == "__main__":
    main()
