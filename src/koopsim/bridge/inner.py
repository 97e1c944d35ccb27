"""The cell inside a model with an encoder and a head, taken as it is.

    model(x) = head(z_L),   z_{l+1} = f(z_l, u),   u = encoder(x)        f = model.block: `InnerCell(model, "block")`

The model is run once on the inputs. What it first calls its block with is remembered: the first argument is z_0, the
others are what is held fixed. From then on f is the block alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.errors import KoopsimError, did_you_mean


class _Reached(Exception):  # a way out of the model's forward, no error
    """The block is about to be called."""


class InnerCell(nn.Module):
    """f(z, x) = model.NAME(z, what the model gives it beside z), from where the model itself starts."""

    def __init__(self, model: nn.Module, name: str):
        super().__init__()
        known = dict(model.named_modules())
        if not name or name not in known:
            raise KoopsimError(f"The model has no part {name!r}." + did_you_mean(name, [n for n in known if n]))
        self.model, self.name = model, name

    def _first_call(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
        """(z_0, the other arguments, those by name) of the block, when the model is given x."""
        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def look(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            found.append((arguments, named))
            raise _Reached

        hook = self.model.get_submodule(self.name).register_forward_pre_hook(look, with_kwargs=True)
        try:
            self.model.eval()(x)
        except _Reached:
            pass
        finally:
            hook.remove()
        if not found:
            raise KoopsimError(f"The model never calls its {self.name!r}; name the part that is iterated.")
        arguments, named = found[0]
        if not arguments or not isinstance(arguments[0], Tensor):
            raise KoopsimError(f"The model calls its {self.name!r} without a state in front; expected f(z, x).")
        return arguments[0].detach(), arguments[1:], named

    def initial(self, x: Tensor) -> Tensor:
        return self._first_call(x)[0]

    def prepare(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        z0, others, named = self._first_call(x)
        block = self.model.get_submodule(self.name)

        def f(z: Tensor) -> Tensor:
            after = block(z, *others, **named)
            if not isinstance(after, Tensor) or after.shape != z0.shape:
                what = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
                raise KoopsimError(f"{self.name!r} takes a state {tuple(z0.shape)} to {what}; expected the same shape.")
            return after

        return f

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.prepare(x)(z)


def in_module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise KoopsimError(f"cell= names a part of a torch module; got a {type(model).__name__}.")
    return model


def require_cell(deq: Any) -> None:
    """A module that takes x alone is a whole model: one sentence says what to name."""
    import inspect

    if not isinstance(deq, nn.Module) or isinstance(deq, InnerCell):
        return
    try:
        inspect.signature(deq.forward).bind(torch.empty(0), torch.empty(0))
    except TypeError:
        parts = ", ".join(name for name, _ in deq.named_children())
        raise KoopsimError(
            f"{type(deq).__name__} is no cell f(z, x): its forward does not take two. Of a whole model say which part "
            f"is iterated: observe(model, x, cell=NAME), one of {parts or 'none'}."
        ) from None
