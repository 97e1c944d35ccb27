"""Cells that are easier to solve: normalised weights, and dropout that holds still.

    weight      W = gain D / ||D||, row by row (Salimans & Kingma, 2016)
    spectral    W = D / sigma(D), sigma the largest singular value by power iteration (Miyato et al., 2018)

Both are PyTorch's parametrizations, so they are in the state dict as plain tensors and survive safetensors. A `DEQ`
computes each weight once a forward, and the solve and its gradient use the same. A dropout inside a fixed-point
iteration must draw one mask a forward, not one a step (variational dropout: Gal & Ghahramani, 2016), else there is no
fixed point; a `DEQ` sees to that too. Of a cell that is a function it does so for the modules that the function names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from koopsim.errors import KoopsimError, did_you_mean

Module = TypeVar("Module", bound=nn.Module)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = {"weight": parametrizations.weight_norm, "spectral": parametrizations.spectral_norm}


def normalise(cell: Module, norm: str = "weight", skip: tuple[str, ...] = ()) -> Module:
    """Normalise the weights of all linear and convolutional layers of a cell, in place; `skip` names layers to leave.

    `denormalise` makes the weights plain again, with the values they have.
    """
    if norm not in NORMS:
        raise KoopsimError(f"There is no normalisation {norm!r}.{did_you_mean(norm, NORMS)}")
    layers = {name: module for name, module in cell.named_modules() if isinstance(module, LAYERS)}
    unknown = set(skip) - set(layers)
    if unknown:
        raise KoopsimError(f"There is no layer {sorted(unknown)[0]!r} to skip.{did_you_mean(min(unknown), layers)}")
    found = [module for name, module in layers.items() if name not in skip and not parametrize.is_parametrized(module)]
    if not found:
        raise KoopsimError("The cell has no linear or convolutional layer left to normalise.")
    for module in found:
        NORMS[norm](module)
    return cell


def denormalise(cell: Module) -> Module:
    """The same cell with plain weights, in place."""
    for module in cell.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    return cell


class VariationalDropout(nn.Module):
    """Dropout with one mask for all steps of a solve.

    `shared` names dimensions along which one draw holds: (1,) of (B, T, D) drops the same features at all times, (2, 3)
    of (B, C, H, W) whole channels. A `DEQ` calls `reset()` of all that its cell contains before each solve.
    """

    def __init__(self, p: float = 0.5, shared: tuple[int, ...] = ()) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise KoopsimError(f"p={p}: expected a share in [0, 1) to drop.")
        self.p, self.shared = p, shared
        self.mask: Tensor | None = None

    def extra_repr(self) -> str:
        return f"p={self.p}, shared={self.shared}"

    def reset(self) -> None:
        """Draw anew at the next use."""
        self.mask = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = [1 if i in self.shared else n for i, n in enumerate(x.shape)]
        if self.mask is None or list(self.mask.shape) != shape:
            with torch.no_grad():
                self.mask = torch.rand(shape, device=x.device).ge_(self.p).to(x.dtype).div_(1 - self.p)
        return x * self.mask.to(x.dtype)


class WeightsOnce(AbstractContextManager[None]):
    """Parametrised weights are computed once, with their history, and used by the solve and by the tape alike."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules, self.cached = modules, parametrize.cached()

    def __enter__(self) -> None:
        self.cached.__enter__()
        for module in self.modules:
            for name in module.parametrizations:  # pyright: ignore
                getattr(module, name)

    def __exit__(self, *error: Any) -> None:
        self.cached.__exit__(*error)


def held_still(cell: Any) -> AbstractContextManager[None]:
    """While it holds, the cell is one map: a dropout draws once, a normalised weight is computed once."""
    normalised = []
    for module in modules_in(cell):
        if isinstance(module, VariationalDropout):
            module.reset()
        if parametrize.is_parametrized(module):
            normalised.append(module)
    return WeightsOnce(normalised) if normalised else nullcontext()


def modules_in(cell: Any) -> Iterator[nn.Module]:
    """A module and all in it; of a function, a method or a partial those of the modules that its code names."""
    if isinstance(cell, nn.Module):
        return cell.modules()
    found: dict[int, Any] = {id(cell): cell}
    waiting = [cell]
    while waiting:
        for part in _named(waiting.pop()):
            if id(part) not in found and (isinstance(part, nn.Module) or _written_by_its_user(part)):
                found[id(part)] = part
                waiting.append(part)
    inside = {id(m): m for part in found.values() if isinstance(part, nn.Module) for m in part.modules()}
    return iter(inside.values())


def _named(part: Any) -> list[Any]:
    if isinstance(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    if inspect.ismethod(part):
        return [part.__self__, part.__func__]
    if not inspect.isfunction(part):
        return []
    inner = [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
    return [*inner, *(part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that has no value yet
        return False


def _written_by_its_user(part: Any) -> bool:
    return isinstance(part, partial) or (
        (inspect.isfunction(part) or inspect.ismethod(part)) and not str(part.__module__).startswith("torch.")
    )
