"""A task: where is a damped pendulum a while later?

    q'' = -sin q - damping q',        (q, q') now  ->  (q, q') after `time`

Loss: mean squared error. Judged by the root of it on states that were not trained on, and by the worst of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from koopsim.config import MLPConfig, Recipe, Run, SIMConfig, TaskConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import Preset, TaskKind, register
from koopsim.tasks.base import Answers, Figures, Split, Task

STEPS = 100  # of the classical Runge-Kutta scheme


@dataclass(frozen=True)
class PendulumConfig(TaskConfig):
    """Foretell a damped pendulum."""

    time: float = 2.0
    damping: float = 0.2
    train: int = 4000
    valid: int = 500
    test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.valid, self.test) < 1:
            raise KoopsimError("A pendulum needs at least one state to train, to choose and to judge on.")


def later(states: Tensor, time: float, damping: float) -> Tensor:
    """(n, 2) states -> (n, 2), `time` later."""

    def velocity(s: Tensor) -> Tensor:
        return torch.stack([s[:, 1], -torch.sin(s[:, 0]) - damping * s[:, 1]], dim=1)

    h = time / STEPS
    for _ in range(STEPS):
        k1 = velocity(states)
        k2 = velocity(states + h / 2 * k1)
        k3 = velocity(states + h / 2 * k2)
        k4 = velocity(states + h * k3)
        states = states + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return states


class Pendulum(Task):
    """Seeded states and where they lead, on a device."""

    metric = "error"
    lower_is_better = True

    def __init__(self, config: PendulumConfig, device: torch.device | str = "cpu"):
        self.config = config
        total = config.train + config.valid + config.test
        generator = torch.Generator().manual_seed(config.seed)
        x = (torch.rand(total, 2, generator=generator, dtype=torch.float64) * 2 - 1) * 2
        self.x = x.float().to(device)
        self.y = later(x, config.time, config.damping).float().to(device)

    def split(self, name: str) -> Split:
        a, b = self.config.train, self.config.train + self.config.valid
        parts = {"train": slice(0, a), "valid": slice(a, b), "train+valid": slice(0, b), "test": slice(b, None)}
        if name not in parts:
            raise KoopsimError(f"A pendulum has no split {name!r}; expected one of {', '.join(parts)}.")
        return self.x[parts[name]], self.y[parts[name]]

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return (outputs - targets).square().mean()

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        x, y = self.split(split)
        off = (answers(x) - y).double()  # (members, n, 2)
        errors, worst = off.square().mean((1, 2)).sqrt().tolist(), off.abs().amax((1, 2)).tolist()
        return [{"error": a, "worst": b} for a, b in zip(errors, worst, strict=True)]


@register
class PendulumKind(TaskKind):
    config, task = PendulumConfig, Pendulum
    shown = ("error", "worst")

    def presets(self) -> dict[str, Preset]:
        sim = SIMConfig(MLPConfig(2, 64), lift_dim=64, hidden=32, outputs=2)
        recipe = Recipe(batch_size=100, epochs=60, learning_rate=2e-3, schedule="cosine")
        return {"pendulum/sim-single": Preset(Run(sim, PendulumConfig(), recipe))}

    def smoke(self, name: str, run: Run) -> Run:
        """Few states: it ends in a second."""
        task = PendulumConfig(train=400, valid=100, test=100)
        return replace(run, task=task, recipe=replace(run.recipe, batch_size=50, epochs=12))

    def place(self, result: dict[str, Any]) -> str:
        return f"Pendulum after {result['run']['task']['time']:g}"
