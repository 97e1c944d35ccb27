"""A run: model + task + recipe + seed, everything needed to repeat a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from koopsim.config.checks import positive, require, require_each, require_sane
from koopsim.config.kinds_of import ModelConfig, TaskConfig

SMALLEST = 1e-30  # of Adam's eps: float32 rounds smaller ones to zero in the end, and then divides by it


Schedule = Literal["constant", "step", "onecycle", "cosine"]
SCHEDULES = ", ".join(get_args(Schedule))


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: Adam, its schedule, and what is reported on the way."""

    batch_size: int = 20
    epochs: int = 20
    learning_rate: float = 1e-3
    schedule: Schedule = "constant"
    step_size: int = 10  # epochs between drops of the step schedule
    warm_up: int = 0  # steps over which the learning rate first rises
    eps: float = 1e-8
    clip_norm: float | None = None
    weight_decay: float = 0.0  # decoupled from the gradient, as in AdamW
    label_smoothing: float = 0.0
    patience: int | None = None  # stop when the validation loss has not fallen for so many epochs; keep the best epoch
    average: float = 0.0  # evaluate an exponential average of the weights with this decay; 0: the last weights
    flip: bool = False  # augmentation, on the device: mirror left and right,
    shift: int = 0  # move by up to so many pixels,
    rotate: float = 0.0  # turn by up to so many degrees either way,
    zoom: float = 0.0  # grow or shrink by up to this share,
    cutout: int = 0  # and blank a square of so many pixels

    @property
    def augments(self) -> bool:
        """Whether the images of an epoch differ from those of the last."""
        return bool(self.flip or self.shift or self.rotate or self.zoom or self.cutout)

    def __post_init__(self) -> None:
        require_each(self, ("batch_size", "epochs", "step_size"), positive, "{} is {}; it must be at least 1.")
        told = "{} is {}; it is a number of epochs, at least 1."
        require_each(self, ("patience",), lambda v: v is None or v >= 1, told)
        names = ("shift", "rotate", "cutout", "weight_decay", "warm_up")
        require_each(self, names, lambda value: value >= 0, "{} is {}; it must not be negative.")
        require_each(self, ("label_smoothing", "average", "zoom"), lambda v: 0 <= v < 1, "{} is {}; it lies in [0, 1).")
        least = f"Adam's eps is {{1}}; it must be at least {SMALLEST}."
        require_each(self, ("learning_rate",), lambda v: v > 0, "The learning rate is {1}; it must be positive.")
        require_each(self, ("eps",), lambda v: v >= SMALLEST, least)
        require_each(self, ("clip_norm",), lambda v: v is None or v > 0, "{} is {}; it must be positive.")
        require_each(self, ("schedule",), get_args(Schedule).__contains__, f"{{}} is {{}}; expected {SCHEDULES}.")


@dataclass(frozen=True)
class Run:
    """Everything that decides a number."""

    model: ModelConfig
    task: TaskConfig
    recipe: Recipe
    seed: int = 0
    train_on: Literal["train", "train+valid"] = "train+valid"  # the paper retrains on both after the search
    precision: Literal["float32", "float64", "tf32", "bf16", "fp16"] = "float32"

    def __post_init__(self) -> None:
        require_sane(self, "")
        require(
            self.precision in self.task.precisions,
            lambda: f"precision is {self.precision!r}, which is for pictures; use bf16 or tf32.",
        )


def resolve_precision(precision: str, device: str, bf16: bool = False) -> str:
    """The precision a run really has on a kind of device; `bf16`: a processor that gains by it, for this task.

    Most emulate bfloat16 and are ten times slower with it; tf32 and fp16 no processor has.
    """
    own = ("float32", "float64", "bf16") if bf16 and device == "cpu" else ("float32", "float64")
    return precision if device == "cuda" or precision in own else "float32"
