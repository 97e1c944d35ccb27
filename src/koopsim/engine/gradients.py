"""How gradients are had: the one thing in which ways of stepping differ.

    alone     the module itself, P = 1: its hand-written kernels, solvers, torch.compile
    vmapped   d/dtheta sum_p loss_p(theta_p) = ( d loss_p / d theta_p )_p  under torch.vmap: P models as one
    in turn   the same P models one after the other: on a CPU, where each has as much to do as a stack
    batched   the same for SIMs with a TCN on a CPU, written out as batched products (batched.py)
    written   a SIM of rows on a CPU, P = 1, its gradient written out (nn/written.py)
    direct    a SIM with a TCN and the cross-entropy of its answers on CUDA, P = 1: kernel after kernel (nn/direct.py)

Each is a call  batch -> losses (P,), g (P, n);  the readable twin of all is a model alone.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from koopsim.engine.batched import batchable, outputs
from koopsim.engine.members import Members
from koopsim.engine.world import ALONE, World
from koopsim.implicit.base import SolverModel
from koopsim.nn.direct import DirectSIM, direct
from koopsim.nn.flat import joined
from koopsim.nn.sim import SIM
from koopsim.nn.written import WrittenSIM, writable
from koopsim.tasks.row_losses import OfAnswers
from koopsim.tasks.tagging import OfTags

Loss = Callable[..., Tensor]  # (model, *batch of one member) -> scalar, written for one model alone
Batch = tuple[Tensor, ...]
LONG = 1 << 26  # rows times parameters of a member: from there on the host's share of a step is lost in it


class Gradients:
    """The base of them. `shared`: of each tensor of a batch, whether all members see the same one."""

    def __init__(self, members: Members, loss: Loss, shared: tuple[bool, ...], autocast: torch.dtype | None = None):
        self.members, self.loss, self.shared, self.autocast = members, loss, shared, autocast
        self.diagnostics: dict[str, Tensor] = {}  # sums over the epoch of what a solver says of itself
        self.world: World = ALONE
        self.weight: float | Tensor = 1.0  # of this process's rows in the batch: its losses count so much

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _own(self, batch: Batch, member: int = 0) -> Batch:
        return tuple(t if shared else t[member] for t, shared in zip(batch, self.shared, strict=True))

    def cast(self) -> torch.autocast:
        return torch.autocast(self.members.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    @property
    def variant(self) -> object:
        """What else a captured step depends on: each variant is captured by itself."""
        return None

    def begin_epoch(self, first: Callable[[], Batch]) -> None:
        for total in self.diagnostics.values():
            total.zero_()

    @property
    def scale(self) -> float | Tensor:
        """What a loss is multiplied by before its gradient is taken."""
        return self.members.rule.scale if self.world.alone else self.members.rule.scale * self.weight

    def scaled(self, loss: Tensor) -> Tensor:
        """A loss as its gradient is taken."""
        return loss if self.world.alone and self.scale == 1 else self.scale * loss

    def counted(self, losses: Tensor) -> Tensor:
        """Losses as they are added up over processes."""
        return losses.detach() if self.world.alone else self.weight * losses.detach()

    def add_up(self, losses: Tensor, g: Tensor) -> None:
        """What all processes found becomes the sum of it, on each."""
        self.world.add_up(losses, g)

    def adapt(self, world: World = ALONE) -> None:
        """Between captured steps: a model with a solver chooses how much work its step does, in all processes alike."""


class Alone(Gradients):
    """P = 1: the model itself, its tensors views of the members'."""

    def __init__(
        self, members: Members, loss: Loss, shared: tuple[bool, ...], autocast: torch.dtype | None, compile: bool
    ):
        super().__init__(members, loss, shared, autocast)
        self.model = members.attach()
        self.solver = self.model if isinstance(self.model, SolverModel) else None
        self.forward = torch.compile(self.model, dynamic=False) if compile else self.model
        self.learnt = [p for p in self.model.parameters() if p.requires_grad]
        self.unused = members.flat.new_zeros(max(p.numel() for p in self.learnt))  # of what plays no part

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        own = self._own(batch)
        with self.cast():
            loss = self.loss(self.forward, *own)
        parts = torch.autograd.grad(self.scaled(loss), self.learnt, allow_unused=True)
        pairs = zip(parts, self.learnt, strict=True)
        g = joined([self.unused[: p.numel()] if part is None else part for part, p in pairs])
        if self.solver is not None:
            self._add_diagnostics(self.solver)
        return self.counted(loss.reshape(1)), g.unsqueeze(0)

    def _add_diagnostics(self, solver: SolverModel) -> None:
        for name, value in solver.diagnostics().items():
            if name not in self.diagnostics:
                self.diagnostics[name] = torch.zeros_like(value)
            if not self.world.alone:
                value = self.weight * value
                self.world.add_up(value)
            self.diagnostics[name].add_(value)

    @property
    def variant(self) -> object:
        return None if self.solver is None else self.solver.variant

    def begin_epoch(self, first: Callable[[], Batch]) -> None:
        """A model that has settings besides its weights chooses them by the epoch's first batch."""
        super().begin_epoch(first)
        if self.solver is not None:
            self.solver.start_epoch(self._own(first())[0])

    def adapt(self, world: World = ALONE) -> None:
        if self.solver is not None:
            world.largest(self.solver.longest)
            self.solver.adapt()


class Vmapped(Gradients):
    """P models as one with a leading axis."""

    def __init__(
        self, members: Members, loss: Loss, shared: tuple[bool, ...], autocast: torch.dtype | None, compile: bool
    ):
        super().__init__(members, loss, shared, autocast)
        alone = _ModelAndLoss(members.template, loss)
        self.member_losses: Callable[..., Tensor] = vmap(
            lambda own, batch: functional_call(alone, {f"model.{k}": v for k, v in own.items()}, batch),
            in_dims=(0, tuple(None if s else 0 for s in shared)),
            randomness="different",
        )
        if compile:
            self.member_losses = _compiled(self.member_losses)

    def losses(self, batch: Batch) -> Tensor:
        """(P,): each member's loss on its own batch."""
        m = self.members
        with self.cast():
            return self.member_losses(m.parameters | m.buffers, batch)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        m = self.members
        before = {name: t.clone() for name, t in m.buffers.items()}  # a forward pass moves running averages
        losses = self.losses(batch)
        parts = torch.autograd.grad(self.scale * losses.sum(), list(m.parameters.values()), materialize_grads=True)
        with torch.no_grad():
            goes = m.going() if before else m.active
            for name, tensor in m.buffers.items():
                tensor.copy_(torch.where(goes.view(-1, *[1] * (tensor.ndim - 1)), tensor, before[name]))
            return self.counted(losses), torch.cat([part.reshape(m.size, -1) for part in parts], dim=1)


class InTurn(Gradients):
    """P models one after the other, each by products of its own, which may be oneDNN's (nn/products.py).

    A stack of large models takes 1.4 to 1.9 times as long on AMD's processors (docs/speed.md); many small ones are
    faster as a stack. Which of the two a step is depends on shapes alone.
    """

    def __init__(self, members: Members, loss: Loss, shared: tuple[bool, ...], autocast: torch.dtype | None):
        super().__init__(members, loss, shared, autocast)
        self.stacked = Vmapped(members, loss, shared, autocast, False)
        self.alone = _ModelAndLoss(members.template, loss)
        rows = zip(*(v.detach().unbind() for v in members.parameters.values()), strict=True)
        self.learnt = [[row.requires_grad_() for row in own] for own in rows]  # they move as the members do
        self.gradient, self.long = torch.zeros_like(members.flat), LONG

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        m = self.members
        rows = batch[-1].shape[not self.shared[-1]]
        if m.size > 1 and rows * m.flat.shape[1] < self.long:
            self.stacked.world, self.stacked.weight = self.world, self.weight
            return self.stacked(batch)
        losses = m.flat.new_zeros(m.size)
        for p in m.going().nonzero().flatten().tolist():
            named = dict(zip(m.parameters, self.learnt[p], strict=True)) | {n: b[p] for n, b in m.buffers.items()}
            with self.cast():
                loss = functional_call(self.alone, {f"model.{n}": t for n, t in named.items()}, self._own(batch, p))
            parts = torch.autograd.grad(self.scaled(loss), self.learnt[p], materialize_grads=True)
            torch.cat([part.reshape(-1) for part in parts], out=self.gradient[p])
            losses[p] = loss.detach()
        return self.counted(losses), self.gradient


class Batched(Gradients):
    """SIMs with a TCN on a CPU. The first tensor of a batch is what a model sees."""

    def __init__(self, members: Members, loss: Loss, shared: tuple[bool, ...]):
        super().__init__(members, loss, shared)
        self.losses_of = vmap(lambda y, *batch: loss(lambda x: y, *batch))  # the answers are there already
        self.gradient = torch.empty_like(members.flat)  # fresh memory is what costs on a CPU

    def losses(self, batch: Batch) -> Tensor:
        m = self.members
        return self.losses_of(outputs(cast(SIM, m.template), m.parameters | m.buffers, batch[0]), *batch)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = self.losses(batch)
        total = losses.sum() if self.world.alone else self.weight * losses.sum()
        parts = torch.autograd.grad(total, list(self.members.parameters.values()))
        with torch.no_grad():
            return self.counted(losses), torch.cat([part.flatten(1) for part in parts], dim=1, out=self.gradient)


class Written(Gradients):
    """P = 1, a SIM of rows on a CPU: its gradient and the loss's written out; autograd is sent out of the room."""

    def __init__(self, members: Members, loss: OfAnswers, shared: tuple[bool, ...]):
        super().__init__(members, loss, shared)
        self.slope, self.gradient = loss.slope, torch.empty_like(members.flat)
        into = {name: view[0] for name, view in members.views(self.gradient).items()}
        self.model = WrittenSIM(cast(SIM, members.attach()), into)

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y = batch[0][0], batch[1][0]
        loss, dy = self.slope(self.model(x), y)
        self.model.backward(self.scaled(dy))
        return self.counted(loss.reshape(1)), self.gradient


class Direct(Alone):
    """P = 1, a SIM with a TCN on CUDA that learns tags: no tape, but for a batch that the kernels do not take."""

    def __init__(self, members: Members, loss: OfTags, shared: tuple[bool, ...]):
        super().__init__(members, loss, shared, None, False)
        self.smoothing = loss.smoothing
        sizes = [shape.numel() for shape in members.shapes.values()]
        begins = itertools.accumulate(sizes, initial=0)
        self.direct = DirectSIM(cast(SIM, self.model), members.flat, dict(zip(members.shapes, begins, strict=False)))

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y = self._own(batch)
        if not self.direct.takes(x, y):
            return super().__call__(batch)
        scale = self.scale
        known = not isinstance(scale, Tensor)
        losses, g = self.direct(x, y, self.smoothing, float(scale) if known else 1.0)
        return self.counted(losses), g if known else g.mul_(scale)


def choose(
    members: Members, loss: Loss, shared: tuple[bool, ...], autocast: torch.dtype | None, compile: bool, alone: bool
) -> Gradients:
    """The way for these members: `alone` where there is one and its own kernels count."""
    if alone and members.size == 1:
        plain = autocast is None and not compile and not any(shared)
        if plain and isinstance(loss, OfAnswers) and writable(members.template):
            return Written(members, loss, shared)
        if plain and isinstance(loss, OfTags) and direct(members.template):
            return Direct(members, loss, shared)
        return Alone(members, loss, shared, autocast, compile)
    plain = autocast is None and not compile and not any(shared) and members.rule.scale == 1
    if plain and batchable(members.template, members.device):
        return Batched(members, loss, shared)
    if members.device.type == "cpu" and not compile:
        return InTurn(members, loss, shared, autocast)
    return Vmapped(members, loss, shared, autocast, compile)


class _ModelAndLoss(nn.Module):
    """A model and its loss as one call, which is what `functional_call` can take."""

    def __init__(self, model: nn.Module, loss: Loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *batch)


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` through torch.compile; where that fails, the function itself and a warning."""
    fast = torch.compile(function, dynamic=False)
    broken = False

    def call(*arguments: object) -> Tensor:
        nonlocal broken
        if not broken:
            try:
                return fast(*arguments)
            except Exception as error:
                broken = True
                first = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(f"torch.compile failed, going on without it: {first}", stacklevel=2)
        return function(*arguments)

    return call
