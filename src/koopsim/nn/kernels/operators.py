"""How a Triton kernel becomes an operator of PyTorch's: `torch.ops.koopsim.*`.

A compiler that looks into a kernel's wrapper decides for itself how the tensors lie in memory, after the wrapper has
asked whether they are contiguous: a kernel that was promised rows then reads beyond them. An operator is opaque. Its
wrapper runs when the tensors are there, and makes the layout that its kernel needs. What a compiler, an exporter, vmap
and autograd want to know of it are rules:

    fake       the results' shapes and kinds, always contiguous
    backward   the gradient, itself made of operators;    setup   what it keeps;    without one it is not differentiable
    vmap       a stack of calls as one call

One that writes into its arguments says so in its schema, `Tensor(a!)`, and refuses those that have gaps: a copy would
not do (`writer`).

A kernel is launched on the current device, so an operator makes that the device of its first tensor.

`torch.library.Library` and not `custom_op`, whose calls import torch's compiler: two seconds that a run has no use for.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError

LIBRARY = torch.library.Library("koopsim", "FRAGMENT")

Rule = Callable[..., Any]


def operator(
    schema: str,
    run: Rule,
    fake: Rule,
    backward: Rule | None = None,
    setup: Rule | None = None,
    vmap: Rule | None = None,
) -> Callable[..., Any]:
    """Register `run` under a schema such as "waves(Tensor p) -> Tensor" and give back the operator."""
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    # On a CPU too, where Triton's interpreter takes the kernels.
    LIBRARY.impl(name, _where_it_lies(run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"koopsim::{name}", fake, lib=LIBRARY)
    torch.library.register_autograd(f"koopsim::{name}", backward or _twice, setup_context=setup, lib=LIBRARY)
    if vmap is not None:
        torch.library.register_vmap(f"koopsim::{name}", vmap, lib=LIBRARY)
    return getattr(torch.ops.koopsim, name).default


def writer(schema: str, run: Rule) -> Callable[..., Any]:
    """Register `run`, which gives nothing back and writes into the arguments marked so: "move(Tensor(a!) t) -> ()"."""
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, _where_it_lies(run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"koopsim::{name}", lambda *arguments: None, lib=LIBRARY)
    return getattr(torch.ops.koopsim, name).default


def _where_it_lies(run: Rule) -> Rule:
    """`run` on the device of its first tensor, be it in a list."""

    @functools.wraps(run)
    def call(*arguments: Any) -> Any:
        first = arguments[0]
        first = first[0] if isinstance(first, list | tuple) else first
        if not first.is_cuda:
            return run(*arguments)
        with torch.cuda.device_of(first):
            return run(*arguments)

    return call


def without_gaps(name: str, *written: Tensor) -> None:
    """Refuse tensors that a kernel cannot write into as they lie."""
    for tensor in written:
        if not tensor.is_contiguous():
            raise KoopsimError(
                f"koopsim's kernel {name} was to write into a tensor of shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}; expected a contiguous one."
            )


def _twice(ctx: Any, *gradients: Tensor | None) -> Any:
    raise KoopsimError(
        "A kernel's gradient was differentiated again, which it cannot be; take second derivatives on a CPU, or with "
        "torch.func, where the readable maps stand in."
    )


def fronts(count: int, dims: Any, tensors: Any) -> list[Tensor]:
    """A stack's tensors with the stack first: models side by side, (count, M, ...) -> (count M, ...)."""
    pairs = zip(tensors, dims, strict=True)
    return [(t.expand(count, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1) for t, d in pairs]
