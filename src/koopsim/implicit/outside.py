"""What a cell sees besides its state: the tensors a gradient must reach.

A cell may be a module, a function, a closure over anything; its inputs may be the outputs of other networks. One
evaluation is watched, and every tensor with a past that it uses and did not make itself is outside. In later
evaluations each is replaced by a leaf of its own, so that the graph of one evaluation ends where the cell does. A cell
whose graph leaves it through anything else is refused: a gradient is right, or there is none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from koopsim.errors import KoopsimError
from koopsim.implicit.iteration import Map
from koopsim.implicit.state import leaves


class _Watch(TorchFunctionMode):
    """Collects the tensors with a past that are used and were not made here."""

    def __init__(self, at: Tensor) -> None:
        super().__init__()
        self.made: dict[int, Tensor] = {id(at): at}
        self.outside: dict[int, Tensor] = {}
        self.began = _number(at * 1)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorded = torch.is_grad_enabled()  # inside of a custom function it is not
        for tensor in leaves((args, kwargs or {})) if recorded else ():
            if tensor.requires_grad and id(tensor) not in self.made and _number(tensor) < self.began:
                self.outside[id(tensor)] = tensor
        out = func(*args, **(kwargs or {}))
        self.made.update((id(tensor), tensor) for tensor in leaves(out))
        return out


class Replacing(TorchFunctionMode):
    """While it is on, operations see a stand-in wherever they are given one of these tensors."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        self.known = {id(tensor): leaf for tensor, leaf in zip(tensors, self.leaves, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*self._replaced(args), **self._replaced(kwargs or {}))

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.known.get(id(value), value)
        if isinstance(value, dict):
            return {key: self._replaced(part) for key, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self._replaced(part) for part in value)
        return value


def seen_by(f: Map, z: Tensor) -> list[Tensor]:
    """The tensors besides z through which f(z) depends on something that needs a gradient."""
    at = z.detach().requires_grad_()
    with torch.enable_grad():
        watch = _Watch(at)
        with watch:
            out = f(at)
    if out.grad_fn is None:
        return []
    edges = {_edge(tensor): tensor for tensor in watch.outside.values()}
    own, found, known = _edge(at), {}, set()
    waiting: list[Any] = [_edge(out)]
    while waiting:
        edge = waiting.pop()
        node, _ = edge
        if node is None or edge == own or edge in known:
            continue
        known.add(edge)
        if edge in edges:
            found[edge] = edges[edge]
        elif hasattr(node, "variable") or node._sequence_nr() < watch.began:  # left the cell, and we did not see how
            raise KoopsimError(
                "The cell uses a tensor with a gradient in a way that cannot be followed (a custom autograd function "
                "or a compiled cell); the reversible gradient needs plain PyTorch operations there: change the cell, "
                "or use gradient='implicit'."
            )
        else:
            waiting.extend(node.next_functions)
    return list(found.values())


def _edge(tensor: Tensor) -> tuple[Any, int]:
    """Where a tensor's gradient goes: (node, number of its output)."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _number(tensor: Tensor) -> int:
    """When a tensor's past was recorded: nodes are numbered in the order they are made. A leaf was always there."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()  # pyright: ignore
