"""How far the solves of a training step came, measured the same way whoever solved.

    forward    || f(z) - z || / || f(z) ||                 at the z that was returned
    backward   || J^T y + g - y || / || y ||               at the y that the gradient was made of

Nothing is taken from a solver's own report: torchdeq's is of the point before the one it returns. y is the gradient in
a shift p = 0 of the map f + p. A residual is the worst sample's, all parts of its state together, as torchdeq judges
them; that of the worst part alone, which ours waits for unless told, stands beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.bench.training import Stepping
from koopsim.implicit.iteration import EPS
from koopsim.implicit.state import leaves

Pairs = list[tuple[Tensor, Tensor]]  # of each part: the error, and what it is relative to


@dataclass(frozen=True)
class Reached:
    """Forward and backward."""

    residuals: tuple[float, float]  # of the worst sample
    parts: tuple[float, float]  # of its worst part
    evaluations: tuple[int, int]  # of the cell and of its transposed Jacobian, of the longest step, solve or not

    def __str__(self) -> str:
        (forward, backward), (there, back) = self.residuals, self.evaluations
        return f"residual {forward:.1e}, backward {backward:.1e}; {there} + {back} evaluations"

    def as_dict(self) -> dict[str, float]:
        ways = ("forward", "backward")
        return {
            f"{way}_{what}": values[i]
            for i, way in enumerate(ways)
            for what, values in (
                ("residual", self.residuals),
                ("worst_part", self.parts),
                ("evaluations", self.evaluations),
            )
        }


def map_of(cell: Any, inputs: tuple[Tensor, ...]) -> Callable[[Any], Any]:
    """The cell's own fast form where it has one."""
    return cell.prepare(*inputs) if hasattr(cell, "prepare") else lambda z: cell(z, *inputs)


class _Shifted(nn.Module):
    """f + p with p = 0: the gradient in p is y, the answer to y = J^T y + g. It counts how often it is asked."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell, self.counts = cell, [0, 0]

    def initial(self, *inputs: Tensor) -> Any:
        return self.cell.initial(*inputs)  # pyright: ignore

    def prepare(self, *inputs: Tensor) -> Callable[[Any], Any]:
        self.shift = [part.requires_grad_() for part in leaves(self.initial(*inputs))]
        self.f = map_of(self.cell, inputs)

        def shifted(z: Any) -> Any:
            self.counts[0] += 1
            fz = self.f(z)
            first, *rest = map(torch.add, leaves(fz), self.shift)
            if first.requires_grad:
                first.register_hook(self._pulled)
            return first if isinstance(fz, Tensor) else (first, *rest)

        return shifted

    def _pulled(self, _: Tensor) -> None:
        self.counts[1] += 1


def reached(stepping: Stepping, autocast: torch.dtype | None = None) -> Reached:
    """Of all batches of a turn the worst."""
    found = [_of_batch(stepping, first, autocast) for first in range(0, len(stepping.x), stepping.batch)]

    def worst(what: str) -> tuple[Any, Any]:
        forward, backward = (max(of) for of in zip(*(getattr(one, what) for one in found), strict=True))
        return forward, backward

    return Reached(worst("residuals"), worst("parts"), worst("evaluations"))


def _of_batch(stepping: Stepping, first: int, autocast: torch.dtype | None) -> Reached:
    model: Any = stepping.model.train()
    cell, rows = model.deq.cell, slice(first, first + stepping.batch)
    shifted = model.deq.cell = _Shifted(cell)
    with torch.autocast(stepping.x.device.type, dtype=autocast, enabled=autocast is not None):
        try:
            z, _ = model.solve(stepping.x[rows])
            loss = stepping.loss(model.read(z), stepping.y[rows])
        finally:
            model.deq.cell = cell
        at = [part.detach().requires_grad_() for part in leaves(z)]
        fz = leaves(shifted.f(at[0] if isinstance(z, Tensor) else tuple(at)))
    parts = leaves(z)
    grads = torch.autograd.grad(loss, [*parts, *shifted.shift], allow_unused=True)
    g, y = (
        [torch.zeros_like(p) if part is None else part for p, part in zip(parts, half, strict=True)]
        for half in (grads[: len(parts)], grads[len(parts) :])
    )
    pulled = torch.autograd.grad(fz, at, [part.to(f.dtype) for part, f in zip(y, fz, strict=True)])
    ways: list[Pairs] = [
        [(f.detach() - a.detach(), f.detach()) for f, a in zip(fz, at, strict=True)],
        [(p + gg - yy, yy) for p, gg, yy in zip(pulled, g, y, strict=True)],
    ]
    together, apart = ([measure(pairs) for pairs in ways] for measure in (_together, _apart))
    return Reached((together[0], together[1]), (apart[0], apart[1]), (shifted.counts[0], shifted.counts[1]))


def norms(parts: list[Tensor]) -> Tensor:
    """Of each sample, all parts together."""
    return torch.cat([part.flatten(1) for part in parts], dim=1).norm(dim=1)


def _together(pairs: Pairs) -> float:
    errors, sizes = zip(*pairs, strict=True)
    return float((norms(list(errors)) / (norms(list(sizes)) + EPS)).max())


def _apart(pairs: Pairs) -> float:
    return max(_together([pair]) for pair in pairs)
