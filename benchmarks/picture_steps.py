"""At full size from the RFF-only SIM to Tancik et al.'s network one step at a time, on pictures that are in no table.

    python benchmarks/picture_steps.py PHOTOGRAPHS --device cuda --out results/h200/picture-steps.json   # H200, minutes

What picture_gap.py does in small. The two differ in U V, learnt or the identity; in how the matrices start; in the
waves' amplitude, sqrt(2/M) or 1; in the sigmoid; and in the number of layers with a ReLU (nu has two, Tancik et al.'s
network three). All pictures of a variant are trained at once, 2,000 steps of Adam at a constant rate, each picture with
features of its own, the same for all variants. At a constant rate PSNR moves by tenths of a dB from step to step:
shown is the mean of looks at the last steps, and the last one. Nothing is chosen here: every figure is shown.
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from picture_factors import OFFSETS, SEED_OF_TEXT
from torch import Tensor, nn
from verbs import write

from koopsim.nn import RandomFourierFeatures
from koopsim.pictures import picture_set


@dataclass(frozen=True)
class Size:
    size: int = 512
    features: int = 512
    width: int = 256
    steps: int = 2000
    looks: int = 5
    between: int = 100  # steps between two looks


QUICK = Size(32, 16, 8, steps=6, looks=2, between=2)


@dataclass(frozen=True)
class Variant:
    """A network on the waves psi; matrices with no ReLU between them are one map, learnt as several."""

    before: bool = False  # V and U, learnt, in front of the first layer
    after: bool = True  # nu's last layer in front of h
    layers: int = 2  # with a ReLU
    glorot: bool = False
    amplitude: bool = False  # waves between -1 and 1
    sigmoid: bool = False

    def build(self, s: Size) -> list[nn.Module]:
        found: list[nn.Module] = []
        if self.before:
            found += [nn.Linear(s.features, s.features // 2, False), nn.Linear(s.features // 2, s.features, False)]
        widths = [s.features, *[s.width] * self.layers]
        for inputs, outputs in itertools.pairwise(widths):
            found += [nn.Linear(inputs, outputs), nn.ReLU()]
        found += [nn.Linear(s.width, s.width)] if self.after else []
        found.append(nn.Linear(s.width, 3))
        if self.glorot:
            for layer in found:
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_normal_(layer.weight)
                    if layer.bias is not None:
                        nn.init.normal_(layer.bias, std=1e-2)
        return found


VARIANTS = {
    "SIM (the paper's)": Variant(before=True),
    "U V = I": Variant(),
    "U V = I, waves of amplitude 1": Variant(amplitude=True),
    "U V = I, sigmoid": Variant(sigmoid=True),
    "U V = I, Glorot's start": Variant(glorot=True),
    "U V = I, amplitude 1, Glorot's start, sigmoid": Variant(amplitude=True, glorot=True, sigmoid=True),
    "Tancik et al., two layers": Variant(False, False, 2, True, True, True),
    "Tancik et al. without the sigmoid": Variant(False, False, 3, True, True, False),
    "Tancik et al.": Variant(False, False, 3, True, True, True),
}


class Stack:
    """A variant for each picture, its matrices stacked; neighbouring ones are multiplied first (koopsim.nn.folded)."""

    def __init__(self, variant: Variant, s: Size, pictures: int, seed: int, device: str):
        torch.manual_seed(seed)
        made = [variant.build(s) for _ in range(pictures)]
        self.plan: list[list[tuple[Tensor, Tensor | None]]] = [[]]
        for layers in zip(*made, strict=True):
            if isinstance(layers[0], nn.ReLU):
                self.plan.append([])
            else:
                self.plan[-1].append((stacked([m.weight for m in layers], device), bias_of(layers, device)))
        self.parameters = [t for run in self.plan for pair in run for t in pair if t is not None]
        self.sigmoid = variant.sigmoid

    def __call__(self, x: Tensor) -> Tensor:
        """(P, pixels, features) -> (P, pixels, 3)"""
        for place, run in enumerate(self.plan):
            W, b = run[0]
            for W2, b2 in run[1:]:
                b = b2 if b is None else (W2 @ b.unsqueeze(2)).squeeze(2) + (0 if b2 is None else b2)
                W = W2 @ W
            assert b is not None
            x = torch.baddbmm(b.unsqueeze(1), x, W.mT)
            x = x.relu() if place < len(self.plan) - 1 else x
        return x.sigmoid() if self.sigmoid else x


def stacked(tensors: Sequence[Tensor], device: str) -> Tensor:
    return torch.stack([t.detach() for t in tensors]).to(device).requires_grad_()


def bias_of(layers: Sequence[nn.Module], device: str) -> Tensor | None:
    found = [layer.bias for layer in layers]
    return None if found[0] is None else stacked(found, device)  # pyright: ignore[reportArgumentType]


def quarters(s: Size, values: Tensor, bandwidth: float, device: str) -> dict[str, tuple[Tensor, Tensor]]:
    """{split: (psi, colours)} of all pictures, each with frequencies of its own."""
    torch.manual_seed(0)
    psis = [RandomFourierFeatures(2, s.features, bandwidth).to(device) for _ in values]
    axis = torch.arange(s.size) / s.size
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    found = {}
    for name, (r, c) in OFFSETS.items():
        x = grid[r::2, c::2].reshape(-1, 2).to(device)
        colours = values[:, r::2, c::2].flatten(1, 2).to(device)
        found[name] = torch.stack([psi(x) for psi in psis]), colours
    return found


def trained(variant: Variant, s: Size, data: dict[str, tuple[Tensor, Tensor]], rate: float, seed: int) -> dict:
    """{split: (looks, pictures)} of PSNR."""
    x, y = data["train"]
    model = Stack(variant, s, len(x), seed, str(x.device))
    unit = math.sqrt(s.features / 2) if variant.amplitude else 1.0
    x = unit * x
    optimizer = torch.optim.Adam(model.parameters, rate, fused=x.is_cuda)
    looks: dict[str, list[list[float]]] = {name: [] for name in OFFSETS}
    for step in range(1, s.steps + 1):
        optimizer.zero_grad()
        (model(x) - y).square().mean((1, 2)).sum().backward()
        optimizer.step()
        left = s.steps - step
        if left % s.between == 0 and left // s.between < s.looks:
            with torch.no_grad():
                for name, (waves, colours) in data.items():
                    error = (model(unit * waves) - colours).square().mean((1, 2))
                    looks[name].append((-10 * error.log10()).tolist())
    return looks


def row_of(looks: dict[str, list[list[float]]], kinds: dict[str, slice]) -> dict:
    """Means over the last looks and pictures, the last look's, and over looks of each picture's test pixels."""
    found: dict = {"psnr": {}, "last": {}}
    for kind, at in kinds.items():
        tables = {name: torch.tensor(values)[:, at] for name, values in looks.items()}
        found["psnr"][kind] = {name: float(t.mean()) for name, t in tables.items()}
        found["last"][kind] = {name: float(t[-1].mean()) for name, t in tables.items()}
        found[f"{kind}, test of each"] = tables["test"].mean(0).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bandwidths", type=float, nargs="+", default=[0.012])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--count", type=int, default=4, help="pictures of each kind")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), help="some of them")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32, as Table 3's rows have it
    s, count = QUICK if arguments.quick else Size(), arguments.count
    own = picture_set(str(arguments.photographs), s.size, count=count)
    text = picture_set("text", s.size, count=count, seed=SEED_OF_TEXT)
    values = torch.tensor(np.stack([*own.values, *text.values]), dtype=torch.float32)
    kinds, rows = {"photographs": slice(0, len(own)), "text": slice(len(own), None)}, []
    said = {"size": s.size, "features": s.features, "steps": s.steps, "looks": s.looks}
    said |= {"names": [*own.names, *text.names]}
    for bandwidth in arguments.bandwidths:
        data = quarters(s, values, bandwidth, arguments.device)
        for name in arguments.only or VARIANTS:
            for rate in arguments.rates:
                for seed in range(arguments.seeds):
                    looks = trained(VARIANTS[name], s, data, rate, seed)
                    place = {"variant": name, "bandwidth": bandwidth, "rate": rate, "seed": seed}
                    rows.append(place | row_of(looks, kinds))
                    write(arguments.out, said | {"rows": rows})


if __name__ == "__main__":
    main()
