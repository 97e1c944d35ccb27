"""Whether our convolutions by tensor cores win: each product beside cuDNN's, then the whole training step, in turns.

    python benchmarks/conv_turns.py [--out results/h200/conv.json] [--variants "PIXELS=256" "FLIGHT=6 GROUPS=1"]

Ours have 40 channels, which is what 38 are padded to; cuDNN is asked for 40 and for the 48 that it has been given so
far. `normed` are the products as a step has them, with a normalisation on the way in and sums on the way out. Kept are
kernels that win 10%. A variant sets constants of `conv_tiles` (PIXELS of a band, WARP_TILES, FLIGHT; WEIGHT_PIXELS,
WEIGHT_TILES, WEIGHT_FLIGHT, GROUPS) and is timed as `normed` is. About a minute on an H200.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from verbs import write

from koopsim.bench.setting import CUDA, Setting, in_precision, model_of
from koopsim.bench.timing import measure
from koopsim.bench.training import image_stepping
from koopsim.engine.capture import Recorder
from koopsim.nn.kernels import conv_tiles

DEVICE = torch.device("cuda")
REPEATS = 10  # of a product in a graph
VARIANTS = (
    "PIXELS=256",
    "WARP_TILES=2 PIXELS=256",
    "FLIGHT=6",
    "WEIGHT_TILES=6",
    "WEIGHT_TILES=6 WEIGHT_PIXELS=256 GROUPS=3",
)

Work = Callable[[], object]


class Operands:
    """Of products with P channels, the same numbers for all P."""

    def __init__(self, batch: int, size: int, P: int, C: int = 38):
        torch.manual_seed(0)
        self.x, self.dy = (self._picture(batch, size, size, P, C) for _ in range(2))
        self.w = self._picture(P, 3, 3, P, C)
        self.w[C:] = 0
        self.table = torch.rand(6, P, device=DEVICE)

    @staticmethod
    def _picture(a: int, b: int, c: int, P: int, C: int) -> Tensor:
        full = torch.zeros(a, b, c, P, device=DEVICE, dtype=torch.bfloat16)
        full[..., :C] = torch.randn(a, b, c, C, device=DEVICE)
        return full

    def planes(self) -> tuple[Tensor, Tensor, Tensor]:
        """As the library takes them: channels last in memory."""
        return tuple(t.permute(0, 3, 1, 2) for t in (self.x, self.dy, self.w))  # pyright: ignore


def library(of: Operands) -> dict[str, Work]:
    x, dy, w = of.planes()
    same = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def backward(mask: list[bool]) -> Tensor:
        return next(t for t in torch.ops.aten.convolution_backward(dy, x, w, *same, mask) if t is not None)

    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, padding=1).permute(0, 2, 3, 1),
        "input": lambda: backward([True, False, False]).permute(0, 2, 3, 1),
        "weights": lambda: backward([False, True, False]).permute(0, 2, 3, 1),
    }


def ours(of: Operands) -> dict[str, Work]:
    return {
        "forward": lambda: conv_tiles.convolved(of.x, of.w)[0],
        "input": lambda: conv_tiles.convolved(of.dy, of.w, turned=True)[0],
        "weights": lambda: conv_tiles.weight_gradient(of.x, of.dy),
    }


def normed(of: Operands) -> dict[str, Work]:
    return {
        "forward": lambda: conv_tiles.convolved(of.x, of.w, before=of.table, moments=True)[0],
        "input": lambda: conv_tiles.convolved(of.dy, of.w, turned=True, after=(of.x, of.table))[0],
        "weights": lambda: conv_tiles.weight_gradient(of.x, of.dy, before=of.table),
    }


def microseconds(works: dict[str, Work], turns: int) -> dict[str, float]:
    """Of a call, in captured graphs, in turns."""

    def maker(work: Work):
        def several() -> None:
            for _ in range(REPEATS):
                work()

        return lambda: Recorder(DEVICE).record(several, dict).replay

    makers = {name: maker(work) for name, work in works.items()}
    found = measure(makers, DEVICE, turns, dict.fromkeys(works, REPEATS))
    return {name: 1e6 * t.seconds for name, t in found.items()}


def errors(product: str, of: Operands) -> dict[str, float]:
    """The largest, by the largest number of float64."""
    exact = Operands.__new__(Operands)
    exact.x, exact.dy, exact.w = of.x.double(), of.dy.double(), of.w.double()
    want = library(exact)[product]()
    sides = {"ours": ours(of)[product](), "cuDNN": library(of)[product]()}
    return {n: float((y.double() - want).abs().max() / want.abs().max()) for n, y in sides.items()}  # pyright: ignore


def apart(batch: int, size: int, turns: int) -> list[dict]:
    narrow, wide = Operands(batch, size, 40), Operands(batch, size, 48)
    sides = {"ours": ours(narrow), "normed": normed(narrow), "cuDNN 40": library(narrow), "cuDNN 48": library(wide)}
    rows = []
    for product in ours(narrow):
        us = microseconds({name: works[product] for name, works in sides.items()}, turns)
        row = {"product": product, "batch": batch, "size": size, "us": us}
        row["cudnn_over_ours"] = min(us["cuDNN 40"], us["cuDNN 48"]) / us["ours"]
        if batch == 64:
            row["errors"] = errors(product, narrow)
        rows.append(row)
        line(row)
    return rows


def varied(variant: str, turns: int) -> list[dict]:
    """The products with other constants, at the largest batches."""
    given = {name: int(value) for name, value in (pair.split("=") for pair in variant.split())}
    before = {name: getattr(conv_tiles, name) for name in given}
    rows = []
    _set(given)
    try:
        for batch, size in ((512, 32), (128, 32), (512, 16)):
            us = microseconds(normed(Operands(batch, size, 40)), turns)
            rows.append({"variant": variant, "batch": batch, "size": size, "us": us})
            line(rows[-1])
    except Exception as error:  # a variant may have too much of something
        rows.append({"variant": variant, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
        line(rows[-1])
    finally:
        _set(before)
    return rows


def _set(constants: dict[str, int]) -> None:
    for name, value in constants.items():
        setattr(conv_tiles, name, value)
    conv_tiles.tiles_of.cache_clear()
    conv_tiles.tiles_of_weights.cache_clear()


def whole(batch: int, turns: int) -> dict:
    """Milliseconds of a captured bf16 training step of cifar10/sim-single, with the kernels and without."""
    setting = Setting(DEVICE, None, CUDA, "bf16")  # pyright: ignore[reportArgumentType]
    makers, units = {}, {}
    for name, clusters in (("ours", "1"), ("cuDNN", "0")):
        steps = image_stepping(model_of("cifar10/sim-single", DEVICE), setting, batch, (3, 32, 32))

        def make(steps=steps, clusters=clusters):
            os.environ["KOOPSIM_CLUSTERS"] = clusters  # asked when the step is captured
            try:
                return steps.maker(setting, capture=True)()
            finally:
                del os.environ["KOOPSIM_CLUSTERS"]

        makers[name], units[name] = make, steps.steps
    with in_precision("bf16"):
        found = measure(makers, DEVICE, turns, units)
    ms = {name: 1e3 * t.seconds for name, t in found.items()}
    row = {"work": "cifar10/sim-single, captured step", "batch": batch, "ms": ms}
    return row | {"cudnn_over_ours": ms["cuDNN"] / ms["ours"]}


def line(row: dict) -> None:
    """A row of the table, as soon as it is there."""
    what = row.get("work") or row.get("product") or row["variant"]
    times = "  ".join(f"{n} {t:.4g}" for n, t in (row.get("us") or row.get("ms") or {}).items())
    more = f"{row['cudnn_over_ours']:.2f} x" if "cudnn_over_ours" in row else row.get("failed", "")
    wrong = "  ".join(f"{n} {e:.1e}" for n, e in row.get("errors", {}).items())
    print(f"{what:36} {row.get('batch', ''):>4} {row.get('size', ''):>3}  {times}  {more}  {wrong}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 128, 64])
    parser.add_argument("--variants", nargs="*", default=VARIANTS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    steps, products, variants = [], [], []

    def save() -> None:
        write(arguments.out, {"steps": steps, "products": products, "variants": variants})

    for batch in arguments.batches:
        steps.append(whole(batch, max(5, arguments.turns)))
        line(steps[-1])
    for batch in arguments.batches:
        for size in (32, 16):
            products += apart(batch, size, arguments.turns)
    for variant in arguments.variants:
        variants += varied(variant, arguments.turns)
    save()


if __name__ == "__main__":
    main()
