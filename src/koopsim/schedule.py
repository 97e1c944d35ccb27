"""Learning rates over a run, step by step, and all else Adam needs that does not depend on the data.

    constant   lr
    step       lr 0.1^(epoch // step_size)
    cosine     lr (1 + cos(pi step / steps)) / 2
    onecycle   1e-3 -> lr -> 1e-3 -> 1e-3 at epochs 0, (E-5)//2, E-5, E, and beta1 .95 -> .85 -> .95 -> .95

each with an optional linear warm-up over its first steps. All of it is known before the first step, so it is one table
in float64 that the device reads a row of: no host work in the loop, and the same numbers eager, captured or stacked.
"""

import math

import numpy as np
from numpy.typing import NDArray

from koopsim.config import Recipe
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory

BETA1, BETA2 = 0.9, 0.999
LONGEST = 200_000_000  # steps of a run
GAMMA = 0.1  # the step schedule's drop
ONECYCLE_FLOOR = 1e-3


def learning_rates(recipe: Recipe, steps_per_epoch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(lr, beta1) for every step of the run, each of shape (epochs * steps_per_epoch,)."""
    steps = recipe.epochs * steps_per_epoch
    if steps > LONGEST:
        raise KoopsimError(f"The run has {steps:,} steps; expected at most {LONGEST:,}, which take days at the least.")
    require_memory(100 * steps, f"A schedule of {steps:,} steps asks for")
    step = np.arange(steps)
    lr = np.full(steps, recipe.learning_rate, dtype=np.float64)
    beta1 = np.full(steps, BETA1, dtype=np.float64)
    match recipe.schedule:
        case "step":
            lr *= GAMMA ** (step // steps_per_epoch // recipe.step_size)
        case "cosine":
            lr *= (1 + np.cos(math.pi * step / steps)) / 2
        case "onecycle":
            knots = _onecycle_knots(recipe.epochs)
            epoch = step / steps_per_epoch
            lr = np.interp(epoch, knots, [ONECYCLE_FLOOR, recipe.learning_rate, ONECYCLE_FLOOR, ONECYCLE_FLOOR])
            beta1 = np.interp(epoch, knots, [0.95, 0.85, 0.95, 0.95])
    if recipe.warm_up:
        lr *= np.minimum(1.0, (step + 1) / recipe.warm_up)
    return lr, beta1


def _onecycle_knots(epochs: int) -> list[float]:
    """0, (E-5)//2, E-5, E; a run too short for five closing epochs keeps the proportions of a 20-epoch one."""
    if epochs > 10:
        return [0, (epochs - 5) // 2, epochs - 5, epochs]
    return [epochs * k / 20 for k in (0, 7, 15, 20)]


def adam_table(recipe: Recipe, steps_per_epoch: int) -> NDArray[np.float64]:
    """(steps, 4): lr / (1 - beta1^t), sqrt(1 - beta2^t), 1 - beta1 and lr * weight decay, for the update at step t."""
    lr, beta1 = learning_rates(recipe, steps_per_epoch)
    t = np.arange(1, len(lr) + 1)
    return np.stack([lr / (1 - beta1**t), np.sqrt(1 - BETA2**t), 1 - beta1, lr * recipe.weight_decay], axis=1)
