"""States of any shape: one tensor, or a tuple, list or dict of tensors of unlike shapes (several resolutions, say).

    z = (z_1, ..., z_P),   z_p (B, ...)    <->    one matrix (B, D),  D = sum of the sizes of a sample's parts

A solver sees the matrix, the cell sees the parts. A state that is one tensor is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError

State = Any  # a Tensor, or a tuple, list or dict of States
Form = Any  # the same structure, with the shape of a sample in the place of each tensor


def leaves(state: State) -> list[Tensor]:
    """The tensors of a state, in order; whatever else is in it is left out."""
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple | list) else ()
    return [leaf for part in parts for leaf in leaves(part)]


@dataclass(frozen=True)
class Packing:
    """How the parts of a state lie in one matrix."""

    form: Form
    sizes: tuple[int, ...]  # of a sample's parts, in order

    @property
    def single(self) -> bool:
        return isinstance(self.form, torch.Size)

    def pack(self, state: State) -> Tensor:
        """The parts side by side, (B, D); a single tensor as it is."""
        if self.single:
            return state
        return torch.cat(
            [part.reshape(len(part), n) for part, n in zip(_ordered(state, self.form), self.sizes, strict=True)], dim=1
        )

    def unpack(self, flat: Tensor) -> State:
        """The inverse of `pack`: views."""
        if self.single:
            return flat
        parts = iter(flat.split(self.sizes, dim=1))
        return _filled(self.form, lambda shape: next(parts).view(-1, *shape))

    def packed(self, f: Callable[[State], State]) -> Callable[[Tensor], Tensor]:
        """The map of states as a map of matrices."""
        return f if self.single else lambda flat: self.pack(self._checked(f(self.unpack(flat)), flat))

    def _checked(self, state: State, flat: Tensor) -> State:
        given, expected = form_of(state), self.form
        if isinstance(given, dict) and isinstance(expected, dict) and given.keys() == expected.keys():
            given = {key: given[key] for key in expected}  # in whatever order the cell returns them
        if given != expected:
            raise KoopsimError(
                f"The cell maps a state of {described(expected)} to {described(given)}; expected the same parts, each "
                "of its own shape: return f(z, *inputs) with the structure of z."
            )
        for part in leaves(state):
            if part.device != flat.device or part.shape[0] != flat.shape[0]:
                raise KoopsimError(
                    f"The cell returned a part with {part.shape[0]} samples on {part.device}; expected "
                    f"{flat.shape[0]} on {flat.device}, like its state z."
                )
        return state


def packing_of(z0: State) -> Packing:
    """How a state is packed, from its starting point."""
    parts = leaves(z0)
    form = form_of(z0)
    if not parts or "nothing" in described(form):
        raise KoopsimError(f"z0 is {described(form)}; expected a tensor, or a tuple or dict of tensors.")
    bad = [p for p in parts if p.dim() == 0 or not p.is_floating_point()]
    if bad:
        raise KoopsimError(f"z0 is {bad[0].dtype} of shape {tuple(bad[0].shape)}: expected floats, samples first.")
    kinds = {(p.dtype, p.device, p.shape[0]) for p in parts}
    if len(kinds) > 1:
        said = ", ".join(f"{B} samples of {dtype} on {device}" for dtype, device, B in sorted(kinds, key=str))
        raise KoopsimError(f"The parts of z0 have {said}; expected one precision, device and number of samples.")
    return Packing(form, tuple(p.shape[1:].numel() for p in parts))


def form_of(state: State) -> Form:
    """The structure of a state, with the shape of a sample in the place of each tensor."""
    if isinstance(state, Tensor):
        return state.shape[1:]
    if isinstance(state, dict):
        return {key: form_of(part) for key, part in state.items()}
    if isinstance(state, tuple | list):
        return tuple(form_of(part) for part in state)
    return None


def described(form: Form) -> str:
    """A form in words: "(4 x 8, 8)"."""
    if isinstance(form, torch.Size):
        return " x ".join(map(str, form)) or "scalars"
    if isinstance(form, dict):
        return "{" + ", ".join(f"{key}: {described(part)}" for key, part in form.items()) + "}"
    return "(" + ", ".join(map(described, form)) + ")" if isinstance(form, tuple) else "nothing that is a tensor"


def _filled(form: Form, make: Callable[[torch.Size], Tensor]) -> State:
    if isinstance(form, torch.Size):
        return make(form)
    if isinstance(form, dict):
        return {key: _filled(part, make) for key, part in form.items()}
    return tuple(_filled(part, make) for part in form)


def _ordered(state: State, form: Form) -> list[Tensor]:
    """The tensors of a state in the order of a form: a dict may come in another."""
    if isinstance(form, torch.Size):
        return [state]
    keys = form if isinstance(form, dict) else range(len(form))
    return [leaf for key in keys for leaf in _ordered(state[key], form[key])]
