"""The end of a step: Adam, for every member at once.

    g <- min(1, clip / |g|) g
    m <- m + (1-b1)(g - m)      v <- b2 v + (1-b2) g^2
    p <- p - lr decay p - lr/(1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)     Kingma & Ba 2015, Loshchilov & Hutter 2019
    a <- a + (1-average)(p - a)  from a = 0;   the average after t steps is a / (1 - average^t)

Clipping comes after backward. What does not depend on the data is a row of the schedule's table. A member that was
stopped or is at its end stands still. On CUDA the same is two kernels (nn/kernels/adam.py); this is their twin.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from koopsim.engine.members import Members
from koopsim.schedule import BETA2

BESIDE_NORM = 1e-6  # a gradient of zero has one too; torch's clip_grad_norm_ adds the same


def uses_kernels(members: Members) -> bool:
    """Whether the Triton kernels can take the place of the tensor operations."""
    return members.flat.is_cuda and members.flat.dtype == torch.float32 and find_spec("triton") is not None


@torch.no_grad()
def update(members: Members, g: Tensor, losses: Tensor) -> None:
    """One step of each member that goes on, by its gradient, a row of g (P, n), which is used up."""
    average_statistics(members)
    if uses_kernels(members):
        from koopsim.nn.kernels.adam import update as by_kernels

        return by_kernels(members, g, losses, BETA2)
    alone = members.size == 1 and members.flat.device.type == "cpu"
    (lone_update if alone else readable_update)(members, g, losses)


@torch.no_grad()
def readable_update(members: Members, g: Tensor, losses: Tensor) -> None:
    """Clip, update, average, write the losses down, count. Nothing here asks the host: it may be captured."""
    m, rule = members, members.rule
    goes = m.going()
    moves = goes.unsqueeze(1)
    _clip(m, g)
    g.masked_fill_(~moves, 0)  # replaced, not multiplied away: it may be infinite
    scalars = m.schedules[m.slots, m.steps.clamp(max=m.horizon - 1)]
    step_size, root_correction, one_minus_beta1, decay = (scalars * moves).unsqueeze(-1).unbind(1)
    weight = moves.to(g.dtype)
    row = (step_size, root_correction + ~moves, one_minus_beta1, decay)
    _move(m, g, row, weight * (1 - BETA2), weight * (1 - rule.average))
    at = m.positions.clamp(max=m.losses.shape[1] - 1)
    kept = m.losses[m.slots, at]
    m.losses[m.slots, at] = torch.where(goes, losses.to(kept.dtype), kept)
    m.steps.add_(goes)
    m.positions.add_(goes)


@torch.inference_mode()
def lone_update(members: Members, g: Tensor, losses: Tensor) -> None:
    """`readable_update` of one member on a CPU, where the host may be asked: the same numbers without masks.

    At the smallest sizes the masks and their indexing took longer than the step's products.
    """
    m = members
    step = int(m.steps)
    if not bool(m.active) or step >= m.horizon:
        return
    _clip(m, g)
    row = m.schedules[0, step].tolist()
    _move(m, g, row, 1 - BETA2, 1 - m.rule.average)
    m.losses[0, min(int(m.positions), m.losses.shape[1] - 1)] = losses[0]
    m.steps.add_(1)
    m.positions.add_(1)


def _clip(m: Members, g: Tensor) -> None:
    if m.rule.clip_norm is not None:
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        g.mul_((m.rule.scale * m.rule.clip_norm / (norm + BESIDE_NORM)).clamp_(max=1.0))


def _move(m: Members, g: Tensor, row: Sequence[Any], of_square: Any, of_average: Any) -> None:
    """The moments, the parameters, their average. A row of the schedule and two weights: numbers, or (P, 1) of them."""
    step_size, root_correction, one_minus_beta1, decay = row
    m.mean.lerp_(g, one_minus_beta1)
    m.square.lerp_(g.square_(), of_square)
    if m.decayed is not None:
        if isinstance(decay, float):
            m.flat.addcmul_(m.decayed, m.flat, value=-decay)
        else:
            m.flat.sub_(m.decayed * decay * m.flat)
    scale = torch.sqrt(m.square, out=g).div_(root_correction).add_(m.rule.scale * m.rule.eps)
    m.flat.sub_(scale.reciprocal_().mul_(m.mean).mul_(step_size))
    if m.rule.average:
        m.averaged["parameters"].lerp_(m.flat, of_average)


def average_statistics(members: Members) -> None:
    """a <- a + (1 - average)(b - a) for the running statistics b, as with the parameters."""
    names = [name for name in members.averaged if name != "parameters"]
    if not names:
        return
    averages, now = [members.averaged[n] for n in names], [members.buffers[n] for n in names]
    weight = 1 - members.rule.average
    if members.size == 1:
        torch._foreach_lerp_(averages, now, weight)
        return
    goes = members.going()
    for average, buffer in zip(averages, now, strict=True):
        average.lerp_(buffer, (goes * weight).to(buffer.dtype).view(-1, *[1] * (buffer.ndim - 1)))
