"""WarmStart on monDEQs: splitting steps from 0 and from a distilled SIM, on scikit-learn's 8 x 8 digits.

    python benchmarks/bridge_mondeq.py [--epochs 15] [--out results/bridge-mondeq.json]

A fully connected monDEQ (87 units, as on MNIST) is trained here, a SIM is distilled from it on the training images,
and both splittings are run on 397 others from z_0 = 0 and from the SIM, at equal tolerance. A monDEQ has one
equilibrium, so both must end at the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from koopsim.bridge import WarmStart, distill
from koopsim.implicit import MonDEQ, UnconvergedWarning
from koopsim.nn import MLP
from koopsim.runs import environment, write_json

TOLERANCES = (1e-2, 1e-3, 1e-4)
MODELS = {"87 units": {"tiers": (87,), "connected": True}}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.as_tensor(data.images, dtype=torch.float32)[:, None] / 16  # type: ignore[attr-defined]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], torch.as_tensor(data.target)[order]  # type: ignore[attr-defined]


def train(settings: dict, x: torch.Tensor, y: torch.Tensor, epochs: int) -> MonDEQ:
    torch.manual_seed(0)
    model = MonDEQ((1, 8, 8), **settings)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        model.start_epoch(x[:64])
        for rows in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
    return model.eval()


@torch.no_grad()
def steps(model: MonDEQ, sim, x: torch.Tensor, splitting: str, tolerance: float) -> dict:
    model.splitting, model.tol, model.max_steps = splitting, tolerance, 1000
    model.tune_alpha(x[:64])
    cold_z, cold = model.solve(x)
    warm_z, warm = WarmStart(sim)(model, x)
    apart = (cold_z - warm_z).norm(dim=1) / cold_z.norm(dim=1)
    a, b = float(cold.steps.double().mean()), float(warm.steps.double().mean())
    return {
        "splitting": splitting, "tolerance": tolerance, "alpha": float(model.alpha), "cold_steps": a, "warm_steps": b,
        "saved": 1 - b / a, "cold_unconverged": int((~cold.converged).sum()),
        "warm_unconverged": int((~warm.converged).sum()), "apart_median": float(apart.median()),
        "apart_largest": float(apart.max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "bridge-mondeq.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UnconvergedWarning)  # counted instead
    x, y = digits()
    results = []
    for name, settings in MODELS.items():
        model = train(settings, x[:1400], y[:1400], options.epochs)
        with torch.no_grad():
            accuracy = float((model(x[1400:]).argmax(1) == y[1400:]).double().mean())
        model.tol = 1e-4
        lift = nn.Sequential(nn.Flatten(), MLP(64, 128, 64))
        sim, report = distill(model, x[:1400], lift=lift, epochs=60)
        print(name, accuracy, report, flush=True)
        rows = []
        for splitting in ("peaceman-rachford", "forward-backward"):
            for tolerance in TOLERANCES:
                rows.append(steps(model, sim, x[1400:], splitting, tolerance))
                print("  ", rows[-1], flush=True)
        results.append({"name": name, "accuracy": accuracy, "distilled": dataclasses.asdict(report), "steps": rows})
    write_json(options.out, {"what": __doc__, "models": results, "environment": environment()})


if __name__ == "__main__":
    main()
