"""A method that torch.compile leaves as it is.

A solve is a loop until convergence: a compiler gains little in it, takes half of its time for its pieces, and torch
2.11 mixes up the tables of a monDEQ's tiers on the way. What is round the solve is compiled all the same, and so is a
cell that was compiled by itself.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """The method itself; under torch.compile the method in a process without one."""
    known: dict[str, Callable[..., Any]] = {}

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            return method(*arguments, **named)
        if "plain" not in known:  # torch.compiler.disable imports the compiler: not before there is one
            known["plain"] = torch.compiler.disable(method)
        return known["plain"](*arguments, **named)

    return call  # pyright: ignore[reportReturnType]
