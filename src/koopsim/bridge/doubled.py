"""A cell in float64 whatever its tensors are: for functions, whose weights cannot be found and copied beforehand.

    f(z, x) in float32,  z and x in float64   ->   f(z, x) in float64

A module is copied and converted; of a function, `lambda z, x: torch.tanh(linear(z) + x)`, nobody knows what it closes
over. So each operation it calls is watched, and wherever it is given a tensor of float32, or told to make one, it gets
float64. A tensor has one copy throughout an evaluation, which what is written to it changes; the tensor itself stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from koopsim.implicit.iteration import Map


class InFloat64(TorchFunctionMode):
    """While it is on, operations see float64 where they are given float32."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, tuple[Tensor, Tensor]] = {}  # the tensors too: an id is its owner's while that lives
        self.used = False  # whether there was any float32

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func, self.used = Tensor.double, True
        return func(*self.doubled(args), **self.doubled(kwargs or {}))

    def doubled(self, value: Any) -> Any:
        """Tensors of float32, the word itself, and what has them inside, in float64."""
        if isinstance(value, dict):
            return {key: self.doubled(part) for key, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self.doubled(part) for part in value)
        if value is not torch.float32 and not (isinstance(value, Tensor) and value.dtype == torch.float32):
            return value
        self.used = True
        return torch.float64 if value is torch.float32 else self._copy(value)

    def _copy(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self.copies:
            self.copies[id(tensor)] = tensor, tensor.double()  # with its past, should it depend on z
        return self.copies[id(tensor)][1]


class CellInFloat64(nn.Module):
    """A cell of a DEQ, evaluated so."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell
        self.converted = False  # whether it ever had any float32
        for name in ("initial", "prepare"):  # a DEQ asks whether there is one
            if hasattr(cell, name):
                setattr(self, name, getattr(self, f"_{name}"))

    def forward(self, z: Tensor, *inputs: Any) -> Tensor:
        return self._under(InFloat64(), self.cell, z, *inputs)

    def _initial(self, *inputs: Any) -> Tensor:
        return self._under(InFloat64(), self.cell.initial, *inputs)

    def _prepare(self, *inputs: Any) -> Map:
        mode = InFloat64()  # the same afterwards: it has the copies of what was prepared
        prepared = self._under(mode, self.cell.prepare, *inputs)
        return lambda z: self._under(mode, prepared, z)

    def _under(self, mode: InFloat64, function: Any, *arguments: Any) -> Any:
        with mode:
            out = function(*arguments)
        out = mode.doubled(out)
        self.converted |= mode.used
        return out
