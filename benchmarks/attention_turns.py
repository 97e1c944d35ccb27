"""Whether the float32 attention kernels win: a DEQ's captured training step with them and with torch's, in turns.

    python benchmarks/attention_turns.py [--out results/h200/attention.json]

Both sides are built in one process, captured, and replayed turn by turn; kept are kernels that win 10%. `apart` is the
attention alone, forward and backward, at the DEQ's sizes. The cell is the one in library calls: in a few kernels it
has an attention of its own (cell_turns.py).
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F
from verbs import write

from koopsim.bench.setting import CUDA, Setting, in_precision, model_of
from koopsim.bench.timing import measure
from koopsim.bench.training import copy_stepping
from koopsim.engine.capture import Recorder
from koopsim.implicit import transformer
from koopsim.implicit.kernels import attention as kernels
from koopsim.implicit.kernels import cell


def whole(batch: int, length: int, turns: int) -> dict:
    """Seconds of a captured step, with the kernels and without."""
    setting, own, units = Setting(torch.device("cuda"), None, CUDA, "float32"), kernels.fits, {}  # pyright: ignore

    def maker(fits):
        model = model_of("copy/deq", setting.device)
        steps = copy_stepping(model, setting, batch, length)

        def make():
            kernels.fits = fits  # asked when the step is captured
            try:
                return steps.maker(setting, capture=True)()
            finally:
                kernels.fits = own

        return make, steps.steps

    makers = {}
    for name, fits in (("kernels", own), ("torch", lambda q, v: False)):
        makers[name], units[name] = maker(fits)
    with in_precision("float32"):
        found = measure(makers, setting.device, turns, units)
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    return {"work": f"copy/deq, captured step, T={length}", "batch": batch} | row | _ratio(row)


def apart(batch: int, length: int, turns: int) -> dict:
    """Seconds of the attention's forward and backward, twenty in a graph."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, length, 10, d, device="cuda", requires_grad=True) for d in (20, 20, 10))
    dy = torch.randn(batch, length, 10, 10, device="cuda")

    def plain(q, k, v):
        turned = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(*turned, is_causal=True, scale=0.2).transpose(1, 2)

    ways = {"kernels": lambda q, k, v: kernels.attention(q, k, v, 0.2, transformer.BLOCK)[0], "torch": plain}

    def maker(way):
        def twenty():
            for _ in range(20):
                torch.autograd.grad(way(q, k, v), (q, k, v), dy)

        return lambda: Recorder(torch.device("cuda")).record(twenty, dict).replay

    found = measure({n: maker(w) for n, w in ways.items()}, torch.device("cuda"), turns, dict.fromkeys(ways, 20))
    row = {name: {"seconds": t.seconds, "spread": t.spread, "turns": t.turns} for name, t in found.items()}
    return {"work": f"attention forward and backward, T={length}", "batch": batch} | row | _ratio(row)


def _ratio(row: dict) -> dict:
    return {"torch_over_kernels": row["torch"]["seconds"] / row["kernels"]["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cell.can_fuse = lambda u, sizes: False
    rows = []
    for work, batch in ((apart, 20), (whole, 20), (apart, 1), (whole, 1)):
        rows.append(work(batch, 500, arguments.turns))
        write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
