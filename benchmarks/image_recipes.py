"""Which recipe for pictures? Found on pictures that are in no table, so that Table 3's test pixels decide nothing.

    PYTHONPATH=src python benchmarks/image_recipes.py DEVELOPMENT --out results/h200/image-recipes.json
    PYTHONPATH=src python benchmarks/image_recipes.py --tiny      # seconds, on a CPU

DEVELOPMENT is a folder of photographs; the other set is text made here, of another seed than the tests'. 2,000 steps of
every combination of

    schedule    constant, as in the paper, or a cosine down to zero
    decay       of the weights, decoupled from the gradient
    unit        V starts sqrt(M / 2) larger, as if psi had waves of amplitude 1, which is what Tancik's network is given
    gain        the lift starts sqrt(6) larger: He's weights in place of PyTorch's

with bandwidths and learning rates, of which each picture takes what is best on its validation pixels. `last` are the
figures of the last weights, in the mean of a few looks; `averaged` those of the mean weights over the second half.
"""

import argparse
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from koopsim.config import (
    FourierConfig,
    FourierNetworkConfig,
    IdentityConfig,
    ImageRegressionConfig,
    MLPConfig,
    Model,
    Recipe,
    SIMConfig,
)
from koopsim.runs import environment, write_json
from koopsim.tasks.image_regression import ImageRegression
from koopsim.train.pictures import Member, bytes_of, population_of
from koopsim.train.population import Population, groups
from koopsim.train.schedule import adam_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS_AN_EPOCH, LOOKS, APART = 100, 5, 40
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Setting:
    """What is tried on every picture of a set."""

    model: str  # tancik, rff, single, two
    rate: float
    bandwidth: float = 1.0
    schedule: str = "constant"
    decay: float = 0.0
    unit: bool = False
    gain: bool = False

    @property
    def recipe(self) -> tuple:
        """All but what each picture chooses for itself."""
        return self.model, self.schedule, self.decay, self.unit, self.gain


def settings(models: Sequence[str], text: bool) -> list[Setting]:
    found = []
    if "tancik" in models:
        found += [Setting("tancik", 1e-3, decay=d) for d in (0.0, 0.3, 1.0)]
    if "rff" in models:
        for bandwidth, rate in itertools.product((0.009, 0.012) if text else (0.011, 0.015), (1.5e-3, 4e-3)):
            found += [Setting("rff", rate, bandwidth, decay=d) for d in (0.0, 0.3, 1.0, 3.0)]
            found += [Setting("rff", rate, bandwidth, decay=d, unit=True) for d in (0.3, 1.0)]
            found += [Setting("rff", rate, bandwidth, "cosine", d) for d in (0.3, 1.0)]
    if "single" in models:
        for rate, schedule, gain in itertools.product((6e-4, 1.5e-3), ("constant", "cosine"), (False, True)):
            found.append(Setting("single", rate, schedule=schedule, gain=gain))
    if "two" in models:
        for rate, schedule in itertools.product((2e-4, 5e-4), ("constant", "cosine")):
            found += [Setting("two", rate, b, schedule) for b in (0.005, 0.01)]
    return found


def model_of(setting: Setting, text: bool, tiny: bool) -> Model:
    features, hidden, width = (32, 16, 16) if tiny else (512, 256, 512)
    psi = FourierConfig(features, setting.bandwidth)
    match setting.model:
        case "tancik":
            return FourierNetworkConfig(features=features, width=hidden, sigma=14.0 if text else 10.0)
        case "rff":
            return SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, hidden=hidden, outputs=3)
        case "single":
            return SIMConfig(MLPConfig(2, width), lift_dim=width, hidden=hidden, outputs=3)
        case _:
            return SIMConfig(MLPConfig(2, 32), lift_dim=32, fourier=psi, hidden=hidden, outputs=3)


@torch.no_grad()
def begin(population: Population, chosen: Sequence[Setting]) -> None:
    """What a setting changes of the weights that a network starts with."""
    for slot, setting in enumerate(chosen):
        if setting.unit:
            V = population.stack.parameters["limit.V"][slot]
            V.mul_(math.sqrt(V.shape[1] / 2))
        if setting.gain:
            for name, p in population.stack.parameters.items():
                if name.startswith("mu.") and name.endswith("weight"):
                    p[slot].mul_(math.sqrt(6))


def figures(task: ImageRegression, population: Population, pictures: Sequence[int]) -> list[list[float]]:
    """PSNR of every split and member."""
    models = list(population.stack.models())
    return [task.psnrs(models, split, pictures) for split in SPLITS]


def trained(
    task: ImageRegression, members: Sequence[Member], chosen: Sequence[Setting], steps: int, precision: str
) -> list[dict[str, Any]]:
    """A row a member: PSNR of every split, by the last weights and by their average."""
    tables = []
    for setting in chosen:
        recipe = Recipe(
            epochs=steps // STEPS_AN_EPOCH, learning_rate=setting.rate, weight_decay=setting.decay,
            schedule="cosine" if setting.schedule == "cosine" else "constant",
        )  # fmt: skip
        tables.append(adam_table(recipe, STEPS_AN_EPOCH))
    population = population_of(
        task, members, Recipe(epochs=steps // STEPS_AN_EPOCH, weight_decay=1.0), precision,
        capture=DEVICE.type == "cuda", schedules=torch.as_tensor(np.stack(tables), device=DEVICE),
    )  # fmt: skip
    begin(population, chosen)
    pictures = [m.picture for m in members]
    flat, done, count, looks = population.stack.flat, 0, 0, []
    mean = torch.zeros_like(flat, dtype=torch.float64)
    while done < steps:
        population.run(10)
        done += 10
        if done > steps // 2:
            mean, count = mean + flat, count + 1
        if steps - done < LOOKS * APART and (steps - done) % APART == 0:
            looks.append(figures(task, population, pictures))
    with torch.no_grad():
        flat.copy_(mean / count)
    averaged = figures(task, population, pictures)
    last = np.mean(looks, axis=0)
    return [
        {
            "set": task.config.pictures, "picture": task.names[m.picture], **asdict(s),
            "last": dict(zip(SPLITS, last[:, i].tolist(), strict=True)),
            "averaged": {split: values[i] for split, values in zip(SPLITS, averaged, strict=True)},
        }
        for i, (m, s) in enumerate(zip(members, chosen, strict=True))
    ]  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each recipe: every picture's own best by validation pixels, and the mean over the pictures."""
    found = []
    keys = ("set", "model", "schedule", "decay", "unit", "gain")
    for key in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        own = [row for row in rows if tuple(row[k] for k in keys) == key]
        for kind in ("last", "averaged"):
            best = [
                max((r for r in own if r["picture"] == p), key=lambda r: r[kind]["valid"])
                for p in dict.fromkeys(r["picture"] for r in own)
            ]
            means = {split: float(np.mean([b[kind][split] for b in best])) for split in SPLITS}
            found.append(dict(zip(keys, key, strict=True)) | {"weights": kind, **means})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", nargs="?", default="photographs")
    parser.add_argument("--models", nargs="+", default=["tancik", "rff", "single"])
    parser.add_argument("--pictures", type=int, default=4, help="of each set")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.steps, arguments.pictures = 400, 1
    rows, began = [], time.monotonic()
    for model, name in itertools.product(arguments.models, (arguments.photographs, "text")):
        text = name == "text"
        config = ImageRegressionConfig(
            name, 32 if arguments.tiny else 512, arguments.pictures, steps_an_epoch=STEPS_AN_EPOCH
        )
        task = ImageRegression(config, DEVICE)
        pairs = [(p, s) for s in settings([model], text) for p in range(len(task.names))]
        members = [Member(p, model_of(s, text, arguments.tiny), s.rate, 17 * p) for p, s in pairs]
        each = bytes_of(members[0].model, len(task.split("train")[0]), arguments.precision)
        for part in groups(len(pairs), each, DEVICE):
            chosen = [pairs[i][1] for i in part]
            rows += trained(task, [members[i] for i in part], chosen, arguments.steps, arguments.precision)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
        print(f"{time.monotonic() - began:6.0f} s  {model} {Path(name).name}", flush=True)
        found = summary([r for r in rows if r["model"] == model and r["set"] == name])
        for line in sorted(found, key=lambda f: -f["test"]):
            shown = "  ".join(f"{split} {line[split]:.2f}" for split in SPLITS)
            what = f"{line['schedule']:<8} decay {line['decay']:<4} unit {line['unit']:d} gain {line['gain']:d}"
            print(f"    {what} {line['weights']:<8} {shown}", flush=True)
        if arguments.out:
            write_json(
                arguments.out,
                {"rows": rows, "summary": summary(rows), "steps": arguments.steps, "precision": arguments.precision,
                 "seconds": time.monotonic() - began, "environment": environment()},
            )  # fmt: skip


if __name__ == "__main__":
    main()
