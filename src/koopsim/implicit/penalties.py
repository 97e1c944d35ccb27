"""What a DEQ's training can be asked for besides its loss, and what it can be watched by.

    || J ||_F^2 = E || J^T v ||^2,  v ~ N(0, I)              Hutchinson's estimator; Bai, Koltun & Kolter, ICML 2021
    rho(J) = lim || (J^T)^k v ||^(1/k)                       power iteration: below 1 the plain iteration settles
    sum_k weight^(K - k) loss(z_k)                           fixed-point correction; Bai et al., CVPR 2022

with J = df/dz at z. All take a map f of states (a tensor, tuple or dict) and a point z; the point itself is held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.implicit.gradient import pulled
from koopsim.implicit.state import State, packing_of

TAIL = 0.5  # the share of the power iteration whose growth is averaged


def jacobian_penalty(f: Callable[[State], State], z: State, samples: int = 1) -> Tensor:
    """An estimate of the mean of || J ||_F^2 / D over the samples, with a gradient for what f sees."""
    at, tape = _recorded(f, z)
    return squared_norm(tape, at, samples)


def squared_norm(
    tape: Tensor, at: Tensor, samples: int = 1, create_graph: bool = True, constant: bool = True
) -> Tensor:
    """The penalty of a recorded evaluation `tape` = f(at), which with `constant` may do without `at`."""
    if samples < 1:
        raise KoopsimError(f"samples={samples}: expected at least 1 random vector.")
    total = at.new_zeros(())
    if not tape.requires_grad:  # a constant
        return total
    for _ in range(samples):
        v = torch.randn_like(at)
        (vjp,) = torch.autograd.grad(
            tape, at, v, retain_graph=True, create_graph=create_graph, allow_unused=constant
        )
        total = total if vjp is None else total + vjp.square().sum()
    return total / (samples * max(1, at.numel()))


def spectral_radius(f: Callable[[State], State], z: State, steps: int = 50) -> Tensor:
    """rho(J) of each sample, (B,), estimated by power iteration on J^T; no gradient.

    The growth is the geometric mean over the second half of the steps, so that a pair of complex eigenvalues, round
    which plain power iteration swings, is measured too.
    """
    at, tape = _recorded(f, z)
    return power_iteration(tape, at, steps)[1]


def power_iteration(tape: Tensor, at: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Of a recorded evaluation `tape` = f(at): where the power iteration ended, of norm 1, and rho(J); by sample."""
    if steps < 2:
        raise KoopsimError(f"steps={steps}: expected at least 2 of the power iteration.")
    y = torch.randn_like(at).flatten(1) if at.dim() > 1 else torch.randn_like(at).unsqueeze(1)
    tiny, first = torch.finfo(at.dtype).tiny, int((1 - TAIL) * steps)
    logs = y.new_zeros(len(y))
    y = y / torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp_min(tiny)
    for k in range(steps):
        y = pulled(tape, at, y.view(at.shape)).reshape(y.shape)
        size = torch.linalg.vector_norm(y, dim=1, keepdim=True)
        if k >= first:
            logs = logs + size.squeeze(1).log()  # of a map that is constant: -inf, a radius of 0
        y = y / size.clamp_min(tiny)
    return y.view(at.shape), (logs / (steps - first)).exp()


def correction_loss(
    loss: Callable[[State, Any], Tensor], states: Sequence[State], target: Any, weight: float = 0.8
) -> Tensor:
    """The loss of the last state, plus that of earlier ones, each `weight` times the one after.

    `states, info = deq.path(x, at=(4, 8))` gives them.
    """
    if not states or not 0 < weight <= 1:
        raise KoopsimError(f"{len(states)} states and weight={weight}: expected at least one, and in (0, 1].")
    last = len(states) - 1
    return torch.stack([weight ** (last - k) * loss(state, target) for k, state in enumerate(states)]).sum()


def _recorded(f: Callable[[State], State], z: State) -> tuple[Tensor, Tensor]:
    packing = packing_of(z)
    with torch.enable_grad():
        at = packing.pack(z).detach().requires_grad_()
        return at, packing.packed(f)(at).to(at.dtype)
