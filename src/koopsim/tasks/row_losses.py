"""What is minimised over rows of a table, with or without weights of the rows.

    classes   sum_r w_r ( log sum_c exp x_rc - x_{r, y_r} ) / sum_r w_r
    numbers   sum_r w_r |x_r - y_r|^2 / (d sum_r w_r)            in units of the targets' deviation

A feed has two tensors, x and y; weights travel as the last column of y.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.nn.cross_entropy import cross_entropy

RowLoss = Callable[[Tensor, Tensor], Tensor]


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().mean()


def weighted_squares(outputs: Tensor, y: Tensor) -> Tensor:
    y, w = y[:, :-1], y[:, -1]
    return ((outputs - y).square().mean(1) * w).sum() / w.sum().clamp_min(1e-30)


def weighted_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    labels, w = y[:, 0].long(), y[:, 1]
    return (F.cross_entropy(outputs, labels, reduction="none") * w).sum() / w.sum().clamp_min(1e-30)


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
