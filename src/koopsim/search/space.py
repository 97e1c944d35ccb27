"""What a search draws from, and how: one definition for every backend.

    trial i of seed s:   value of parameter p  =  draw_p( random numbers of (s, i, p), i )

so a trial's configuration depends on nothing but its number: not on the backend, not on the trials before it, and
fixing one parameter leaves the draws of the others as they were. A parameter's name is its path in a `Run`
("recipe.learning_rate", "model.fourier.bandwidth").
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from koopsim.config import (
    ClassificationConfig,
    CopyMemoryConfig,
    ImageRegressionConfig,
    MLPConfig,
    MonDEQConfig,
    Run,
    SIMConfig,
    from_dict,
    to_dict,
)
from koopsim.errors import KoopsimError, did_you_mean


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


@dataclass(frozen=True)
class SearchSpace:
    """What is drawn, how many trials, and when ASHA stops them. Time t is counted in epochs."""

    parameters: dict[str, Parameter]
    trials: int
    max_t: int
    grace: int
    reduction: float = 2
    metric: str = "loss"  # a figure of the task's evaluation on the validation split
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise KoopsimError(f"The number of trials is {self.trials}; it must be at least 1.")
        if not 1 <= self.grace <= self.max_t:
            raise KoopsimError(f"grace is {self.grace}; it lies between 1 and max_t, which is {self.max_t}.")
        if self.reduction <= 1:
            raise KoopsimError(f"The reduction factor is {self.reduction}; it must be above 1.")
        if self.mode not in ("min", "max"):
            raise KoopsimError(f"mode is {self.mode!r}; expected min or max.")

    def sample(self, seed: int, index: int) -> dict[str, Any]:
        """The drawn values of trial `index`."""
        values = {}
        for name, parameter in self.parameters.items():
            generator = np.random.default_rng([seed, index, zlib.crc32(name.encode())])
            values[name] = parameter.draw(generator, index)
        return values


def space_of(run: Run, scale: str = "paper") -> SearchSpace:
    """The paper's search for this run (its appendix B), or one that ends in seconds."""
    smoke = scale == "smoke"
    rate = LogUniform(1e-4, 0.05)
    parameters: dict[str, Parameter] = {}
    match run.task:
        case CopyMemoryConfig():
            parameters["recipe.batch_size"] = Choice((10, 20) if smoke else (1, 2, 5, 10, 20))
            parameters["recipe.learning_rate"] = rate
            shape = {"trials": 8, "max_t": 4, "grace": 1} if smoke else {"trials": 100, "max_t": 6, "grace": 3}
            space = SearchSpace(parameters, **shape, metric="loss", mode="min")
        case ClassificationConfig():
            parameters["recipe.batch_size"] = Choice((32, 64) if smoke else (64, 128, 256, 512))
            parameters["recipe.epochs"] = Choice((4, 8) if smoke else (20, 40, 60, 80))
            parameters["recipe.learning_rate"] = rate
            parameters["recipe.schedule"] = Choice(("onecycle", "step", "constant"))
            parameters["recipe.step_size"] = Choice((1, 2, 4) if smoke else tuple(range(5, 55, 5)))
            shape = {"trials": 8, "max_t": 8, "grace": 2} if smoke else {"trials": 200, "max_t": 80, "grace": 5}
            space = SearchSpace(parameters, **shape, metric="accuracy", mode="max")
        case ImageRegressionConfig():
            sizes = Choice((32, 64) if smoke else (32, 64, 128, 256, 512))
            parameters["recipe.learning_rate"] = rate
            if isinstance(run.model, SIMConfig) and isinstance(run.model.lift, MLPConfig):
                parameters |= {"model.lift.width": sizes, "model.lift_dim": sizes}
            if isinstance(run.model, SIMConfig) and run.model.fourier:
                parameters["model.fourier.features"] = sizes
            shape = {"trials": 6, "max_t": 5, "grace": 1} if smoke else {"trials": 200, "max_t": 100, "grace": 5}
            space = SearchSpace(parameters, **shape, metric="psnr", mode="max")
    if isinstance(run.model, SIMConfig) and run.model.fourier:
        parameters[BANDWIDTH] = LogUniform(1e-3, 1e3)
    return space


def base_of(run: Run) -> Run:
    """The run that a search varies: choices are made on the validation split.

    A picture trains 2,000 steps on all its pixels; cut into a hundred pieces they are the paper's 100 iterations.
    """
    if isinstance(run.task, ImageRegressionConfig) and run.task.steps_an_epoch == 100:
        steps, run = run.recipe.epochs * 100, replace(run, task=replace(run.task, steps_an_epoch=20))
        run = replace(run, recipe=replace(run.recipe, epochs=steps // 20))
    return replace(run, train_on="train")


def trial_run(base: Run, values: dict[str, Any], index: int) -> Run:
    """The run of a trial. A bandwidth still to come from the data is left as the base has it."""
    known = {name: value for name, value in values.items() if not is_median(value)}
    return replace(with_values(base, known), seed=base.seed + index)


def is_median(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("median")


def with_values(run: Run, values: dict[str, Any]) -> Run:
    """The run with the entries at these paths replaced; a wrong type or an impossible value is refused by name."""
    data = to_dict(run)
    for path, value in values.items():
        *folders, leaf = resolved(run, path).split(".")
        place = data
        for folder in folders:
            place = place[folder]
        place[leaf] = value
    return from_dict(Run, data, "run")


def resolved(run: Run, name: str) -> str:
    """The whole path of a parameter; its last word is enough where only one path ends in it."""
    paths = list(_leaves(to_dict(run)))
    if name in paths:
        return name
    ends = [path for path in paths if path.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise KoopsimError(f"{name!r} could be {' or '.join(ends)}; give the whole of it.")
    if name.endswith("bandwidth") and isinstance(run.model, (SIMConfig, MonDEQConfig)):
        raise KoopsimError("This model has no bandwidth: it has no Fourier features. Take a two-tier preset.")
    raise KoopsimError(f"A run has no entry {name!r} to search over." + did_you_mean(name, paths))


def _leaves(data: dict[str, Any], prefix: str = ""):
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif key != "kind":
            yield prefix + key
