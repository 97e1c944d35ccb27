"""What learning U V as two matrices costs a picture: the same functions, learnt as one; Tancik et al.'s beside.

    python benchmarks/picture_factors.py PHOTOGRAPHS --out results/picture-factors.json     # 50 minutes on one core

Without a lift and with U, V free, nu_1 U V is any matrix: z = nu(U V psi(x)) is a perceptron of two hidden layers on
psi, whichever U and V make it up. Each pair of variants begins as the same function of the same kind and differs in
what Adam moves: nu_1, U and V, or their product (`outright`), or nu_1 alone while U V stays a projector (`kept`). Of
rank N there is one projector, the identity: what a user can ask for (`U V = I`).
128 x 128, 128 features, layers of 64, 2,000 steps at a constant rate, bandwidth 0.064: a quarter of Table 3's pictures.
PHOTOGRAPHS is a folder of pictures that are in no table, as many texts are made here; nothing is chosen, all are shown.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from picture_gap import FEATURES, SIZE, WIDTH, quarters, sim
from torch import Tensor, nn
from torch.nn import functional as F
from verbs import write

from koopsim.nn import SIM, RandomFourierFeatures, count_parameters
from koopsim.nn.sim import start_evenly
from koopsim.nn.tancik import FourierNetwork
from koopsim.pictures import picture_set

BANDWIDTH, RATE, STEPS, SEEDS, SEED_OF_TEXT = 0.064, 1e-3, 2000, 3, 13


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


def whole(even: bool) -> SIM:
    """U V = I: `--model.projector --model.rank N`."""
    model = SIM(nn.Identity(), 2, 3, WIDTH, RandomFourierFeatures(2, FEATURES, BANDWIDTH), FEATURES, projector=True)
    if even:
        start_evenly(model)
    return model


def kept() -> SIM:
    """U V the projector it begins as: nothing of it is learnt."""
    model = sim(BANDWIDTH, even=True)
    assert isinstance(model, SIM)
    model.limit.requires_grad_(False)
    return model


def tancik(layers: int) -> nn.Module:
    return FourierNetwork(2, FEATURES, 1 / (2 * math.pi * BANDWIDTH), WIDTH, 3, layers)


VARIANTS = {
    "SIM, PyTorch's start (the paper's)": lambda: sim(BANDWIDTH, even=False),
    "SIM, PyTorch's start, outright": lambda: Outright(sim(BANDWIDTH, even=False)),
    "SIM, even start": lambda: sim(BANDWIDTH, even=True),
    "SIM, even start, outright": lambda: Outright(sim(BANDWIDTH, even=True)),
    "SIM, even start, U V kept": kept,
    "SIM, U V = I": lambda: whole(even=False),
    "SIM, U V = I, even start": lambda: whole(even=True),
    "Tancik et al., two hidden layers": partial(tancik, 2),
    "Tancik et al.": partial(tancik, 3),
}


def fitted(make, colours: Tensor, seed: int) -> tuple[dict[str, float], int]:
    """PSNR of the three quarters after training on the first."""
    torch.manual_seed(seed)
    model, data = make(), quarters(colours)
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer, (x, y) = torch.optim.Adam(learnt, RATE), data["train"]
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        found = {n: -10 * math.log10(float((model(x) - y).square().mean())) for n, (x, y) in data.items()}
    return found, count_parameters(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    own = picture_set(str(arguments.photographs), SIZE)
    text = picture_set("text", SIZE, count=len(own), seed=SEED_OF_TEXT)
    kinds, rows = {"photographs": own, "text": text}, []
    about = {"size": SIZE, "features": FEATURES, "width": WIDTH, "steps": STEPS, "rate": RATE, "bandwidth": BANDWIDTH}
    for name, make in VARIANTS.items():
        row: dict = {"variant": name}
        for kind, shown in kinds.items():
            fits = [[fitted(make, torch.tensor(v), s) for v in shown.values] for s in range(SEEDS)]
            row["parameters"] = fits[0][0][1]
            row[kind] = {q: float(np.mean([f[q] for of in fits for f, _ in of])) for q in ("train", "valid", "test")}
            row[f"{kind}, test of each seed"] = [float(np.mean([f["test"] for f, _ in of])) for of in fits]
        rows.append(row)
        write(arguments.out, about | {"pictures": [*own.names, *text.names], "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
