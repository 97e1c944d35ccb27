"""Which models are the map that `fuse` reads off their modules.

A subclass may compute something else, a hook wants to be called, and a readout with another activation is another map:
a fused model would know nothing of it. Such a model is used as it is. A lift or a psi of somebody's own is no obstacle,
for it is copied whole.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

from torch import nn

from koopsim.nn.lift import MLP, TCN, VGG, CausalConv, TemporalBlock
from koopsim.nn.limit import LimitOperator
from koopsim.nn.linear import Linear
from koopsim.nn.readout import Output, StateReadout
from koopsim.nn.sim import SIM

Kinds = list[type[nn.Module]]

STAGE: Kinds = [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU]
BLOCK: Kinds = [TemporalBlock, CausalConv, CausalConv]


def _levels(mu: TCN) -> Kinds:
    first = nn.Identity if mu.input_channels == mu.channels else Linear
    return [kind for level in range(len(mu.blocks)) for kind in (*BLOCK, nn.Identity if level else first)]


INSIDE: dict[type[nn.Module], Callable[[Any], Kinds]] = {  # the parts of a SIM, and what is in each, in its order
    nn.Identity: lambda mu: [],
    MLP: lambda mu: [Linear, nn.ReLU] * (len(mu) // 2) + [Linear],
    VGG: lambda mu: [nn.Sequential, *STAGE, *STAGE, Linear],
    TCN: lambda mu: [nn.Sequential, *_levels(mu), Linear],
    LimitOperator: lambda limit: [],
    StateReadout: lambda nu: [Linear, nn.ReLU] * 2 + [Linear],
    Output: lambda h: [],
}


def as_built(part: nn.Module) -> bool:
    """Whether a part of a SIM is this house's, with nothing in it replaced."""
    inside = INSIDE.get(type(part))
    return inside is not None and [type(m) for m in part.modules()][1:] == inside(part)


def fusable(model: nn.Module) -> TypeGuard[SIM]:
    """Whether a model is a SIM whose map can be read off its modules."""
    return unfusable(model) is None


def unfusable(model: nn.Module) -> str | None:
    """Why a model is not `fusable`; None of one that is."""
    if type(model) is not SIM:
        return f"it is {type(model).__name__}, which may compute something else than SIM"
    other = next((name for name in ("limit", "nu", "h") if not as_built(getattr(model, name))), None)
    if other is not None:
        return f"its {other} is not the one that SIM builds"
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    return "it has a forward hook, which nobody would call" if hooked else None
