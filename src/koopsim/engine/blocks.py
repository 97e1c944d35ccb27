"""The blocks of a large model: what is gathered, or computed again, by itself.

    forward    x_0 -> block 1 -> x_1 -> block 2 -> x_2 ...        kept: x_0, x_1, ...   not what is inside a block
    backward   block k once more from x_{k-1}, then its gradient                        Chen et al., 2016

A block is an element of an nn.Sequential or nn.ModuleList; of a Sequential of single layers a stretch of about the root
of their number. The house's own maps read their parts' weights without calling them: of these only an MLP has any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from koopsim.errors import KoopsimError
from koopsim.nn.lift import MLP
from koopsim.nn.sim import SIM

CONTAINERS = (nn.Sequential, nn.ModuleList)


def containers(model: nn.Module) -> list[nn.Sequential | nn.ModuleList]:
    """Those whose elements are called one by one, the inner ones too."""
    if isinstance(model, SIM):
        return containers(model.mu)
    kind = getattr(model, "over", type(model))
    if kind.__module__.startswith("koopsim.") and kind is not MLP:
        return []
    own = [model] if isinstance(model, CONTAINERS) else []
    return [*own, *(inner for child in model.children() for inner in containers(child))]


def called_blocks(model: nn.Module) -> list[nn.Module]:
    """The elements of all containers that hold parameters, the outermost first."""
    found = [part for container in containers(model) for part in container if not isinstance(part, CONTAINERS)]
    return [part for part in found if next(part.parameters(), None) is not None]


def recomputed(model: nn.Module) -> nn.Module:
    """The model, in place, its blocks computed again in the backward pass; a model without any is refused."""
    found = containers(model)
    larger = {id(part): part for container in found for part in container if next(part.children(), None) is not None}
    composite = [part for part in larger.values() if not isinstance(part, CONTAINERS)]
    layers = [c for c in found if isinstance(c, nn.Sequential) and len(c) > 1 and not any(id(p) in larger for p in c)]
    for part in composite:
        _change(part, Recomputed)
    for container in layers:
        _change(container, RecomputedStretches)
    if not composite and not layers:
        raise KoopsimError(
            f"{type(model).__name__} has no blocks that could be computed again: --recompute is for lifts that are an "
            "nn.Sequential or have an nn.ModuleList, an MLP for one."
        )
    return model


def _change(module: nn.Module, how: type) -> None:
    """Another class over the module's own, as fully_shard does it: names, hooks and copies stay what they are."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (how, cls), {"__module__": cls.__module__, "over": cls})


class Recomputed:
    """Over a block's class: its forward keeps what it was given, and no more."""

    def forward(self, *given: Any) -> Any:
        return _again(super().forward, given, self)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]


class RecomputedStretches(Recomputed):
    """Over an nn.Sequential of single layers: each stretch keeps what it was given."""

    def forward(self, *given: Any) -> Any:
        layers: Sequence[nn.Module] = list(self.children())  # pyright: ignore[reportAttributeAccessIssue]
        each = math.ceil(len(layers) / round(math.sqrt(len(layers))))
        for i in range(0, len(layers), each):
            given = (_again(_in_turn(layers[i : i + each]), given, self),)  # pyright: ignore[reportArgumentType]
        return given[0]


def _in_turn(layers: Sequence[nn.Module]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return run


def _again(function: Callable[..., Any], given: tuple[Any, ...], module: nn.Module) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return function(*given)
    draws = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in module.modules())  # a capture has no such state
    return checkpoint(
        function, *given, use_reentrant=False, preserve_rng_state=draws,
        context_fn=lambda: (nullcontext(), _unmoved(module)),
    )  # fmt: skip


@contextmanager
def _unmoved(module: nn.Module) -> Iterator[None]:
    """What a second forward pass does to running averages is undone: they have seen this batch."""
    seen: list[tuple[Tensor, Tensor]] = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in seen:
                buffer.copy_(before)
