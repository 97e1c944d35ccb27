"""Many models of equal shapes trained as one, each as if it were alone.

    d/dtheta  sum_p loss_p(theta_p)  =  ( d loss_p / d theta_p )_p

P models become one with a leading axis: a linear layer becomes a batched product, Adam's vector a (P, n) matrix, the
schedule a (P, steps, 4) table, and one step advances them all. Nothing flows between members, so each gives the numbers
it gives alone (up to the order of additions), a member that diverges spoils nobody, and a slot can be stopped or given
to a new model between two steps: shapes and addresses stay, and with them the captured step.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from koopsim.errors import KoopsimError
from koopsim.train.capture import captured
from koopsim.train.schedule import BETA2

Loss = Callable[..., Tensor]  # (model, *batch of one member) -> scalar, written for one model alone
Batch = Callable[[Tensor], tuple[Tensor, ...]]  # each member's own step (P,) -> the tensors of this step, on the device


class Stack:
    """P models of equal shapes: their parameters as one (P, n) matrix, their buffers stacked alongside."""

    def __init__(self, models: Sequence[nn.Module]):
        shapes = [{name: t.shape for name, t in m.state_dict(keep_vars=True).items()} for m in models]
        for i, other in enumerate(shapes):
            if other != shapes[0]:
                name = next(n for n in (*shapes[0], *other) if shapes[0].get(n) != other.get(n))
                raise KoopsimError(
                    f"Model {i} cannot be stacked on the first: {name!r} is {shape_of(other.get(name))} there and "
                    f"{shape_of(shapes[0].get(name))} here. Stack models of equal shapes only."
                )
        self.size = len(models)
        self.template = copy.deepcopy(models[0]).to("meta")  # the structure; its tensors are always given
        first = dict(models[0].named_parameters())
        rows = [torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in models]
        self.flat = torch.stack(rows)
        self.parameters: dict[str, Tensor] = {}
        start = 0
        for name, p in first.items():
            view = self.flat[:, start : start + p.numel()].view(self.size, *p.shape)
            self.parameters[name] = view.detach().requires_grad_()
            start += p.numel()
        buffers = [dict(m.named_buffers()) for m in models]
        self.buffers = {name: torch.stack([b[name].detach() for b in buffers]) for name in buffers[0]}

    def matrices(self) -> Tensor:
        """(n,): 1 where a matrix or kernel has its entries, 0 at biases and gains, which do not decay."""
        return torch.cat([torch.full_like(p[0].detach(), p.ndim > 2).flatten() for p in self.parameters.values()])

    def member(self, p: int) -> dict[str, Tensor]:
        """The state dict of member `p`, as copies."""
        both = self.parameters | self.buffers
        return {name: both[name][p].detach().clone() for name in self.template.state_dict()}

    @torch.no_grad()
    def put(self, p: int, model: nn.Module) -> None:
        """Give slot `p` the weights and buffers of `model`, in place."""
        state = model.state_dict()
        for name, tensor in (self.parameters | self.buffers).items():
            if name in state:
                tensor[p].copy_(state[name])

    def model(self, p: int) -> nn.Module:
        """Member `p` as a module of its own."""
        model = copy.deepcopy(self.template).to_empty(device=self.flat.device)
        model.load_state_dict(self.member(p))
        return model.to(self.flat.dtype)

    def models(self) -> Iterator[nn.Module]:
        """The members one by one."""
        return (self.model(p) for p in range(self.size))


class Population:
    """Steps P models at once.

    loss       (model, *batch) -> scalar, for one member
    batch      the tensors of a step: a function of the members' step counts (P,), or the same tensors every time
    schedules  (P, steps, 4): a row of `schedule.adam_table` for each member and step; may be rewritten between steps
    shared     for each tensor of the batch, whether all members see the same one; else its first axis is the member
    eps        of Adam;   clip_norm  of each member's gradient;   decay  apply the schedules' weight decay
    average    judge each member by the average of its parameters, as `adam.Adam` keeps it; 0: by the last ones
    scale      gradients are taken of the loss times this, so that none is too small for float16; Adam's eps and the
               clipping take it along, and what it does to the moments cancels
    capture    replay the step from a CUDA graph;   compile  let torch.compile fuse its small kernels
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        loss: Loss,
        batch: Batch | tuple[Tensor, ...],
        schedules: Tensor,
        shared: Sequence[bool],
        eps: float = 1e-8,
        clip_norm: float | None = None,
        decay: bool = False,
        average: float = 0.0,
        scale: float = 1.0,
        autocast: torch.dtype | None = None,
        capture: bool = False,
        compile: bool = False,
    ):
        self.stack = Stack(models)
        flat = self.stack.flat
        self.device, self.size = flat.device, self.stack.size
        if schedules.shape[0] != self.size:
            raise KoopsimError(
                f"There are {self.size} models and schedules for {schedules.shape[0]}; give one for each."
            )
        self.batch: Batch = batch if callable(batch) else lambda steps: batch
        self.schedules = schedules.to(flat).contiguous()
        self.horizon = self.schedules.shape[1]
        self.eps, self.clip_norm = scale * eps, None if clip_norm is None else scale * clip_norm
        self.scale, self.autocast, self.capture = scale, autocast, capture
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.decayed = self.stack.matrices() if decay else None
        self.average, self.averaged = average, torch.zeros_like(flat) if average else None
        self.slots = torch.arange(self.size, device=self.device)
        self.steps = torch.zeros(self.size, dtype=torch.int64, device=self.device)  # taken so far by each member
        self.active = torch.ones(self.size, dtype=torch.bool, device=self.device)
        self.losses = torch.full((self.size, self.horizon), torch.nan, dtype=flat.dtype, device=self.device)
        alone = _Alone(self.stack.template, loss)
        self._member_losses = vmap(
            lambda parameters, buffers, batch: functional_call(
                alone, {f"model.{k}": v for k, v in (parameters | buffers).items()}, batch
            ),
            in_dims=(0, 0, tuple(None if s else 0 for s in shared)),
            randomness="different",
        )
        if compile:
            self._member_losses = _compiled(self._member_losses)
        self.variant: int | None = None  # of the batch, where its size changes: each is captured by itself
        self._graphs: dict[int | None, torch.cuda.CUDAGraph] = {}

    def member_losses(self) -> Tensor:
        """(P,): each member's loss on its present batch."""
        batch = self.batch(self.steps)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            return self._member_losses(self.stack.parameters, self.stack.buffers, batch)

    def step(self) -> None:
        """One update of every member that is active and not at its end. The readable twin of its captured form."""
        before = {name: t.clone() for name, t in self.stack.buffers.items()}  # a forward pass moves running averages
        losses = self.member_losses()
        parts = torch.autograd.grad(
            self.scale * losses.sum(), list(self.stack.parameters.values()), materialize_grads=True
        )
        g = torch.cat([part.reshape(self.size, -1) for part in parts], dim=1)
        with torch.no_grad():
            if before:
                goes = self.active & (self.steps < self.horizon)
                for name, tensor in self.stack.buffers.items():
                    tensor.copy_(torch.where(goes.view(-1, *[1] * (tensor.ndim - 1)), tensor, before[name]))
            if self.fused():
                from koopsim.nn.kernels.adam import advance_members

                advance_members(self, g, losses.detach(), BETA2)
            else:
                self.update(g, losses)

    def fused(self) -> bool:
        """Whether the Triton kernels can take the place of `update`."""
        flat = self.stack.flat
        return flat.is_cuda and flat.dtype == torch.float32 and find_spec("triton") is not None

    def update(self, g: Tensor, losses: Tensor) -> None:
        """Clip, update, write the losses down, count: for each member that goes on. The twin of `kernels.adam`."""
        with torch.no_grad():
            if self.clip_norm is not None:
                norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
                g = g * (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
            goes = self.active & (self.steps < self.horizon)
            at = self.steps.clamp(max=self.horizon - 1)
            step_size, root_correction, one_minus_beta1, decay = self.schedules[self.slots, at].unsqueeze(-1).unbind(1)
            moves = goes.unsqueeze(1)
            # A member that stands still has weights of zero in every update; its gradient may be infinite, so it is
            # replaced, not multiplied away.
            g = torch.where(moves, g, 0)
            still = torch.zeros_like(step_size)
            step_size, one_minus_beta1 = (torch.where(moves, s, still) for s in (step_size, one_minus_beta1))
            self.mean.lerp_(g, one_minus_beta1)
            self.square.lerp_(g * g, moves.to(g.dtype) * (1 - BETA2))
            if self.decayed is not None:
                self.stack.flat.sub_(torch.where(moves, decay, still) * self.decayed * self.stack.flat)
            scale = self.square.sqrt().div_(root_correction).add_(self.eps)
            self.stack.flat.addcdiv_(self.mean * -step_size, scale)
            if self.averaged is not None:
                self.averaged.lerp_(self.stack.flat, moves.to(g.dtype) * (1 - self.average))
            kept = self.losses[self.slots, at]
            self.losses[self.slots, at] = torch.where(goes, losses.to(kept.dtype), kept)
            self.steps.add_(goes)

    def run(self, steps: int) -> None:
        """`steps` updates, from the captured graph where there is one."""
        for _ in range(steps):
            self.graph().replay() if self.capture else self.step()

    def warm_up(self) -> None:
        """Capture now, so that choosing kernels is not counted as training."""
        if self.capture:
            self.graph()

    def graph(self) -> torch.cuda.CUDAGraph:
        if self.variant not in self._graphs:
            self._graphs[self.variant] = captured(self.step, self.state, self.device)
        return self._graphs[self.variant]

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes: what a checkpoint holds and a capture restores."""
        own = {"flat": self.stack.flat, "mean": self.mean, "square": self.square, "steps": self.steps}
        own |= {"active": self.active, "losses": self.losses}
        own |= {} if self.averaged is None else {"averaged": self.averaged}
        return own | {f"buffer.{name}": t for name, t in self.stack.buffers.items()}

    @torch.no_grad()
    def replace(self, slot: int, model: nn.Module, schedule: Tensor) -> None:
        """Give `slot` to a new model at its first step; the others notice nothing."""
        self.stack.put(slot, model)
        if self.averaged is not None:
            self.averaged[slot].zero_()
        self.schedules[slot].copy_(schedule)
        self.mean[slot].zero_()
        self.square[slot].zero_()
        self.steps[slot] = 0
        self.losses[slot] = torch.nan
        self.active[slot] = True

    def model(self, p: int) -> nn.Module:
        """Member `p` as it is judged: with its last parameters, or with their average."""
        model, steps = self.stack.model(p), int(self.steps[p])
        if self.averaged is not None and steps:
            nn.utils.vector_to_parameters(self.averaged[p] / (1 - self.average**steps), model.parameters())
        return model

    def models(self) -> Iterator[nn.Module]:
        """The members as they are judged, one by one."""
        return (self.model(p) for p in range(self.size))

    def stop(self, slots: Sequence[int]) -> None:
        """Freeze these members where they are."""
        self.active[list(slots)] = False


class _Alone(nn.Module):
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


def shape_of(shape: torch.Size | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape)) or "a number"


def groups(count: int, bytes_each: int, device: torch.device, at_once: int | None = None) -> list[range]:
    """0..count-1 cut into runs of equal length, as long as memory allows, or at most `at_once`."""
    fits = at_once or max(1, int(0.8 * free_memory(device)) // max(bytes_each, 1))
    number = -(-count // fits)
    return [range(count * i // number, count * (i + 1) // number) for i in range(number)]


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device; on a CPU half of what the system calls available."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024 // 2
    except (OSError, KeyError, ValueError, IndexError):
        return 2**31
