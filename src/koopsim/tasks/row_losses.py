"""What is minimised over rows of a table, with or without weights of the rows.

    classes   sum_r w_r ( log sum_c exp x_rc - x_{r, y_r} ) / sum_r w_r
    numbers   sum_r w_r |x_r - y_r|^2 / (d sum_r w_r)            in units of the targets' deviation

A feed has two tensors, x and y; weights travel as the last column of y.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn.cross_entropy import cross_entropy
from koopsim.nn.folded import folded

RowLoss = Callable[[Tensor, Tensor], Tensor]
NOTHING = 1e-30  # at least, of all weights: rows of no weight have no loss


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().mean()


def weighted_squares(outputs: Tensor, y: Tensor) -> Tensor:
    y, w = y[:, :-1], y[:, -1]
    return ((outputs - y).square().mean(1) * w).sum() / w.sum().clamp_min(NOTHING)


def weighted_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    labels, w = y[:, 0].long(), y[:, 1]
    return (F.cross_entropy(outputs, labels, reduction="none") * w).sum() / w.sum().clamp_min(NOTHING)


def row_loss(classes: bool, weighted: bool) -> RowLoss:
    """The loss of answers (n, outputs) and targets as `row_targets` lays them out."""
    if weighted:
        return weighted_entropy if classes else weighted_squares
    return cross_entropy if classes else squares


def row_targets(y: Tensor, weights: Tensor | None) -> Tensor:
    """Classes (n,) or numbers (n, d), and beside them the weights, where there are some."""
    if weights is None:
        return y
    y = y.unsqueeze(1) if y.ndim == 1 else y
    return torch.cat([y.to(weights.dtype), weights.unsqueeze(1)], dim=1)


def squares_slope(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by the outputs: 2 (x - y) / (n d)."""
    apart = outputs - y
    return apart.square().mean(), apart.mul_(2 / apart.numel())


def entropy_slope(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by the outputs: (softmax(x) - [c = y]) / n."""
    logs = outputs.log_softmax(1)
    loss = F.nll_loss(logs, y)
    slope = logs.exp_()
    slope.scatter_add_(1, y.unsqueeze(1), slope.new_full((1, 1), -1.0).expand(len(y), 1))
    return loss, slope.div_(len(y))


SLOPES: dict[RowLoss, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    squares: squares_slope,
    cross_entropy: entropy_slope,
}


@dataclass(frozen=True)
class OfAnswers:
    """A loss of the answers to rows, and of nothing else in a model: who has a faster way to them may take it."""

    loss: RowLoss
    folds: bool  # multiply neighbouring matrices first: a batch has more rows than they

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(folded(model, x) if self.folds else model(x), y)

    def slope(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, its gradient by the outputs), without a tape where the gradient is known."""
        known = SLOPES.get(self.loss)
        if known is not None:
            return known(outputs, y)
        with torch.inference_mode(False), torch.enable_grad():
            outputs = outputs.clone().requires_grad_()
            loss = self.loss(outputs, y.clone())
            return loss.detach(), torch.autograd.grad(loss, outputs)[0]
