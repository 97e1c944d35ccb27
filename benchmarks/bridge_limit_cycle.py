"""Where there is no fixed point: a limit cycle that the input drives, and SIMs that learn what it does.

    python benchmarks/bridge_limit_cycle.py [--out results/bridge-limit-cycle.json] [--images docs/images]

    r' = mu(x) r - r^3,   theta' = gamma(x) - beta r^2          Stuart-Landau, its exact flow over one step

Every start but the origin ends on the circle of radius sqrt(mu(x)) and keeps turning. The plain iteration says
that it did not converge (Anderson and Broyden fall into the unstable origin); the verdict is "invariant-set";
single-tier and two-tier SIMs learn two functionals of the orbit, its radius and the time mean of exp(z_1).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.bridge import linearise, observe, plot_observation
from koopsim.config import FourierConfig, MLPConfig, Recipe, SIMConfig
from koopsim.implicit import anderson, broyden, picard
from koopsim.nn import build_sim, count_parameters
from koopsim.runs import environment, write_json
from koopsim.train import Trainer

BETA, DT = 0.4, 0.25
SOLVERS = {"picard": picard, "anderson": anderson, "broyden": broyden}


class StuartLandau(nn.Module):
    """One step of length DT, exactly: 1/r^2 relaxes to 1/mu, theta - beta ln r turns at gamma - beta mu."""

    def parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu = 1.0 + 0.6 * torch.sin(3 * x[:, :1]) * x[:, 1:2] + 0.3 * x[:, 1:2]
        return mu, 2.0 + x[:, :1] - 0.5 * x[:, 1:2] ** 2

    def initial(self, x: Tensor) -> Tensor:
        return x.new_tensor([0.3, 0.0]).expand(len(x), 2).clone()  # the origin itself is a fixed point, unstable

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        mu, gamma = self.parameters_of(x)
        growth = torch.exp(2 * mu * DT)
        ratio = growth / (1 + z.square().sum(1, keepdim=True) / mu * (growth - 1))  # of the squared radii
        turn = (gamma - BETA * mu) * DT + 0.5 * BETA * ratio.log()
        z1, z2 = z[:, :1], z[:, 1:]
        return ratio.sqrt() * torch.cat([turn.cos() * z1 - turn.sin() * z2, turn.sin() * z1 + turn.cos() * z2], dim=1)


@torch.no_grad()
def functionals(cell: StuartLandau, x: Tensor, transient: int = 1000, steps: int = 2000) -> Tensor:
    """(radius, time mean of exp(z_1)) of the orbit each input ends on, by running it.

    The mean is weighted by a bump, exp(-1 / t(1-t)): for a rotation this converges faster than any power of the
    number of steps (Das et al., 2017), where the plain mean has an error of one over it.
    """
    z = cell.initial(x)
    for _ in range(transient):
        z = cell(z, x)
    radius, mean = torch.zeros(len(x), dtype=x.dtype), torch.zeros(len(x), dtype=x.dtype)
    t = torch.arange(1, steps + 1, dtype=x.dtype) / (steps + 1)
    bump = torch.exp(-1 / (t * (1 - t)))
    for weight in bump / bump.sum():
        z = cell(z, x)
        radius += weight * z.norm(dim=1)
        mean += weight * z[:, 0].exp()
    return torch.stack([radius, mean], dim=1)


def inputs(count: int, seed: int) -> Tensor:
    return 2 * torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def fit(name: str, fourier: FourierConfig | None, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    sim = build_sim(SIMConfig(MLPConfig(2, 64), lift_dim=32, fourier=fourier, hidden=32, outputs=2))
    recipe = Recipe(batch_size=50, epochs=epochs, learning_rate=3e-3, schedule="cosine", clip_norm=1.0)
    trainer = Trainer(sim, lambda a, b: (a - b).square().mean(), (x.float(), y.float()), recipe)
    for epoch in range(epochs):
        trainer.start_epoch(epoch)
        trainer.run(0, trainer.steps_per_epoch)
    print(f"{name}: {count_parameters(sim):,} parameters, last training loss {float(trainer.losses.mean()):.2e}")
    return sim.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parents[1]
    parser.add_argument("--out", type=Path, default=here / "results" / "bridge-limit-cycle.json")
    parser.add_argument("--images", type=Path, default=here / "docs" / "images")
    parser.add_argument("--epochs", type=int, default=300)
    arguments = parser.parse_args()
    cell, x, x_test = StuartLandau(), inputs(1000, 1), inputs(300, 2)
    y, y_test = functionals(cell, x), functionals(cell, x_test)
    exact = torch.stack([cell.parameters_of(x_test)[0][:, 0].sqrt(), torch.special.i0(y_test[:, 0])], dim=1)
    print(f"orbits against their closed forms (sqrt(mu), I_0(radius)): {float((y_test - exact).abs().max()):.1e}")

    solvers = {}
    for name, solver in SOLVERS.items():
        z, info = solver(lambda z: cell(z, x_test), cell.initial(x_test), max_steps=200, tol=1e-4)
        solvers[name] = {
            "converged": float(info.converged.double().mean()), "steps": float(info.steps.double().mean()),
            "residual": float(info.residuals.median()), "readout_error": linear_readout(z, y_test),
            "distance_from_orbit": float((z.norm(dim=1) - y_test[:, 0]).abs().median()),
        }  # fmt: skip
        print(name, solvers[name])
    at_origin = [local.radius for local in linearise(cell, x_test[:40]) if local.found]
    inside = f"{min(at_origin):.3f} to {max(at_origin):.3f} on {len(at_origin)} of 40"
    print(f"df/dz at the equilibrium inside the orbit, where Anderson finds it: spectral radius {inside}")
    seen = observe(cell, x_test[:40], steps=200)
    print(seen.counts, seen.agreement)

    centre, spread = y.mean(0), y.std(0)
    sims, models = {}, {}
    for name, fourier in (("single-tier", None), ("two-tier", FourierConfig(64, bandwidth=5.0))):
        sim = models[name] = fit(name, fourier, x, (y - centre) / spread, arguments.epochs)
        with torch.no_grad():
            predicted = sim(x_test.float()).double() * spread + centre
        error = (predicted - y_test).square().mean(0).sqrt() / y_test.std(0)
        sims[name] = {"radius_error": float(error[0]), "mean_exp_error": float(error[1]), "predicted": predicted}
        print(name, {k: v for k, v in sims[name].items() if k != "predicted"})

    arguments.images.mkdir(parents=True, exist_ok=True)
    draw_orbits(cell, x_test, arguments.images / "limit-cycle-orbits.png")
    plot_observation(seen).savefig(arguments.images / "limit-cycle-verdict.png", dpi=80)
    draw_predictions(y_test, sims, arguments.images / "limit-cycle-sims.png")
    kept = {name: {k: v for k, v in row.items() if k != "predicted"} for name, row in sims.items()}
    angles = [float(v.angles.max()) for v in seen.verdicts]
    mu, gamma = cell.parameters_of(x_test[:40])
    true = ((gamma - BETA * mu) * DT)[:, 0].numpy()
    write_json(
        arguments.out,
        {
            "what": __doc__,
            "solvers": solvers,
            "verdicts": seen.counts,
            "agreement": seen.agreement,
            "unstable_radius": [min(at_origin), max(at_origin)],
            "unstable_found": [len(at_origin), 40],
            "angle_error": float(np.abs(np.array(angles) - true).max()),
            "sims": kept,
            "environment": environment(),
        },
    )


def linear_readout(z: Tensor, y: Tensor) -> float:
    """Best affine fit of the radius from the state a solver came back with: root mean square over deviation."""
    features = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], dim=1)
    fitted = features @ torch.linalg.lstsq(features, y[:, :1]).solution
    return float((fitted - y[:, :1]).square().mean().sqrt() / y[:, 0].std())


@torch.no_grad()
def draw_orbits(cell: StuartLandau, x: Tensor, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    chosen = x[torch.argsort(cell.parameters_of(x)[0][:, 0])[[10, 150, 290]]]
    z, states = cell.initial(chosen), []
    for _ in range(120):
        states.append(z)
        z = cell(z, chosen)
    for orbit, (mu, gamma) in zip(torch.stack(states, 1), zip(*cell.parameters_of(chosen), strict=True), strict=True):
        label = f"mu {float(mu):.2f}, gamma {float(gamma):.2f}"
        (line,) = left.plot(orbit[:, 0], orbit[:, 1], ".-", ms=3, lw=0.7, label=label)
        right.plot(orbit[:, 0], lw=1.2, color=line.get_color())
    t = np.linspace(0, 2 * math.pi, 200)
    for mu in cell.parameters_of(chosen)[0][:, 0].tolist():
        left.plot(math.sqrt(mu) * np.cos(t), math.sqrt(mu) * np.sin(t), color="grey", lw=0.5, zorder=0)
    left.set(aspect="equal", xlabel="$z_1$", ylabel="$z_2$", title="three inputs, three orbits")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
    right.set(xlabel="step", ylabel="$z_1$", title="the hidden state never stands still")
    figure.savefig(path, dpi=80)


def draw_predictions(y: Tensor, sims: dict, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    for axis, column, title in zip(figure.subplots(1, 2), (0, 1), ("radius", "time mean of exp $z_1$"), strict=True):
        low, high = float(y[:, column].min()), float(y[:, column].max())
        axis.plot([low, high], [low, high], color="black", lw=0.7)
        for (name, row), marker in zip(sims.items(), "ox", strict=True):
            axis.scatter(y[:, column], row["predicted"][:, column], s=12, marker=marker, lw=0.8, alpha=0.7, label=name)
        axis.set(xlabel="of the orbit", ylabel="by the SIM", title=title)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
