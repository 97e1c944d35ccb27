"""What pictures, sounds and shapes have in common while they are fitted: places, and what is there.

    draw() -> (places (n, d), values (P, n, channels))        loss = mean (model(places) - values)^2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from koopsim.config import Recipe
from koopsim.engine.feeds import Drawn
from koopsim.engine.members import Rule
from koopsim.engine.part import Part, Way, schedule_of
from koopsim.errors import KoopsimError
from koopsim.nn.folded import folded

Batch = tuple[Tensor, Tensor]
Draw = Callable[[], Batch]


def default_batch(count: int, device: torch.device) -> int:
    """Places a step: all of them where that is quick."""
    return min(count, 262_144 if device.type == "cuda" else 4_096)


def drawing(points: Callable[[Tensor], Batch], count: int, batch: int, device: torch.device) -> Draw:
    """Batches of the points of so many places, by their numbers: all every time, or a new random draw."""
    if batch == count:
        whole = points(torch.arange(batch, device=device))
        return lambda: whole
    return lambda: points(torch.randint(count, (batch,), device=device))


def part_of_points(
    models: Sequence[nn.Module], draw: Draw, recipe: Recipe, steps: int, short: torch.dtype | None = None
) -> Part:
    """Models that are to be what they are drawn, by the mean of squares; `short`: the type of their products."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (folded(model, x, dtype=short) - y).square().mean()

    schedules = schedule_of(recipe, steps).expand(len(models), -1, -1).clone()
    return Part(models, loss, Drawn(draw, steps, shared=(True, False)), schedules, Rule(), Way(alone=False))


def no_number(name: str, step: int, rate: float) -> KoopsimError:
    return KoopsimError(
        f"The loss of {name} is not a number at step {step} with learning rate {rate:g}; try a smaller --learning-rate."
    )
