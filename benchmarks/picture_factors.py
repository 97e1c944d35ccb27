"""What learning U V as two matrices costs a picture: the same functions, learnt as one; Tancik et al.'s beside.

    python benchmarks/picture_factors.py PHOTOGRAPHS --out results/picture-factors.json               # a core, an hour
    python benchmarks/picture_factors.py PHOTOGRAPHS --middle --out results/picture-factors-256.json  # two

Without a lift and with U, V free, nu_1 U V is any matrix: z = nu(U V psi(x)) is a perceptron of two hidden layers on
psi, whichever U and V make it up. Each pair of variants begins as the same function of the same kind and differs in
what Adam moves: nu_1, U and V, nu_3 and h, or the products nu_1 U V and h nu_3 (`outright`), or nu_1 alone while U V
stays a projector (`kept`). Of rank N there is one projector, the identity: what a user can ask for (`U V = I`).
Small is 128 x 128, 128 features, layers of 64, bandwidth 0.064: a quarter of Table 3's pictures. --middle is half of
them, fewer pictures and one seed. 2,000 steps at a constant rate. PHOTOGRAPHS is a folder of pictures that are in no
table, as many texts are made here; nothing is chosen, all are shown.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from verbs import write

from koopsim.nn import SIM, RandomFourierFeatures, count_parameters
from koopsim.nn.sim import start_evenly
from koopsim.nn.tancik import FourierNetwork
from koopsim.pictures import picture_set

SEED_OF_TEXT = 13
OFFSETS = {"train": (0, 0), "valid": (0, 1), "test": (1, 1)}  # row, column, as the paper cuts a picture


@dataclass(frozen=True)
class Size:
    """How much of it all."""

    size: int = 128
    features: int = 128
    width: int = 64
    bandwidth: float = 0.064
    rate: float = 1e-3
    steps: int = 2000
    pictures: int = 8  # of each kind
    seeds: int = 3


MIDDLE = Size(256, 256, 128, 0.024, pictures=4, seeds=1)
QUICK = Size(32, 16, 8, 0.2, steps=3, pictures=1, seeds=1)


def sim(s: Size, even: bool, whole: bool = False) -> SIM:
    """U V learnt, or U V = I: `--model.projector --model.rank N`."""
    psi = RandomFourierFeatures(2, s.features, s.bandwidth)
    model = SIM(nn.Identity(), 2, 3, s.width, psi, s.features if whole else None, projector=whole)
    if even:
        start_evenly(model)
    return model


class Outright(nn.Module):
    """A SIM with the products of its neighbouring matrices in the place of the matrices: it begins as the same map."""

    def __init__(self, model: SIM):
        super().__init__()
        first, second, third = (model.nu[i] for i in (0, 2, 4))
        W, z = first.weight @ model.limit.matrix(), model.h.weight @ third.weight
        end = model.h.weight @ third.bias + model.h.bias
        self.psi, self.pairs = model.psi, nn.ParameterList()
        for t in (W, first.bias, second.weight, second.bias, z, end):
            self.pairs.append(nn.Parameter(t.detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        W, b, W2, b2, W3, b3 = self.pairs
        return F.linear(F.relu(F.linear(F.relu(F.linear(self.psi(x), W, b)), W2, b2)), W3, b3)


def kept(s: Size) -> SIM:
    """U V the projector it begins as: nothing of it is learnt."""
    model = sim(s, even=True)
    model.limit.requires_grad_(False)
    return model


def tancik(s: Size, layers: int = 3) -> nn.Module:
    return FourierNetwork(2, s.features, 1 / (2 * math.pi * s.bandwidth), s.width, 3, layers)


VARIANTS: dict[str, Callable[[Size], nn.Module]] = {
    "SIM, PyTorch's start (the paper's)": partial(sim, even=False),
    "SIM, PyTorch's start, outright": lambda s: Outright(sim(s, even=False)),
    "SIM, even start": partial(sim, even=True),
    "SIM, even start, outright": lambda s: Outright(sim(s, even=True)),
    "SIM, even start, U V kept": kept,
    "SIM, U V = I": partial(sim, even=False, whole=True),
    "SIM, U V = I, even start": partial(sim, even=True, whole=True),
    "Tancik et al., two hidden layers": partial(tancik, layers=2),
    "Tancik et al.": tancik,
}
MIDDLE_VARIANTS = (
    "SIM, PyTorch's start (the paper's)", "SIM, U V = I", "SIM, PyTorch's start, outright", "SIM, even start, outright",
    "Tancik et al., two hidden layers", "Tancik et al.",
)  # fmt: skip


def quarters(colours: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    axis = torch.arange(len(colours)) / len(colours)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    return {
        name: (grid[r::2, c::2].reshape(-1, 2), colours[r::2, c::2].reshape(-1, 3)) for name, (r, c) in OFFSETS.items()
    }


def fitted(make: Callable[[Size], nn.Module], s: Size, colours: Tensor, seed: int) -> tuple[dict[str, float], int]:
    """PSNR of the three quarters after training on the first."""
    torch.manual_seed(seed)
    model, data = make(s), quarters(colours)
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer, (x, y) = torch.optim.Adam(learnt, s.rate), data["train"]
    for _ in range(s.steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        found = {n: -10 * math.log10(float((model(x) - y).square().mean())) for n, (x, y) in data.items()}
    return found, count_parameters(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--middle", action="store_true")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), help="some of them")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    s = QUICK if arguments.quick else MIDDLE if arguments.middle else Size()
    own = picture_set(str(arguments.photographs), s.size, count=s.pictures)
    text = picture_set("text", s.size, count=s.pictures, seed=SEED_OF_TEXT)
    kinds, rows = {"photographs": own, "text": text}, []
    for name in arguments.only or (MIDDLE_VARIANTS if arguments.middle else VARIANTS):
        make = VARIANTS[name]
        row: dict = {"variant": name}
        for kind, shown in kinds.items():
            fits = [[fitted(make, s, torch.tensor(v), seed) for v in shown.values] for seed in range(s.seeds)]
            row["parameters"] = fits[0][0][1]
            row[kind] = {q: float(np.mean([f[q] for of in fits for f, _ in of])) for q in OFFSETS}
            row[f"{kind}, test of each seed"] = [float(np.mean([f["test"] for f, _ in of])) for of in fits]
            row[f"{kind}, test of each"] = [[f["test"] for f, _ in of] for of in fits]
        rows.append(row)
        write(arguments.out, asdict(s) | {"names": [*own.names, *text.names], "rows": rows})


if __name__ == "__main__":
    main()
