"""monDEQ's published checkpoints: the layout of Winston & Kolter's own code (locuslab/monotone_op_net), read as ours.

    theirs                                      ours
    connected    U, A, B                        the same, A and B as 1 x 1 convolutions
    single       U, A, B, g, h                  A scaled to norm exp(log_g): exp(2 log_g) = g. `scale="free"`, where
                                                the parameter is g, is for training: a file's names stay as they were
    multi        U, A0.i, B0.i, A_n0.i,         the same, but mirrored: a tier hears pixels 0, 2, 4, ... of the one
                 g.i, gn.i, h.i                 above, ours 1, 3, 5, ...; seen in a mirror they are each other
    Wout         on the last tier (pooled 4 x 4 where it is the only one), its border included: the same

So the multi-tier kernels and readout are turned by 180 degrees and the model turns each image; nothing else is changed.
The strength m and the size of the images are no part of a checkpoint and have to be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from koopsim.errors import KoopsimError

if TYPE_CHECKING:
    from koopsim.implicit.monotone import MonDEQ

STRENGTH = {"connected": 0.1, "single": 0.1, "multi": 1.0}  # m as published, where nobody says otherwise
BETWEEN = "A_n0"


def mondeq_from_published(
    state: Mapping[str, Tensor], image: tuple[int, int, int], monotonicity: float | None = None
) -> MonDEQ:
    """The monDEQ of a published state dict for images (channels, height, width), in the dict's precision."""
    from koopsim.implicit.monotone import MonDEQ

    theirs = _Layout(state)
    kind, U = theirs.kind, theirs["U.weight"]
    tiers = tuple(len(A) for A in theirs.kernels("A"))
    m = STRENGTH[kind] if monotonicity is None else monotonicity
    model = MonDEQ(image, tiers, kind == "connected", len(theirs.readout), m).to(U.dtype)
    model.mirrored = kind == "multi"
    ours = _translated(theirs, model)
    for name, tensor in model.state_dict().items():
        if name in ours and ours[name].shape != tensor.shape:
            raise KoopsimError(
                f"The checkpoint's {name} is {tuple(ours[name].shape)}; images of shape {tuple(image)} need "
                f"{tuple(tensor.shape)}. Give the size of the images it was trained on, without padding."
            )
    missing, unknown = model.load_state_dict(ours, strict=False)
    assert not unknown
    assert set(missing) <= {"alpha"}
    return model


class _Layout:
    """A published state dict by the names inside its linear module."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        plain = {key.removeprefix("module."): value.detach() for key, value in state.items()}
        self.state = {key.removeprefix("mon.").removeprefix("linear_module."): value for key, value in plain.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.state:
            raise KoopsimError(
                f"The checkpoint has no {name!r}; expected the state dict of a published monDEQ, with "
                f"mon.linear_module.* and Wout.*. It has: {', '.join(sorted(self.state)[:6])}, ..."
            )
        return self.state[name]

    @property
    def kind(self) -> str:
        if "A0.0.weight" in self.state:
            return "multi"
        return "single" if self["U.weight"].dim() == 4 else "connected"

    @property
    def readout(self) -> Tensor:
        return self["Wout.weight"]

    def kernels(self, name: str) -> list[Tensor]:
        """A, B (or what joins the tiers) of every tier, (out, in, k, k)."""
        if self.kind != "multi":
            weight = self[f"{name}.weight"]
            return [weight if weight.dim() == 4 else weight[:, :, None, None]]
        names = BETWEEN if name == BETWEEN else f"{name}0"
        count = sum(key.startswith(f"{names}.") for key in self.state)
        return [self[f"{names}.{i}.weight"] for i in range(count)]

    def scales(self, name: str) -> Tensor:
        """g, h or gn of every tier, (tiers,)."""
        if self.kind == "single":
            return self[name].reshape(1)
        count = sum(key.startswith(f"{name}.") for key in self.state)
        return torch.stack([self[f"{name}.{i}"].reshape(()) for i in range(count)])


def _translated(theirs: _Layout, model: MonDEQ) -> dict[str, Tensor]:
    turn = theirs.kind == "multi"
    found = {"U.weight": theirs["U.weight"], "U.bias": theirs["U.bias"], "readout.bias": theirs["Wout.bias"]}
    readout = theirs.readout
    if turn:
        grid = model.tiers[-1].grid
        if readout.shape[1] == model.readout.in_features:
            readout = readout.unflatten(1, (-1, grid.height, grid.width)).flip(2, 3).flatten(1)
    found["readout.weight"] = readout
    for name, ours in (("A", "A"), ("B", "B"), *([(BETWEEN, "K")] if turn else [])):
        for i, kernel in enumerate(theirs.kernels(name)):
            found[f"operator.{ours}.{i}"] = kernel
    if turn:
        found = {name: t.flip(2, 3).contiguous() if t.dim() == 4 else t for name, t in found.items()}
    if theirs.kind != "connected":
        for name, ours in (("g", "log_g"), *([("gn", "log_g_between")] if turn else [])):
            g = theirs.scales(name)
            if not bool((g > 0).all()):
                raise KoopsimError(
                    f"The checkpoint's {name} is {g.tolist()}; expected positive scales: with a negative one W is not "
                    "monotone, and the equilibrium need not exist."
                )
            found[f"operator.{ours}"] = g.log() / 2
        found["operator.h"] = theirs.scales("h")
    return found
