"""Whether the kernels of all pixels win: each product beside the library's with its passes, then trainings, in turns.

    python benchmarks/pixel_turns.py [--out results/h200/pixels.json]                   100 s on an H200
    python benchmarks/pixel_turns.py --sizes 128-8-4-2 64-4-2-2 --turns 0               blocks of these sizes

Sixteen networks of 512 features and layers of 256 on 65,536 pixels each, in bf16. The products:

    layer    relu(x W^T + b)                                      library: a product, then bias and ReLU in one pass
    last     the same, colours, loss and the gradient back        library: the same, and what autograd makes of the rest
    back     [a > 0] (d W) and its sum over pixels                library: a product, then both in one pass
    summed   d^T a over all pixels, by slices                     library's own, both of `last`'s and of `layer`'s width

A size is rows-warps-stages-slices. 128-8-4 has one block a processor and the fewest bytes from the cache; 64-8-2 two
blocks, of which one loads while the other stores, but fetches the weights twice as often; slices are of `summed` alone.
Trainings are `koopsim train image/sim-rff` on sixteen pictures that are in no table, with KOOPSIM_PIXELS=1, in the
sizes that were best, and without: seconds of its steps, and the PSNR of both, which differ by rounding. Kept are
kernels that win 10%. What is expected of each: docs/speed.md, "Where the time went".
"""

import argparse
import itertools
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from verbs import trained, write

from koopsim.bench.timing import measure
from koopsim.engine.capture import Recorder
from koopsim.nn.kernels import bias_relu, pixels

DEVICE = torch.device("cuda")
MODELS, PIXELS, FEATURES, WIDTH = 16, 65_536, 512, 256
REPEATS = 5  # of a product in a graph
PICTURES = ("--task.pictures", "text", "--task.count", 16, "--task.seed", 11, "--precision", "bf16")

Work = Callable[[], object]
Size = tuple[int, int, int, int]  # rows of a block, warps, stages of its loop, slices of the sums over pixels
SIZES = ("128-8-4-2", "64-8-2-2", "128-8-3-4", "128-8-4-1")  # none spills a register: ptxas for sm_90a


def random(*shape: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(MODELS, *shape, device=DEVICE) / shape[-1] ** 0.5).to(kind)


def works() -> dict[str, dict[str, Work]]:
    """Each product by both."""
    torch.manual_seed(0)
    x, a, d = random(PIXELS, FEATURES), random(PIXELS, WIDTH), random(PIXELS, WIDTH)
    W, W2, b = random(WIDTH, FEATURES), random(WIDTH, WIDTH), random(WIDTH, kind=torch.float32)
    C, c, t = (random(*shape, kind=torch.float32) for shape in ((3, WIDTH), (3,), (PIXELS, 3)))
    relu, back = bias_relu.bias_relu_of_models, bias_relu.bias_relu_backward

    def ended() -> tuple[Tensor, ...]:
        """As `nn.folded` has it: three colours padded to eight for a fast product, and autograd's way back."""
        z = relu(torch.bmm(a, W2.mT), b).requires_grad_()
        C8, c8 = F.pad(C, (0, 0, 0, 5)).to(z.dtype).requires_grad_(), F.pad(c, (0, 5)).to(z.dtype).requires_grad_()
        y = torch.baddbmm(c8[:, None], z, C8.mT)[..., :3].float()
        dz, *others = torch.autograd.grad((y - t).square().mean(), [z, C8, c8])
        return (*back(z.detach(), dz), *others)

    return {
        "layer": {"ours": lambda: pixels._forth(x, W, b), "library": lambda: relu(torch.bmm(x, W.mT), b)},
        "last": {"ours": lambda: pixels._turn(a, W2, b, C, c, t, False), "library": ended},
        "back": {"ours": lambda: pixels._down(d, W2, a), "library": lambda: back(a, torch.bmm(d, W2))},
        "summed, 256": {"library": lambda: pixels._over_rows(d, a)},
        "summed, 512": {"library": lambda: pixels._over_rows(d, x)},
    }


def microseconds(sides: dict[str, Work], turns: int) -> dict[str, float]:
    """Of a call, in captured graphs, in turns."""

    def maker(work: Work) -> Callable[[], Callable[[], object]]:
        def several() -> None:
            for _ in range(REPEATS):
                work()

        return lambda: Recorder(DEVICE).record(several, dict).replay

    found = measure({name: maker(work) for name, work in sides.items()}, DEVICE, turns, dict.fromkeys(sides, REPEATS))
    return {name: 1e6 * t.seconds for name, t in found.items()}


def parse(size: str) -> Size:
    rows, warps, stages, slices = map(int, size.split("-"))
    return rows, warps, stages, slices


def set_size(size: Size) -> None:
    pixels.ROWS, warps, stages, pixels.SLICES = size
    pixels.LAUNCH = {"num_warps": warps, "num_stages": stages}


def products(size: Size, turns: int) -> list[dict]:
    set_size(size)
    found = []
    for name, sides in works().items():
        row: dict = {"product": name, "size": "-".join(map(str, size))}
        try:
            row["us"] = microseconds(sides, turns)
        except Exception as error:  # a variant may have too much of something
            row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        found.append(row)
        print(*row.values(), flush=True)
    return found


def best(rows: list[dict]) -> Size:
    """That whose products take the least together; of those that failed none, unless all did."""
    sums: dict[str, float] = {}
    for row in rows:
        own = row.get("us", {"library": math.inf})
        sums[row["size"]] = sums.get(row["size"], 0.0) + own.get("ours", own["library"])
    return parse(min(sums, key=sums.__getitem__))


def trainings(turns: int, epochs: int) -> list[dict]:
    found: dict[str, list[dict]] = {"1": [], "0": []}
    for _, asked in itertools.product(range(turns), found):
        os.environ["KOOPSIM_PIXELS"] = asked
        found[asked].append(trained("image/sim-rff", *PICTURES, "--recipe.epochs", epochs))
    keys = ("train_seconds", "set_up_seconds", "milliseconds_per_step")
    rows = []
    for asked, results in found.items():
        row = {"kernels": asked == "1"} | {key: statistics.median(r[key] for r in results) for key in keys if results}
        rows.append(row | {"psnr": [r["test"]["psnr"] for r in results]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="rows-warps-stages-slices")
    parser.add_argument("--turns", type=int, default=2, help="of trainings")
    parser.add_argument("--epochs", type=int, default=10, help="of 100 steps")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict] = []
    for size in arguments.sizes:
        rows += products(parse(size), turns=5)
        write(arguments.out, {"products": rows, "trainings": []})
    if arguments.turns:
        set_size(chosen := best(rows))
        found = trainings(arguments.turns, arguments.epochs)
        write(arguments.out, {"products": rows, "size": "-".join(map(str, chosen)), "trainings": found})


if __name__ == "__main__":
    main()
