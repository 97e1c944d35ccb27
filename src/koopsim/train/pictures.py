"""Image regression, all pictures of a set together: one network a picture, one population.

    members (picture, model, learning rate, seed) of equal shapes  ->  Population  ->  PSNR of each

Features that nothing learnt comes before (psi of fixed coordinates) are computed once and kept; products of weights
are folded (nn/folded.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.config import ModelConfig, Recipe
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.nn.folded import fixed_features, folded
from koopsim.tasks.image_regression import ImageRegression, full_precision
from koopsim.train.population import Population
from koopsim.train.schedule import adam_table

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 2.0**14  # a mean over 196,608 colours has gradients of 1e-7, which float16 would round to nothing


@dataclass(frozen=True)
class Member:
    """A network to be trained: on which picture, from which configuration, how fast, from which seed."""

    picture: int
    model: ModelConfig
    learning_rate: float
    seed: int = 0


def build_member(member: Member, precision: str = "float32") -> nn.Module:
    """The untrained network; the random frequencies and the weights depend on its seed alone."""
    torch.manual_seed(member.seed)
    return build(member.model).to(torch.float64 if precision == "float64" else torch.float32)


def population_of(
    task: ImageRegression,
    members: Sequence[Member],
    recipe: Recipe,
    precision: str = "float32",
    split: str = "train",
    capture: bool = False,
    compile: bool = False,
    schedules: Tensor | None = None,
) -> Population:
    """The members as one population on the task's device, each on all pixels of its picture's split.

    `schedules` (members, steps, 4) take the place of the recipe's at each member's learning rate.
    """
    short = precision == "tf32" or (
        precision in SHORT and not model_kind(members[0].model).learns_phases(members[0].model)
    )
    torch.set_float32_matmul_precision("high" if short else "highest")
    models = [build_member(m, precision).to(task.device) for m in members]
    dtype = SHORT.get(precision)
    x, y = task.split(split)
    kind = next(models[0].parameters()).dtype
    x, y = x.to(kind), y[[m.picture for m in members]].to(kind)
    with full_precision():
        features = _features(models, x, dtype)
    given, inputs = (False, x) if features is None else (True, features)
    if schedules is None:
        recipes = [replace(recipe, learning_rate=m.learning_rate) for m in members]
        tables = [adam_table(own, task.config.steps_an_epoch) for own in recipes]
        schedules = torch.as_tensor(np.stack(tables), device=task.device)

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return task.loss(folded(model, inputs, given, dtype), targets)

    return Population(
        models,
        loss,
        (inputs, y),
        schedules,
        shared=(not given, False),
        eps=recipe.eps,
        clip_norm=recipe.clip_norm,
        decay=recipe.weight_decay > 0,
        average=recipe.average,
        scale=LOSS_SCALE if precision == "fp16" else 1.0,
        capture=capture,
        compile=compile,
    )


def put_member(
    population: Population,
    row: int,
    member: Member,
    task: ImageRegression,
    precision: str,
    split: str,
    schedule: Tensor,
) -> None:
    """Give a row of a population to a new member on the same picture, at its first step."""
    model = build_member(member, precision).to(task.device)
    population.replace(row, model, schedule)
    inputs, _ = population.batch(population.steps)
    with torch.no_grad(), full_precision():
        x = task.split(split)[0].to(next(model.parameters()).dtype)
        features = fixed_features(model, x, SHORT.get(precision))
        if features is not None:
            inputs[row].copy_(features)


def _features(models: Sequence[nn.Module], x: Tensor, dtype: torch.dtype | None) -> Tensor | None:
    """(P, n, M), filled one by one, since two whole copies may not fit; None where the features are learnt."""
    first = fixed_features(models[0], x, dtype)
    if first is None:
        return None
    stacked = first.new_empty(len(models), *first.shape)
    for row, model in zip(stacked, models, strict=True):
        phi = fixed_features(model, x, dtype)
        assert phi is not None
        row.copy_(phi)
    return stacked


def bytes_of(model: ModelConfig, pixels: int, precision: str = "float32") -> int:
    """About how much memory a member needs while it trains: activations kept for the gradient, and Adam."""
    short = 2 if precision in SHORT else 8 if precision == "float64" else 4
    full = 8 if precision == "float64" else 4
    return pixels * model_kind(model).bytes_a_point(model, short, full) + 8 * full * parameters_of(model)


def parameters_of(model: ModelConfig) -> int:
    with torch.device("meta"):
        return count_parameters(build(model))
