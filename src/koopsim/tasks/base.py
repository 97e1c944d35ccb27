"""What a task is to the engine: tensors, a loss, and an honest evaluation."""

from typing import Protocol

from torch import Tensor, nn

Split = tuple[Tensor, Tensor]  # inputs and targets, sample by sample along the first axis


class Task(Protocol):
    """Data on a device, the loss that trains, the figures that are reported."""

    metric: str  # the figure that decides, a key of `evaluate`
    lower_is_better: bool

    def split(self, name: str) -> Split:
        """'train', 'valid', 'train+valid' or 'test'."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar that is minimised."""
        ...

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """The figures on a split, each a plain number."""
        ...
