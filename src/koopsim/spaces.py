"""What a search draws from, and how: one definition for every backend.

    trial i of seed s:   value of parameter p  =  draw_p( random numbers of (s, i, p), i )

so a trial's configuration depends on nothing but its number: not on the backend, not on the trials before it, and
fixing one parameter leaves the draws of the others as they were. A parameter's name is its path in a `Run`
("recipe.learning_rate", "model.fourier.bandwidth").
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Choice:
    """One of a few values, each as likely as the others."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise KoopsimError("A choice has no values; give at least one.")

    def draw(self, generator: np.random.Generator, index: int) -> Any:
        return self.values[int(generator.integers(len(self.values)))]


@dataclass(frozen=True)
class Listed(Choice):
    """These values in turn: trial i has values[i % len(values)]. Parameters listed together are rows of a table."""

    def draw(self, generator: np.random.Generator, index: int) -> Any:
        return self.values[index % len(self.values)]


@dataclass(frozen=True)
class Uniform:
    """[low, high), evenly."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise KoopsimError(f"The range from {self.low:g} to {self.high:g} is empty; give the smaller end first.")

    def draw(self, generator: np.random.Generator, index: int) -> float:
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """[low, high), evenly in the logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise KoopsimError(
                f"A logarithmic range from {self.low:g} to {self.high:g} cannot be; both ends must be positive, "
                "the smaller first."
            )

    def draw(self, generator: np.random.Generator, index: int) -> float:
        return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))


@dataclass(frozen=True)
class Median:
    """The bandwidth from the data: the median distance of lifted inputs, times a factor in [low, high).

    It is drawn as text, "median*0.7", and becomes a number when the trial begins and the lift is known.
    """

    low: float = 1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise KoopsimError(f"The factors of a median go from {self.low:g} to {self.high:g}; both must be positive.")

    def draw(self, generator: np.random.Generator, index: int) -> str:
        return f"median*{math.exp(generator.uniform(math.log(self.low), math.log(self.high)))!r}"


Parameter = Choice | Uniform | LogUniform | Median
BANDWIDTH = "model.fourier.bandwidth"
MOST_TRIALS = 100_000  # all of them are drawn before the first begins
MOST_LOOKS = 100_000


@dataclass(frozen=True)
class SearchSpace:
    """What is drawn, how many trials, when ASHA stops them, and what they are judged by. Time t is in epochs."""

    parameters: dict[str, Parameter]
    trials: int
    max_t: int
    grace: int
    reduction: float = 2
    metric: str = "loss"  # a figure of the task's evaluation on the validation split
    mode: str = "min"
    judge_over: int = 1  # a trial is worth the mean of so many of its last looks; 1: of the last, as in the paper

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= MOST_TRIALS:
            raise KoopsimError(f"The number of trials is {self.trials}; it lies between 1 and {MOST_TRIALS:,}.")
        if not 1 <= self.grace <= self.max_t:
            raise KoopsimError(f"grace is {self.grace}; it lies between 1 and max_t, which is {self.max_t}.")
        if not 1 < self.reduction < math.inf:
            raise KoopsimError(f"The reduction factor is {self.reduction}; it must be above 1.")
        if self.mode not in ("min", "max"):
            raise KoopsimError(f"mode is {self.mode!r}; expected min or max.")
        if type(self.judge_over) is not int or not 1 <= self.judge_over <= MOST_LOOKS:
            raise KoopsimError(
                f"judge_over is {self.judge_over!r}; give a whole number of looks from 1 (the last one alone, as the "
                f"paper chooses) to {MOST_LOOKS:,}."
            )

    def cost(self, metric: float) -> float:
        """The metric as something that is to be small."""
        return metric if self.mode == "min" else -metric

    def sample(self, seed: int, index: int) -> dict[str, Any]:
        """The drawn values of trial `index`."""
        values = {}
        for name, parameter in self.parameters.items():
            generator = np.random.default_rng([seed, index, zlib.crc32(name.encode())])
            values[name] = parameter.draw(generator, index)
        return values
