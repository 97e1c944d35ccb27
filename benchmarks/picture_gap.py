"""From the RFF-only SIM to Tancik et al.'s network one step at a time, on pictures that are in no table.

    python benchmarks/picture_gap.py --out results/picture-gap.json          # minutes on one core; goes on where it was
    python benchmarks/picture_gap.py --other --out results/picture-gap-other.json       # 7 minutes
    python benchmarks/picture_gap.py --start --out results/picture-gap-start.json       # how constant they begin

At equal features and widths the two differ in: how the matrices start; the waves' amplitude (sqrt(2/M), or 1); U V,
which is linear, where the other has a layer with a ReLU; and the sigmoid. Each variant is trained on a quarter of the
pixels of two photographs and two pictures of text, 128 x 128, for 300 steps of Adam with a cosine; rate and bandwidth
are the best of four by its mean PSNR on the valid quarter, and the test quarter is looked at once, of the best.

--other takes four of the variants, with the rate and the bandwidth that were chosen so, to six other pictures and three
seeds: nothing is chosen there, every look is shown.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from verbs import write

from koopsim.nn import SIM, RandomFourierFeatures, count_parameters
from koopsim.nn.folded import folded
from koopsim.nn.sim import start_evenly
from koopsim.nn.tancik import FourierNetwork
from koopsim.pictures import picture_set

SIZE, FEATURES, WIDTH, STEPS = 128, 128, 64, 300
RATES, BANDWIDTHS = (2e-3, 8e-3), (0.012, 0.024)


class Waves(nn.Module):
    """psi times a number: the amplitude of each wave."""

    def __init__(self, psi: nn.Module, factor: float):
        super().__init__()
        self.psi, self.factor = psi, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.psi(x)


def layered(bandwidth: float, even: bool, sigmoid: bool, amplitude: float = 1.0) -> nn.Module:
    """A layer with a ReLU in the place of U V: h(nu(relu(W psi))), what Tancik's network is but for start and end."""
    layers: list[nn.Module] = [Waves(RandomFourierFeatures(2, FEATURES, bandwidth), amplitude)]
    for inputs, outputs in ((FEATURES, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 3)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1], *([nn.Sigmoid()] if sigmoid else []))
    if even:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    return model


def sim(bandwidth: float, even: bool, amplitude: float = 1.0, sigmoid: bool = False) -> nn.Module:
    model = SIM(nn.Identity(), 2, 3, WIDTH, RandomFourierFeatures(2, FEATURES, bandwidth))
    if even:
        start_evenly(model)
    with torch.no_grad():
        model.limit.V.mul_(amplitude)  # the same function as waves of that amplitude
    return nn.Sequential(model, nn.Sigmoid()) if sigmoid else model


def without_sigmoid(bandwidth: float) -> nn.Module:
    whole = FourierNetwork(2, FEATURES, 1 / (2 * math.pi * bandwidth), WIDTH, 3)
    return nn.Sequential(whole.psi, whole.layers)


UNIT = math.sqrt(FEATURES / 2)  # makes every wave lie between -1 and 1
VARIANTS = {
    "SIM, PyTorch's start (the paper's)": lambda b: sim(b, even=False),
    "SIM, even start": lambda b: sim(b, even=True),
    "SIM, even start, waves of amplitude 1": lambda b: sim(b, even=True, amplitude=UNIT),
    "SIM, even start, sigmoid": lambda b: sim(b, even=True, sigmoid=True),
    "a layer in the place of U V, even start": lambda b: layered(b, even=True, sigmoid=False),
    "a layer in the place of U V, even start, waves of amplitude 1": lambda b: layered(b, True, False, UNIT),
    "Tancik et al. without its sigmoid": without_sigmoid,
    "Tancik et al.": lambda b: FourierNetwork(2, FEATURES, 1 / (2 * math.pi * b), WIDTH, 3),
}


def pictures() -> dict[str, Tensor]:
    photographs, text = picture_set("photographs", SIZE), picture_set("text", SIZE, count=2, seed=11)
    return {n: torch.tensor(v) for s in (photographs, text) for n, v in zip(s.names, s.values, strict=True)}


AGAIN = (
    "SIM, PyTorch's start (the paper's)", "SIM, even start", "a layer in the place of U V, even start", "Tancik et al.",
)  # fmt: skip


def other_pictures() -> dict[str, Tensor]:
    """A portrait that comes with matplotlib, a corner of each photograph, and text of another seed."""
    from matplotlib import get_data_path
    from PIL import Image
    from sklearn.datasets import load_sample_image

    portrait = Image.open(Path(get_data_path()) / "sample_data" / "grace_hopper.jpg").convert("RGB")
    cuts = {"hopper": portrait.crop((0, 0, 512, 512))}
    cuts |= {f"{n} corner": Image.fromarray(load_sample_image(f"{n}.jpg")[-256:, :256]) for n in ("china", "flower")}
    shown = {n: np.asarray(p.resize((SIZE, SIZE), Image.Resampling.LANCZOS)) / 255 for n, p in cuts.items()}
    text = picture_set("text", SIZE, count=3, seed=12)
    shown |= {f"{name} of seed 12": values for name, values in zip(text.names, text.values, strict=True)}
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in shown.items()}


def spread_at_start(make: Callable[[], nn.Module], seed: int) -> float:
    """How much an untrained network's colours vary over the plane: 0 is a constant. Before a sigmoid, if it has one."""
    torch.manual_seed(seed)
    model, x = make(), torch.rand(2000, 2)
    with torch.no_grad():
        y = model(x)
        squashed = isinstance(model, FourierNetwork) or isinstance(list(model.modules())[-1], nn.Sigmoid)
        y = torch.logit(y) if squashed else y
        return float((y - y.mean(0)).std())


def other(out: Path) -> None:
    """Four variants as they were chosen, on other pictures, three seeds."""
    before = json.loads((Path(__file__).parents[1] / "results" / "picture-gap.json").read_text())["rows"]
    rows, shown = [], other_pictures()
    for row in (row for row in before if row["variant"] in AGAIN):
        mark = time.perf_counter()
        make = partial(VARIANTS[row["variant"]], row["bandwidth"])
        tests = {name: [trained(make, c, row["rate"], s)[0]["test"] for s in range(3)] for name, c in shown.items()}
        kinds = {"photographs": list(shown)[:3], "text": list(shown)[3:]}
        mean = {kind: float(np.mean([tests[n] for n in names])) for kind, names in kinds.items()}
        kept = {key: row[key] for key in ("variant", "parameters", "rate", "bandwidth")}
        rows.append(kept | {"psnr": mean, "test": tests, "seconds": time.perf_counter() - mark})
        write(out, {"size": SIZE, "features": FEATURES, "width": WIDTH, "steps": STEPS, "seeds": 3, "rows": rows})


def quarters(colours: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Train, valid and test pixels, as the paper cuts a picture."""
    axis = torch.arange(SIZE) / SIZE
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    cuts = {"train": (slice(0, None, 2), slice(0, None, 2)), "valid": (slice(0, None, 2), slice(1, None, 2)),
            "test": (slice(1, None, 2), slice(1, None, 2))}  # fmt: skip
    return {name: (grid[at].reshape(-1, 2), colours[at].reshape(-1, 3)) for name, at in cuts.items()}


def trained(make, colours: Tensor, rate: float, seed: int) -> tuple[dict[str, float], int]:
    """PSNR of the three quarters after training on the first."""
    torch.manual_seed(seed)
    model, data = make(), quarters(colours)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x, y = data["train"]
    for _ in range(STEPS):
        optimizer.zero_grad()
        (folded(model, x) - y).square().mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = {n: -10 * math.log10(float((model(x) - y).square().mean())) for n, (x, y) in data.items()}
    return found, count_parameters(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop before a row that may end later than this")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="variants by their whole names")
    parser.add_argument("--other", action="store_true", help="four variants on other pictures, three seeds")
    parser.add_argument("--start", action="store_true", help="how much the colours of each vary before training")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.other:
        return other(arguments.out)
    if arguments.start:
        spreads = {n: [spread_at_start(partial(make, 0.024), s) for s in range(5)] for n, make in VARIANTS.items()}
        rows = [{"variant": name, "spread_at_start": float(np.mean(own)), "each": own} for name, own in spreads.items()]
        return write(arguments.out, {"bandwidth": 0.024, "rows": rows})
    began, rows = time.perf_counter(), []
    if arguments.out.exists():
        rows = json.loads(arguments.out.read_text())["rows"]
    shown, slowest = pictures(), 0.0
    for name, make in VARIANTS.items():
        mark = time.perf_counter()
        if name not in arguments.only or name in [row["variant"] for row in rows]:
            continue
        if mark - began + 1.2 * slowest > arguments.seconds:
            break
        tried = []
        for rate, bandwidth in itertools.product(RATES, BANDWIDTHS):
            found = {n: trained(lambda b=bandwidth, m=make: m(b), c, rate, 0) for n, c in shown.items()}
            tried.append({"rate": rate, "bandwidth": bandwidth, "psnr": {n: f for n, (f, _) in found.items()},
                          "parameters": next(iter(found.values()))[1]})  # fmt: skip
        best = max(tried, key=lambda one: np.mean([p["valid"] for p in one["psnr"].values()]))
        kinds = {"photographs": list(shown)[:2], "text": list(shown)[2:]}
        mean = {k: {s: float(np.mean([best["psnr"][n][s] for n in names])) for s in ("train", "valid", "test")}
                for k, names in kinds.items()}  # fmt: skip
        slowest = max(slowest, time.perf_counter() - mark)
        row = {"variant": name, "parameters": best["parameters"], "rate": best["rate"], "bandwidth": best["bandwidth"]}
        rows.append(row | {"psnr": mean, "seconds": time.perf_counter() - mark})
        write(arguments.out, {"size": SIZE, "features": FEATURES, "width": WIDTH, "steps": STEPS, "rows": rows})


if __name__ == "__main__":
    main()
