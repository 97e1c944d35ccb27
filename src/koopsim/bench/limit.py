"""The floor of a training step: no program can be faster on this machine with this arithmetic.

    floor = max( flops / peak,  bytes / bandwidth )

flops   products of matrices and convolutions, forward and backward, as the layers stand (counted by torch); what is
        elementwise is left out, so the floor errs on the low side
bytes   every parameter, its gradient and Adam's two moments read and written once: 8 numbers of 4 bytes a parameter;
        and every activation that the gradient needs, written once and read once

An activation here is the input of a layer that has weights or of a normalisation: without it a gradient can only be had
by computing again. The bytes are those of memory; a working set that lives in a cache can move faster than that, and a
step that small is bound by neither.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from koopsim.bench.machine import Machine
from koopsim.nn import SIM, LimitOperator
from koopsim.nn.lift import CausalConv

LAYERS = (nn.Linear, nn.Conv2d, nn.BatchNorm2d, CausalConv, LimitOperator)
PARAMETER_BYTES = 8 * 4
SOLVED = 32  # samples that a model with a solver is run on to be counted

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Demand:
    """What a step has to do, whatever does it."""

    flops: float
    parameters: int
    activations: int  # numbers kept for the gradient

    def bytes(self, precision: str = "float32") -> float:
        return PARAMETER_BYTES * self.parameters + 2 * (2 if precision == "bf16" else 4) * self.activations

    def times(self, count: int) -> "Demand":
        """The same for so many models, each with its own data."""
        return Demand(count * self.flops, count * self.parameters, count * self.activations)


@dataclass(frozen=True)
class Floor:
    """The least seconds a step takes, by each limit."""

    arithmetic: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.memory)

    @property
    def bound(self) -> str:
        return "arithmetic" if self.arithmetic >= self.memory else "bytes"


def floor_of(demand: Demand, machine: Machine, precision: str = "float32") -> Floor:
    return Floor(demand.flops / machine.flops[precision], demand.bytes(precision) / machine.bandwidth)


def train_demand(model: nn.Module, loss: LossFunction, x: Tensor, y: Tensor) -> Demand:
    """What one training step of `model` on a batch demands, counted on a CPU, whose operations are all seen.

    A SIM's demand is a constant and so much a sample, so two small batches tell it exactly. A model with a solver is
    run as it is, for how long its solves are depends on the numbers; beyond `SOLVED` samples that too is drawn on from
    two smaller batches, whose longest solve may be shorter.
    """
    model = copy.deepcopy(model).cpu().train()
    feedforward = isinstance(model, SIM)

    def counted(rows: int) -> Demand:
        kept = _LayerInputs(model) if feedforward else _Saved(model)
        xs, ys = x[:rows].cpu(), y[:rows].cpu()
        return _counted(lambda: loss(model(xs), ys), _learnt(model), kept)

    return from_two(counted, len(x), 2 if feedforward else SOLVED // 2)


def folded_demand(model: nn.Module, call: Callable[[int], Tensor], rows: int) -> Demand:
    """The same for a loss of so many rows that does not go through the model's layers, such as one folded."""
    return from_two(lambda n: _counted(lambda: call(n), _learnt(model), _Saved(model)), rows)


def from_two(counted: Callable[[int], Demand], rows: int, few: int = 2) -> Demand:
    """What is a constant and so much a row, from two small counts: c(n) + (rows - n) (c(2n) - c(n)) / n."""
    if rows <= 2 * few:
        return counted(rows)
    some, more = counted(few), counted(2 * few)
    left = (rows - few) / few
    activations = some.activations + left * (more.activations - some.activations)
    return Demand(some.flops + left * (more.flops - some.flops), some.parameters, round(activations))


def _learnt(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _counted(call: Callable[[], Tensor], parameters: list[nn.Parameter], kept: "_LayerInputs | _Saved") -> Demand:
    with FlopCounterMode(display=False) as counter:
        with kept:
            value = call()
        torch.autograd.grad(value, parameters, allow_unused=True)
    return Demand(counter.get_total_flops(), sum(p.numel() for p in parameters), kept.numbers())


class _Kept:
    """Tensors, each storage once. They are held, so that no address is used twice."""

    def __init__(self, model: nn.Module):
        self.found: dict[int, Tensor] = {}
        self.own = {p.untyped_storage()._cdata for p in model.parameters()}

    def add(self, tensor: Tensor) -> None:
        if tensor.is_floating_point() or tensor.is_complex():
            self.found.setdefault(tensor.untyped_storage()._cdata, tensor.detach())

    def numbers(self) -> int:
        kept = {key: t for key, t in self.found.items() if key not in self.own}
        return sum(t.numel() * (2 if t.is_complex() else 1) for t in kept.values())


class _LayerInputs(_Kept):
    """The inputs of all layers that have weights."""

    def __enter__(self) -> None:
        layers = [m for m in self.model.modules() if isinstance(m, LAYERS)]
        self.handles = [m.register_forward_pre_hook(lambda m, inputs: self.add(inputs[0])) for m in layers]

    def __exit__(self, *reason: object) -> None:
        for handle in self.handles:
            handle.remove()

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.model = model


class _Saved(_Kept):
    """What autograd keeps."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.hooks = saved_tensors_hooks(self.pack, lambda tensor: tensor)

    def pack(self, tensor: Tensor) -> Tensor:
        self.add(tensor)
        return tensor

    def __enter__(self) -> None:
        self.hooks.__enter__()

    def __exit__(self, *reason: object) -> None:
        self.hooks.__exit__(*reason)
