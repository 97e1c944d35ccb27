"""The hidden iteration of a DEQ, whatever kind of DEQ it is.

    z_{l+1} = f(z_l, x),   z_0 = 0,   x held fixed                          paper, eq. (1)

Four things have one: a `DEQ` around any cell, the `TransformerDEQ` of the copy memory task, a `MonDEQ`, and a bare
cell f(z, x). All the bridge asks of them is here: the map z -> f(z, x) for given inputs, where it starts, and the
inputs as numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bridge.doubled import CellInFloat64
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, DEQInfo, MonDEQ, TransformerDEQ
from koopsim.implicit.iteration import Map

Cell = Callable[[Tensor, Any], Tensor]
Solvable = DEQ | TransformerDEQ | MonDEQ
Implicit = Solvable | Cell
Some = TypeVar("Some")
SomeModule = TypeVar("SomeModule", bound=nn.Module)
Progress = Callable[[int, int], None]  # (inputs done, inputs in all)
AT_REST = 16 * float(np.finfo(np.float64).eps)


def hidden_map(deq: Implicit, x: Tensor) -> tuple[Map, Tensor]:
    """(z -> f(z, x), z_0), samples along the first axis of both."""
    check_inputs(x)
    if isinstance(deq, TransformerDEQ):
        return hidden_map(deq.deq, injection(deq, x))
    cell = deq.cell if isinstance(deq, DEQ) else deq
    prepare = getattr(cell, "prepare", None)
    f: Map = prepare(x) if prepare is not None else lambda z: cell(z, x)
    initial: Callable[[Tensor], Tensor] | None = getattr(cell, "initial", None)
    z0 = initial(x) if initial is not None else _zeros(f, x)
    if not z0.is_floating_point():
        raise KoopsimError(f"The hidden state starts as {z0.dtype}; give the cell an initial(x) that returns floats.")
    return f, z0


def _zeros(f: Map, x: Tensor) -> Tensor:
    """Zeros like the inputs, or like what f makes of them where that is another shape."""
    z = torch.zeros_like(x)
    if not z.is_floating_point():
        return z
    try:
        after = f(z)
        z = z if after.shape == z.shape else torch.zeros_like(after)
        fits = f(z).shape == z.shape
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise KoopsimError(
            f"The cell fails at z_0 = 0 of the inputs' shape {tuple(x.shape)}: {' '.join(str(error).split())[:160]}. "
            "Give it the inputs it expects, and a method initial(x) if z_0 is not zeros like x."
        ) from error
    if not fits:
        raise KoopsimError(f"The cell takes a state of shape {tuple(z.shape)} to another; give it an initial(x).")
    return z


def injection(deq: TransformerDEQ, tokens: Tensor) -> Tensor:
    """What the cell of a `TransformerDEQ` sees of its tokens, (B, T) -> (B, T, 3 heads head_dim)."""
    embedded = F.embedding(tokens.long(), deq.embedding) * math.sqrt(deq.embedding.shape[1])
    return deq.injection(embedded).to(deq.embedding.dtype)


def starts_around(deq: Implicit, x: Tensor, starts: int, spread: float, seed: int) -> tuple[Map, Tensor]:
    """The map and its starting points, `starts` in a row for each input: z_0, then others around it at random."""
    f, z = hidden_map(deq, x.repeat_interleave(starts, dim=0))
    size = f(z).square().mean().sqrt().nan_to_num(1.0, 1.0, 1.0).clamp(1e-3, 1e3)
    noise = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(z)
    noise.view(len(x), starts, -1)[:, 0] = 0
    return f, z + spread * size * noise


def orbit_of(f: Map, z: Tensor, steps: int) -> NDArray[Any]:
    """z_0, f(z_0), ...: (samples, steps + 1, state size). Once all samples are at rest the last state is repeated."""
    states = np.empty((len(z), steps + 1, z[0].numel()))
    states[:, 0] = z.flatten(1).double().cpu().numpy()
    for step in range(1, steps + 1):
        before, z = z, f(z)
        states[:, step] = z.flatten(1).double().cpu().numpy()
        moved, size = ((t.flatten(1).double().norm(dim=1)) for t in (z - before, z))
        if bool((moved <= AT_REST * size).all()):  # the rest would be rounding, and a large cell takes seconds a step
            states[:, step + 1 :] = states[:, step : step + 1]
            break
    return states


def equilibrium_of(deq: Solvable, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
    """The fixed point by the model's own solver, from z_0 or from where it is told to start."""
    if isinstance(deq, TransformerDEQ | MonDEQ):
        return deq.solve(x, z0)
    if isinstance(deq, DEQ):
        return deq(x, z0=z0)
    raise KoopsimError(f"A {type(deq).__name__} has no solver; wrap the cell: koopsim.implicit.DEQ(cell).")


def seen_inputs(deq: Implicit, x: Tensor) -> Tensor:
    """The inputs as one vector of numbers a sample: tokens by what the cell sees of them, the rest as they are."""
    seen = injection(deq, x) if isinstance(deq, TransformerDEQ) else x
    return seen.detach().reshape(len(x), -1).double()


def in_float64(deq: Some) -> Some:
    """A copy in float64: the rounding of float32 would be noise to a spectrum. What a function uses is converted as it
    goes, for nobody knows what it closes over."""
    if not isinstance(deq, nn.Module):
        watched: Any = CellInFloat64(deq)
        return watched
    copied = module_in_float64(deq)
    if isinstance(copied, DEQ) and not isinstance(copied.cell, nn.Module):
        copied.cell = CellInFloat64(copied.cell)
    return copied


def module_in_float64(deq: SomeModule) -> SomeModule:
    """A copy whose own parameters and buffers are float64; what a function in it closes over is not its own."""
    return copy.deepcopy(deq).double()


def check_inputs(x: Tensor) -> None:
    if x.dim() < 1 or x.numel() == 0:
        raise KoopsimError(f"The inputs have shape {tuple(x.shape)}; expected at least one, samples first.")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise KoopsimError(f"{int((~x.isfinite()).sum())} of {x.numel()} input values are NaN or infinite.")
