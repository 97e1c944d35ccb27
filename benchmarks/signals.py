"""A sound and a shape as networks: the RFF-only SIM beside Tancik et al.'s, as the paper's section 3.5 suggests.

python benchmarks/signals.py [--device cuda] [--out results/h200/signals.json]
python benchmarks/signals.py --small --device cpu --out results/signals.json                    # one core, minutes

sound   16,384 samples of a chord whose pitch wavers, with two struck notes:          t        -> amplitude
shape   64 x 64 x 64 points of a torus about a ball, its surface two points thick:    (x, y, z) -> occupancy
Of the samples a half is trained on, a quarter chooses the bandwidth out of eight (the same number for both networks),
and a quarter is looked at once. 2,000 steps, three seeds; 512 features and layers of 256, and Tancik et al.'s once more
with layers of 400, which makes up for the parameters of the SIM's U and V. --small: 4,096 samples, 24^3 points, 128
features and layers of 64 (100), 1,000 steps.
"""

import argparse
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from verbs import write

import koopsim
from koopsim.nn import RandomFourierFeatures
from koopsim.nn.sim import start_evenly
from koopsim.nn.tancik import FourierNetwork

BANDWIDTHS = {"sound": np.geomspace(3e-4, 1e-2, 8), "shape": np.geomspace(0.03, 1.0, 8)}  # of coordinates on [0, 1)


@dataclass(frozen=True)
class Size:
    """How much of it all: samples of the sound, points a side of the shape, features, layers, steps."""

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


def sound(samples: int) -> tuple[Tensor, Tensor]:
    t = np.arange(samples) / samples
    waver = 3e-4 * np.sin(2 * np.pi * 5 * t)
    y = sum(np.sin(2 * np.pi * f * (t + waver) + f) / (k + 2) for k, f in enumerate((110, 138.6, 164.8, 220, 440)))
    for start, f in ((0.3, 330), (0.7, 494)):
        after = np.maximum(t - start, 0)
        y = y + (after > 0) * np.exp(-12 * after) * np.sin(2 * np.pi * f * after)
    y = (y - y.min()) / (y.max() - y.min())
    return torch.tensor(t[:, None], dtype=torch.float32), torch.tensor(y[:, None], dtype=torch.float32)


def shape(side: int) -> tuple[Tensor, Tensor]:
    axis = np.arange(side) / side
    x, y, z = (a - 0.5 for a in np.meshgrid(axis, axis, axis, indexing="ij"))
    torus = np.hypot(np.hypot(x, y) - 0.3, z) - 0.1
    ball = np.sqrt(x**2 + y**2 + z**2) - 0.15
    inside = 1 / (1 + np.exp(np.minimum(torus, ball) * side))
    points = np.stack([x, y, z], -1).reshape(-1, 3) + 0.5
    return torch.tensor(points, dtype=torch.float32), torch.tensor(inside.reshape(-1, 1), dtype=torch.float32)


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


def fitted(name: str, data: dict, bandwidth: float, seed: int, size: Size, device: str) -> dict[str, float]:
    """PSNR on the valid and test samples of one training."""
    torch.manual_seed(seed)
    epochs = max(1, size.steps // math.ceil(len(data["train"][0]) / size.batch))
    recipe = koopsim.Recipe(batch_size=size.batch, epochs=epochs, learning_rate=1e-3, schedule="cosine")
    learning = koopsim.Learning(recipe, loss=mean_square, valid=data["valid"], test=data["test"], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        model = network(name, data["train"][0].shape[1], bandwidth, size)
        result = koopsim.train(model, data["train"], Path(folder) / "run", learning=learning, device=device,
                               progress=False)  # fmt: skip
    found = {split: -10 * math.log10(result[split]["loss"]) for split in ("valid", "test")}
    return found | {"parameters": result["parameters"], "train_seconds": result["train_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="for one core")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else SMALL if arguments.small else Size()
    rows: list[dict] = []
    for what, (x, y) in {"sound": sound(size.samples), "shape": shape(size.side)}.items():
        order = torch.tensor(np.random.default_rng(0).permutation(len(x)))
        cuts = dict(zip(("train", "valid", "test"), order.split([len(x) // 2, len(x) // 4, len(x) // 4]), strict=True))
        data = {split: (x[rows], y[rows]) for split, rows in cuts.items()}
        for name in MODELS:
            began = time.perf_counter()
            tried = {
                float(b): fitted(name, data, float(b), 0, size, arguments.device)["valid"] for b in BANDWIDTHS[what]
            }
            best = max(tried, key=lambda b: tried[b])
            found = [fitted(name, data, best, seed, size, arguments.device) for seed in range(size.seeds)]
            test = [one["test"] for one in found]
            row = {"signal": what, "model": name, "parameters": found[0]["parameters"], "bandwidth": best}
            row |= {"valid_by_bandwidth": tried, "test_psnr": float(np.mean(test)), "test_each": test}
            rows.append(row | {"seconds": time.perf_counter() - began})
            write(arguments.out, {"size": asdict(size), "rows": rows})


if __name__ == "__main__":
    main()
