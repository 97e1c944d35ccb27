"""What a task is to the engine: data, a loss, and an honest judgement.

    members   how many networks a run trains: one, or one a picture
    data      what they learn from: `Samples` that are shuffled into batches, or the `Whole` of it every step
    judge     the figures on a split, from what members answer; all members at once

A task of one's own needs `split`, `loss` and `judge`; the rest has a default.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.config import Recipe, Run
from koopsim.implicit.base import SolverModel
from koopsim.models import build
from koopsim.nn.trials import no_trials
from koopsim.tasks.rows import Rows, Stream
from koopsim.tasks.streaming import Streaming

Split = tuple[Tensor, Tensor]  # inputs and targets, sample by sample along the first axis
Figures = dict[str, float]


@dataclass(frozen=True)
class Samples:
    """Samples along the first axis of x and y; `inputs` makes of rows of x what a model sees, augmented in training."""

    x: Tensor
    y: Tensor
    inputs: Callable[[Tensor, Recipe | None, Tensor | None], Tensor] = lambda x, recipe, draws: x


@dataclass(frozen=True)
class Whole:
    """Everything every step: points x that all members share, and each member's own targets y (members, n, ...).

    features   of a model: what is made of x before anything learnt, computed once; None where nothing is
    """

    x: Tensor
    y: Tensor
    epoch_steps: int
    features: Callable[[nn.Module], Tensor | None]


class Answers(ABC):
    """What members answer: called with what a model sees, it gives (members, ...) in the precision of judgement."""

    members: int
    unconverged: float | None = None  # the share of samples whose solve did not converge, where there is a solver

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


class ModelAnswers(Answers):
    """The answers of modules, one after the other, in eval mode; copies, so that the modules stay as they are."""

    def __init__(self, models: Iterable[nn.Module], exact: bool = False):
        copies = [copy.deepcopy(model).eval() for model in models]
        self.models = [model.double() for model in copies] if exact else copies
        self.members, self.seen, self.failed = len(copies), 0, 0.0

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            x = x.to(next((p.dtype for p in self.models[0].parameters()), x.dtype))
        found = torch.stack([model(x) for model in self.models])
        for model in self.models:
            if isinstance(model, SolverModel):
                self.failed += float(model.diagnostics()["unconverged"]) * len(x)
                self.seen += len(x)
        self.unconverged = self.failed / self.seen if self.seen else None
        return found


class Task(ABC):
    """Data on a device, the loss that trains, the figures that are reported."""

    config: Any
    metric: str  # the figure that decides, a key of what `evaluate` gives
    lower_is_better: bool
    exact: bool = False  # judge in float64
    many: bool = False  # a run trains one network for each of its `names`
    at_once: int | None = None  # of those, how many together; None: as memory allows
    streamed: bool = False  # its samples stay where they are; each model has a stream of its own
    by_itself: bool = True  # a single member is trained by the module's own kernels
    labels: bool = True  # whole numbers in y are classes, of which the model needs an output each
    checks_itself: bool = False  # whether model and data fit was looked at by whoever made it
    fast_alone: tuple[str, ...] = ("bf16",)  # precisions in which those kernels on CUDA beat a stack of members

    @abstractmethod
    def split(self, name: str) -> Split:
        """'train', 'valid', 'train+valid' or 'test'."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The scalar that is minimised."""

    @abstractmethod
    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """The figures on a split of each member that answers; `which` of the task's members they are."""

    def example(self, name: str) -> Split:
        """Some inputs of a split, two at least, and all of its targets."""
        return self.split(name)

    def inputs(self, x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        """Rows of a split as the model sees them; in training with the recipe's augmentation, from `draws`."""
        return x

    # ------------------------------------------------------------ what a run trains

    @property
    def names(self) -> Sequence[str]:
        """Of its members; a task of one member needs no name for it."""
        return ("",)

    def seeds(self, run: Run) -> list[int]:
        """Of each member's first weights."""
        return [run.seed]

    def model(self, run: Run) -> nn.Module:
        """A member before its first step, on the host; random numbers follow the seed that is set."""
        return build(run.model)

    def data(self, run: Run, which: Sequence[int]) -> Samples | Whole | Rows | Stream | Streaming:
        """What these members learn from."""
        return Samples(*self.split(run.train_on), self.inputs)

    def epoch_steps(self, run: Run) -> int:
        """Optimiser steps of an epoch."""
        n = len(self.split(run.train_on)[0])
        return -(-n // min(run.recipe.batch_size, n))

    def member_loss(self, run: Run) -> Callable[..., Tensor]:
        """(model, *batch of one member) -> the scalar that is minimised."""
        smoothing = run.recipe.label_smoothing
        return lambda model, x, y: self.loss(model(x), y, smoothing=smoothing)

    def counted(self, targets: Tensor) -> Tensor | None:
        """How many things the loss of a batch is the mean over, where that is not its rows: unequal sequences."""
        return None

    def autocast(self, run: Run) -> torch.dtype | None:
        """The type that forward passes are cast to."""
        return torch.bfloat16 if run.precision == "bf16" else None

    def products(self, run: Run) -> str:
        """The precision of float32 matrix products, as torch.set_float32_matmul_precision takes it."""
        return "high" if run.precision == "tf32" else "highest"

    def loss_scale(self, run: Run) -> float:
        """What the loss is multiplied by before its gradient is taken."""
        return 1.0

    def bytes_of(self, run: Run) -> int | None:
        """About how much memory a member needs while it trains, where members are many; None: do not ask."""
        return None

    def work(self, run: Run) -> int | None:
        """About how many products a step takes, where it may be so few that one thread is enough; None: do not ask."""
        return None

    def fingerprint(self) -> str | None:
        """What tells its data from other data; None: the content of its splits (fingerprint.py)."""
        return None

    # ------------------------------------------------------------ what is reported

    def reported(self, run: Run) -> tuple[str, ...]:
        """The splits of a run's result."""
        return ("test",) if run.train_on == "train+valid" else ("valid",)

    def gathered(self, figures: Sequence[Figures], which: Sequence[int]) -> Figures:
        """The figures of a run from those of its members."""
        return dict(figures[0])

    def line(self, losses: Tensor, figures: Figures | None) -> dict[str, float]:
        """An epoch's entries in metrics.jsonl: losses (members, steps), and the figures on the validation split."""
        found = {"train_loss": float(losses.double().mean())}
        return found | {f"valid_{key}": value for key, value in (figures or {}).items()}

    def concluded(self, models: Sequence[nn.Module]) -> dict[str, Any]:
        """What else a run's result holds: JSON values that follow from the trained models."""
        return {}

    def evaluate(self, model: nn.Module | Iterable[nn.Module], split: str) -> Figures:
        """The figures on a split, each a plain number, of a model or of one model a member."""
        if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
            model = [model] * len(self.names)
        models: list[nn.Module] = list(model)
        which = range(len(self.names))
        with no_trials():
            return self.gathered(self.judged(ModelAnswers(models, self.exact), split, which), which)

    def judged(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """`judge`, with the share of unconverged solves where there were any to be made."""
        found = self.judge(answers, split, which)
        if answers.unconverged is not None:
            found = [figures | {"unconverged": answers.unconverged} for figures in found]
        return found
