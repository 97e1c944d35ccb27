"""What a task is to the engine: tensors, a loss, and an honest evaluation."""

from typing import Protocol

from torch import Tensor, nn

from koopsim.config import Recipe

Split = tuple[Tensor, Tensor]  # inputs and targets, sample by sample along the first axis


class Task(Protocol):
    """Data on a device, the loss that trains, the figures that are reported."""

    metric: str  # the figure that decides, a key of `evaluate`
    lower_is_better: bool

    def split(self, name: str) -> Split:
        """'train', 'valid', 'train+valid' or 'test'."""
        ...

    def inputs(self, x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        """Rows of a split as the model sees them; in training with the recipe's augmentation, from `draws`."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The scalar that is minimised."""
        ...

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """The figures on a split, each a plain number."""
        ...
