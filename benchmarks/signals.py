"""Sounds and shapes as networks: the RFF-only SIM beside Tancik et al.'s, as the paper's section 3.5 suggests.

python benchmarks/signals.py [--device cuda] [--out results/h200/signals.json]
python benchmarks/signals.py --small --device cpu --out results/signals.json                # one core, half an hour

sound   16,384 samples of each of the six of signal_forms.py:      t        -> amplitude
shape   64 x 64 x 64 points of each of its six:                    (x, y, z) -> occupancy
Of the samples a half is trained on, a quarter chooses the bandwidth out of eight (the same number for every network,
by one seed), and a quarter is looked at once. 2,000 steps, three seeds; 512 features and layers of 256, and Tancik et
al.'s once more with layers of 400, which makes up for the parameters of the SIM's U and V. --small: 4,096 samples, 24^3
points, 128 features and layers of 64 (100), 1,000 steps. signals_page.py makes a table and a figure of it.
"""

import argparse
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from signal_forms import NAMES, sampled
from torch import Tensor, nn
from verbs import write

import koopsim
from koopsim.nn import RandomFourierFeatures
from koopsim.nn.sim import start_evenly
from koopsim.nn.tancik import FourierNetwork
from koopsim.tasks.image_regression import psnr_of

BANDWIDTHS = {"sound": np.geomspace(3e-4, 1e-2, 8), "shape": np.geomspace(0.03, 1.0, 8)}  # of coordinates on [0, 1)


@dataclass(frozen=True)
class Size:
    """How much of it all: samples of a sound, points a side of a shape, features, layers, steps."""

    samples: int = 16_384
    side: int = 64
    features: int = 512
    width: int = 256
    wider: int = 400  # with it Tancik et al.'s has as many parameters as the SIM
    steps: int = 2000
    batch: int = 8192
    seeds: int = 3


SMALL = Size(4096, 24, 128, 64, 100, 1000, 2048)
QUICK = Size(512, 8, 32, 16, 25, 10, 256, seeds=1)
MODELS = ("sim-rff", "sim-rff, even start", "tancik", "tancik, as many parameters")


def network(name: str, inputs: int, bandwidth: float, size: Size) -> nn.Module:
    if name.startswith("tancik"):
        width = size.width if name == "tancik" else size.wider
        return FourierNetwork(inputs, size.features, 1 / (2 * math.pi * bandwidth), width, 1)
    psi = RandomFourierFeatures(inputs, size.features, bandwidth)
    model = koopsim.SIM(nn.Identity(), inputs, 1, hidden=size.width, fourier=psi)
    if name.endswith("even start"):
        start_evenly(model)
    return model


def mean_square(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs - target).square().mean()


def fitted(name: str, data: tuple[Tensor, Tensor], bandwidth: float, seed: int, size: Size, device: str) -> nn.Module:
    """A network after one training, which has seen nothing but its training samples."""
    torch.manual_seed(seed)
    epochs = max(1, size.steps // math.ceil(len(data[0]) / size.batch))
    recipe = koopsim.Recipe(batch_size=size.batch, epochs=epochs, learning_rate=1e-3, schedule="cosine")
    learning = koopsim.Learning(recipe, loss=mean_square, valid=0, seed=seed)
    model = network(name, data[0].shape[1], bandwidth, size)
    with tempfile.TemporaryDirectory() as folder:
        koopsim.train(model, data, Path(folder) / "run", learning=learning, device=device, progress=False)
    return model.eval()


@torch.no_grad()
def psnr(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """In dB; 1 is the signal's range."""
    device = next(model.parameters()).device
    x, y = (part.to(device) for part in data)
    return psnr_of(float(mean_square(model(x), y)))


def cut(places: Tensor, values: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """A half to train on, a quarter to choose by, a quarter to look at."""
    order = torch.tensor(np.random.default_rng(0).permutation(len(places)))
    parts = order.split([len(order) // 2, len(order) // 4, len(order) - len(order) // 2 - len(order) // 4])
    return {name: (places[rows], values[rows]) for name, rows in zip(("train", "valid", "test"), parts, strict=True)}


def judged(name: str, kind: str, data: dict, size: Size, device: str) -> dict:
    """A bandwidth by the valid samples and seed 0; then one look at the test samples with each seed's network."""
    began = time.perf_counter()
    tried = {float(b): fitted(name, data["train"], float(b), 0, size, device) for b in BANDWIDTHS[kind]}
    valid = {b: psnr(model, data["valid"]) for b, model in tried.items()}
    best = max(valid, key=lambda b: valid[b])
    models = [tried[best], *(fitted(name, data["train"], best, seed, size, device) for seed in range(1, size.seeds))]
    test = [psnr(model, data["test"]) for model in models]
    row = {"model": name, "parameters": koopsim.count_parameters(models[0]), "bandwidth": best}
    row |= {"valid_by_bandwidth": valid, "test_psnr": float(np.mean(test)), "test_each": test}
    return row | {"seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="for one core")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="these signals, all by default")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else SMALL if arguments.small else Size()
    rows: list[dict] = []
    for what in arguments.only:
        kind, places, values = sampled(what, size.samples, size.side)
        data = cut(torch.tensor(places, dtype=torch.float32), torch.tensor(values[:, None], dtype=torch.float32))
        for name in MODELS:
            rows.append({"signal": what, "kind": kind} | judged(name, kind, data, size, arguments.device))
            write(arguments.out, {"size": asdict(size), "rows": rows})


if __name__ == "__main__":
    main()
