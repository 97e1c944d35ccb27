"""torchdeq's norms and dropouts of a cell, over `stabilise.py`: a forward is one map by itself, so nothing is reset.

    weight_norm      W = g D / || D ||, row by row                g learned, or target_norm
    spectral_norm    W = g D / sigma(D)                           g a learned number for each row, or target_norm
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit import stabilise
from koopsim.implicit.stabilise import LAYERS, denormalise, normalise
from koopsim.implicit.torchdeq.options import mapping_of

NORM_TYPES = {"weight_norm": "weight", "spectral_norm": "spectral"}
# torchdeq's keyword: the name the same has among parsed arguments, and its value unless told
SCALES: dict[str, tuple[str, Any]] = {
    "learn_scale": ("norm_no_scale", True),
    "target_norm": ("norm_target_norm", 1.0),
    "clip": ("norm_clip", False),
    "clip_value": ("norm_clip_value", 1.0),
    "n_power_iterations": ("sn_n_power_iters", 1),
}


def apply_norm(
    model: nn.Module,
    norm_type: str = "weight_norm",
    prefix_filter_out: str | list[str] | None = None,
    filter_out: str | list[str] | None = None,
    args: Any = None,
    **norm_kwargs: Any,
) -> None:
    """Normalise the weights of the linear and convolutional layers of a cell, in place.

    Layers whose name begins with one of `prefix_filter_out`, or has one of `filter_out` in it, are left. `args`, as
    `add_deq_args` makes them, count before the keywords learn_scale and target_norm, and before `norm_type`.
    """
    given = mapping_of(args)
    kind = given.get("norm_type", norm_type)
    if kind == "none":
        return
    if kind not in NORM_TYPES:
        raise KoopsimError(f"There is no norm {kind!r}.{did_you_mean(str(kind), [*NORM_TYPES, 'none'])}")
    learned, target = _scale(given, norm_kwargs)
    begins, has = _words(prefix_filter_out), _words(filter_out)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LAYERS)}
    skip = tuple(name for name in layers if name.startswith(begins) or any(word in name for word in has))
    taken = [m for n, m in layers.items() if n not in skip and not parametrize.is_parametrized(m)]
    normalise(model, NORM_TYPES[kind], skip)
    for layer in taken:
        if kind == "spectral_norm":
            parametrize.register_parametrization(layer, "weight", _Gain(layer.weight, target, learned))
        elif not learned:
            gain: nn.Parameter = layer.parametrizations.weight.original0  # pyright: ignore
            gain.requires_grad_(False).fill_(target)


def reset_norm(model: nn.Module) -> None:
    """Nothing: weights are computed once a forward by themselves."""


def remove_norm(model: nn.Module) -> None:
    """Plain weights again, with the values they have, in place."""
    denormalise(model)


def reset_dropout(model: nn.Module) -> None:
    """Let every dropout draw anew. A forward does so by itself; a cell that is called without one does not."""
    for module in model.modules():
        if isinstance(module, stabilise.VariationalDropout):
            module.reset()


def reset_deq(model: nn.Module) -> None:
    """`reset_norm` and `reset_dropout`, for scripts that have it: a forward needs neither."""
    reset_dropout(model)


class _Gain(nn.Module):
    """W -> g W, a number for each row."""

    def __init__(self, weight: Tensor, target: float, learned: bool) -> None:
        super().__init__()
        gain = torch.full_like(weight.detach()[(slice(None), *[slice(1)] * (weight.dim() - 1))], target)
        self.gain = nn.Parameter(gain, requires_grad=learned)

    def forward(self, weight: Tensor) -> Tensor:
        return self.gain * weight


class _Dropout(stabilise.VariationalDropout):
    """Dropout of single elements, with one mask for all steps of a solve."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__(dropout)


class _Along(stabilise.VariationalDropout):
    """Of (B, tokens of `rank` dimensions, features), or features first: whole features or whole tokens."""

    rank: int
    tokens: bool

    def __init__(self, dropout: float = 0.5, token_first: bool = True) -> None:
        places = tuple(range(1, self.rank + 1)) if token_first else tuple(range(2, self.rank + 2))
        features = (self.rank + 1,) if token_first else (1,)
        super().__init__(dropout, features if self.tokens else places)


VariationalDropout = _Dropout


class VariationalDropout1d(_Along):
    """Drops features of (B, L, D), at all places; `token_first=False`: of (B, D, L)."""

    rank, tokens = 1, False


class VariationalDropout2d(_Along):
    """Drops features of (B, H, W, D), at all places; `token_first=False`: of (B, D, H, W)."""

    rank, tokens = 2, False


class VariationalDropout3d(_Along):
    """Drops features of (B, T, H, W, D), at all places; `token_first=False`: of (B, D, T, H, W)."""

    rank, tokens = 3, False


class VariationalDropToken1d(_Along):
    """Drops places of (B, L, D), with all features; `token_first=False`: of (B, D, L)."""

    rank, tokens = 1, True


class VariationalDropToken2d(_Along):
    """Drops places of (B, H, W, D), with all features; `token_first=False`: of (B, D, H, W)."""

    rank, tokens = 2, True


class VariationalDropToken3d(_Along):
    """Drops places of (B, T, H, W, D), with all features; `token_first=False`: of (B, D, T, H, W)."""

    rank, tokens = 3, True


def _scale(given: Any, keywords: dict[str, Any]) -> tuple[bool, float]:
    """Whether the scale is learned, and what it is where it is not."""
    for name in keywords:
        if name not in SCALES:
            raise KoopsimError(f"apply_norm has no option {name!r}.{did_you_mean(name, SCALES)}")
    asked = {name: keywords.get(name, default) for name, (_, default) in SCALES.items()}
    for name, (parsed, _) in SCALES.items():
        if parsed in given:
            asked[name] = not given[parsed] if name == "learn_scale" else given[parsed]
    if asked["clip"] or asked["n_power_iterations"] != 1:
        raise KoopsimError(
            f"apply_norm was given clip={asked['clip']}, n_power_iterations={asked['n_power_iterations']}; expected "
            "False and 1: another norm is a parametrization of your own (torch.nn.utils.parametrize)."
        )
    return asked["learn_scale"], asked["target_norm"]


def _words(words: str | list[str] | None) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words or ())
