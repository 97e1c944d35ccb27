"""A cell that cuts its own gradient: f(z, x) under no_grad, or of detached weights.

    dL/dtheta = y^T df/dtheta          has no way from f to theta: autograd sees a constant

Left alone, it ends in a backward pass with autograd's "element 0 of tensors does not require grad", or trains nothing.
It is told at the forward pass, by what was recorded there anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from koopsim.errors import KoopsimError
from koopsim.implicit.iteration import Map
from koopsim.implicit.state import leaves


def leads_on(tape: Tensor, at: Tensor) -> bool:
    """Whether a gradient of tape = f(at) goes anywhere but to `at`: mostly the first few nodes know."""
    if torch.compiler.is_compiling() or tape.grad_fn is None:
        return tape.requires_grad
    waiting, known = [tape.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if isinstance(node, BackwardCFunction):  # of somebody's own: it may know leaves that are no inputs of it
            return True
        if hasattr(node, "variable"):
            if node.variable is not at:
                return True
        elif node not in known:
            known.add(node)
            waiting += [after for after, _ in node.next_functions if after is not None]
    return False


class _Wanting(TorchFunctionMode):
    """Counts the tensors that operations are given and that want a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") != "__get__":  # whose shape is asked for is not used
            self.seen.update((id(t), t) for t in leaves((args, kwargs or {})) if t.requires_grad)
        return func(*args, **(kwargs or {}))


def wanting(cell: Any, inputs: Any) -> str:
    """Who wants a gradient of a cell, in words; of a function's weights nobody knows (`used_by`)."""
    given = sum(t.requires_grad for t in leaves(inputs))
    own = sum(p.requires_grad for p in cell.parameters()) if isinstance(cell, nn.Module) else 0
    said = [f"{given} of its inputs"] * (given > 0) + [f"{own} of its parameters"] * (own > 0)
    return " and ".join(said)


def used_by(f: Map, z: Tensor) -> str:
    """The same of a function, by an evaluation: how many tensors it uses that want a gradient."""
    with _Wanting() as watch:
        f(z)
    return f"{len(watch.seen)} of the tensors it uses" if watch.seen else ""


def refuse_detached(who: str) -> None:
    if who:
        raise KoopsimError(
            f"The cell's answer carries no gradient, while {who} want one; expected f(z, *inputs) as autograd records "
            "it: take torch.no_grad(), .detach() or .data out of the cell. If no gradient is meant, call the DEQ under "
            "torch.no_grad() or in eval mode."
        )
