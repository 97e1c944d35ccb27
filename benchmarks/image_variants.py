"""What could bring the RFF-only SIM ahead of Tancik's network? Variants at a small scale, on a CPU.

    PYTHONPATH=src python benchmarks/image_variants.py --pictures ../shared/data/natural16 ../shared/data/text16 \
        --out results/image-variants.json

Crops of 128 x 128 pixels at the pitch of a 512 picture, a quarter of all widths, 1,500 steps. Of each variant every
picture takes the bandwidth and learning rate that are best on its validation pixels, in the mean of a few looks; shown
is the test PSNR of that choice. Tancik's network has its published settings.

    paper    psi as the paper has it: frequencies drawn one by one from a Gaussian
    sobol    the same Gaussian from a scrambled Sobol sequence: frequencies spread evenly
    heavy    Student's t with 3 degrees of freedom: the spectrum of a rougher kernel
    unit     V starts sqrt(M / 2) larger, as if psi had waves of amplitude 1, which is what Tancik's network is given
    decay    AdamW, weight decay 0.5
    even     frequencies spread like the seeds of a sunflower (`--model.fourier.spread even`)

A crop has a sixteenth of a picture's pixels: `--features 32` leaves it its share of the 512 frequencies of Table 3.
"""

import argparse
import itertools
import math
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from koopsim.config import FourierConfig, FourierNetworkConfig, IdentityConfig, SIMConfig
from koopsim.models import build
from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.sim import SIM
from koopsim.pictures.sets import picture_set
from koopsim.runs import environment, write_json
from koopsim.tasks.image_regression import PARTS, psnr_of

SIDE, FEATURES, WIDTH, STEPS, LOOKS = 128, 128, 64, 1500, 5
VARIANTS = ("paper", "sobol", "heavy", "unit", "decay", "even")
BANDWIDTHS, RATES = (0.0114, 0.0159), (1e-3, 3e-3)


def frequencies(variant: str, bandwidth: float, count: int, seed: int) -> Tensor | None:
    """(count, 2), or None where the model's own draw is kept."""
    if variant == "sobol":
        draws = SobolEngine(2, scramble=True, seed=seed).draw(count).double().clamp(1e-6, 1 - 1e-6)
        found = norm.ppf(draws.numpy())
    elif variant == "heavy":
        rng = np.random.default_rng(seed)
        found = rng.normal(size=(count, 2)) / np.sqrt(rng.chisquare(3, size=(count, 1)) / 3)
    else:
        return None
    return torch.as_tensor(found / bandwidth, dtype=torch.float32)


def network(variant: str, bandwidth: float, sigma: float, seed: int, features: int) -> nn.Module:
    torch.manual_seed(seed)
    if variant == "tancik":
        return build(FourierNetworkConfig(features=features, width=WIDTH, sigma=sigma))
    psi = FourierConfig(features, bandwidth, spread="even" if variant == "even" else "random")
    model = build(SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, hidden=WIDTH, outputs=3))
    assert isinstance(model, SIM)
    assert isinstance(model.psi, RandomFourierFeatures)
    drawn = frequencies(variant, bandwidth, features // 2, seed)
    with torch.no_grad():
        if drawn is not None:
            model.psi.frequencies.copy_(drawn)
        if variant == "unit":
            dict(model.named_parameters())["limit.V"].mul_(math.sqrt(features / 2))
    return model


def crop(picture: np.ndarray, seed: int) -> tuple[Tensor, Tensor]:
    """Coordinates (side, side, 2) at the whole picture's pitch, and colours."""
    size = len(picture)
    top, left = (2 * int(v) for v in np.random.default_rng(seed).integers(0, (size - SIDE) // 2, 2))
    places = torch.arange(SIDE, dtype=torch.float32) / size
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), dim=-1)
    return grid, torch.as_tensor(picture[top : top + SIDE, left : left + SIDE])


def trained(model: nn.Module, grid: Tensor, colours: Tensor, rate: float, decay: float) -> dict[str, float]:
    """PSNR of each split, in the mean of looks over the last tenth."""
    splits = {}
    for name in ("train", "valid", "test"):
        ((r, c),) = PARTS[name]
        splits[name] = grid[r::2, c::2].reshape(-1, 2), colours[r::2, c::2].reshape(-1, 3)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    adam = torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": others}], rate, weight_decay=0.0)
    looks: list[list[float]] = []
    x, y = splits["train"]
    for step in range(1, STEPS + 1):
        adam.zero_grad()
        (model(x) - y).square().mean().backward()
        adam.step()
        if step > 0.9 * STEPS and (STEPS - step) % (STEPS // 10 // LOOKS) == 0:
            with torch.no_grad():
                looks.append([psnr_of(float((model(a) - b).square().mean())) for a, b in splits.values()])
    return dict(zip(splits, np.mean(looks, axis=0).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", nargs="+", default=["photographs", "text"], help="sets, as koopsim takes them")
    parser.add_argument("--count", type=int, default=3, help="pictures of each")
    parser.add_argument("--variants", nargs="+", default=["tancik", *VARIANTS])
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, began = [], time.monotonic()
    for name, variant in itertools.product(arguments.pictures, arguments.variants):
        found, chosen = picture_set(name, 512, arguments.count), []
        sigma = 14.0 if "text" in Path(name).name else 10.0
        settings = [(0.0, 1e-3)] if variant == "tancik" else list(itertools.product(BANDWIDTHS, RATES))
        for p, picture in enumerate(found.values):
            grid, colours = crop(picture, p)
            trials = []
            for bandwidth, rate in settings:
                model = network(variant, bandwidth, sigma, p, arguments.features)
                figures = trained(model, grid, colours, rate, 0.5 if variant == "decay" else 0.0)
                trials.append({"bandwidth": bandwidth, "learning_rate": rate, **figures})
            chosen.append(max(trials, key=lambda t: t["valid"]) | {"picture": found.names[p]})
        mean = {split: float(np.mean([c[split] for c in chosen])) for split in ("train", "valid", "test")}
        rows.append({"set": Path(name).name, "variant": variant, **mean, "chosen": chosen})
        shown = "  ".join(f"{split} {value:.2f}" for split, value in mean.items())
        print(f"{time.monotonic() - began:6.0f} s  {Path(name).name:<10} {variant:<7} {shown}", flush=True)
        if arguments.out:
            scale = {"side": SIDE, "features": arguments.features, "width": WIDTH, "steps": STEPS, "looks": LOOKS}
            write_json(
                arguments.out,
                {"rows": rows, **scale, "seconds": time.monotonic() - began, "environment": environment()},
            )


if __name__ == "__main__":
    main()
