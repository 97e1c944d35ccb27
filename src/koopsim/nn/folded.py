"""A network with its neighbouring linear maps multiplied out first.

    nu_1 U V (mu_3 a + c)  =  (nu_1 U V mu_3) a + nu_1 U V c + ...

Between the last ReLU of the lift (or psi) and the first of the readout a SIM is linear, and so it is from the last ReLU
of the readout to the output. A picture has 65,536 pixels and the matrices a few hundred rows: multiplying the matrices
with each other first takes a third of the work, on the same parameters, with the same gradients. Products of
weights stay in float32; only products with pixels may run in bfloat16 (`dtype`), and never those with coordinates nor
those that end in phases: a coordinate of 1/512 or a phase of 100 rounded to three digits is noise.
"""

import math
import os
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.lift import MLP
from koopsim.nn.linear import MANY, SLICES, Linear, sliced_linear
from koopsim.nn.products import affine, times
from koopsim.nn.sim import SIM
from koopsim.nn.tancik import FourierNetwork
from koopsim.nn.transforms import usable

ALIGNED = 8  # an output of 3 columns has no fast product in bfloat16; one of 8 has


def fixed_features(model: nn.Module, x: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """psi(x) where nothing learnt comes before it, so that it can be computed once for all steps; else None."""
    return cast(nn.Module, model.psi)(x).to(dtype) if has_fixed_features(model) else None


def has_fixed_features(model: nn.Module) -> bool:
    """Whether nothing learnt comes before psi."""
    plain = isinstance(model, SIM) and isinstance(model.mu, nn.Identity) and foldable(model)
    return isinstance(model, FourierNetwork) or plain


def foldable(model: SIM) -> bool:
    """Whether nothing but linear maps, ReLUs and waves is in it: no lift and no psi of somebody's own."""
    return isinstance(model.mu, nn.Identity | MLP) and type(model.psi) in (nn.Identity, RandomFourierFeatures)


Layers = list[tuple[Tensor, Tensor]]  # (W, b) each, a ReLU behind all but the last


def folded(model: nn.Module, x: Tensor, given: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """model(x), (..., inputs) -> (..., outputs), in fewer products. `given`: x is already `fixed_features`."""
    if not isinstance(model, FourierNetwork) and not (isinstance(model, SIM) and foldable(model)):
        return model(x)
    phi, (*hidden, (C, c)) = _multiplied(model, x, given, dtype)
    for W, b in hidden:
        phi = relu_linear(phi, W, b, dtype)
    y = _output(phi, C, c, dtype)
    return y.sigmoid() if isinstance(model, FourierNetwork) else y


def one_pass(model: nn.Module, phi: Tensor, t: Tensor, dtype: torch.dtype | None) -> bool:
    """Whether `squared_error` takes fixed features of very many pixels on CUDA, in a short precision.

    Only where KOOPSIM_PIXELS=1 asks for it: these kernels have not run on a GPU yet, and may be slower, or wrong.
    """
    if os.environ.get("KOOPSIM_PIXELS") != "1" or dtype is None or phi.dtype != dtype or not fuses(phi):
        return False
    from koopsim.nn.kernels.pixels import divides

    layers = model.nu if isinstance(model, SIM) else cast(FourierNetwork, model).layers
    *widths, _ = [layer.weight.shape[-2] for layer in layers if isinstance(layer, nn.Linear)]
    return divides(phi, widths, t.shape[-1])


def squared_error(model: nn.Module, phi: Tensor, t: Tensor) -> Tensor:
    """mean (y - t)^2 of `fixed_features`, the gradient computed with it (kernels/pixels.py); t: (pixels, outputs)."""
    from koopsim.nn.kernels.pixels import pixel_loss

    return pixel_loss(*_multiplied(model, phi, True, phi.dtype), t, isinstance(model, FourierNetwork))


def _multiplied(model: nn.Module, x: Tensor, given: bool, dtype: torch.dtype | None) -> tuple[Tensor, Layers]:
    """What the first layer behind the features sees, and the layers from there on, neighbours multiplied."""
    if isinstance(model, FourierNetwork):
        layers = [cast(Linear, m) for m in model.layers if isinstance(m, nn.Linear)]
        return x if given else model.psi(x), [(layer.weight, layer.bias) for layer in layers]
    model = cast(SIM, model)
    first, second, third = (cast(Linear, model.nu[i]) for i in (0, 2, 4))
    U, V = model.limit.factors()
    W, b = times(times(first.weight, U), V), first.bias
    if given or isinstance(model.mu, nn.Identity):
        phi = x if given else model.psi(x)
    else:
        two_tier = isinstance(model.psi, RandomFourierFeatures)
        *hidden, last = [cast(Linear, m) for m in cast(MLP, model.mu) if isinstance(m, nn.Linear)]
        for i, layer in enumerate(hidden):
            x = relu_linear(x, layer.weight, layer.bias, None if two_tier or i == 0 else dtype)
        if two_tier:
            F_ = cast(RandomFourierFeatures, model.psi).frequencies
            phase = rows_linear(x, F_ @ last.weight, F_ @ last.bias)
            phi = waves(phase, dtype or phase.dtype)
            W = W / math.sqrt(F_.shape[0])  # psi's own factor, where it costs least
        else:
            phi, W, b = x, W @ last.weight, b + W @ last.bias
    end = model.h.weight @ third.weight, model.h.weight @ third.bias + model.h.bias
    return phi, [(W, b), (second.weight, second.bias), end]


def rows_linear(x: Tensor, W: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """x W^T + b for very many rows, in `dtype`; on CUDA over slices, so that the gradient of W fills the chip."""
    dtype = dtype or W.dtype
    x, W, b = x.to(dtype), W.to(dtype), b.to(dtype)
    rows = x.numel() // x.shape[-1]
    if x.is_cuda and rows >= MANY and rows % SLICES == 0:
        return sliced_linear(x, W) + b  # not baddbmm: stacked, it becomes three passes over the result
    return affine(x, W, b)


def relu_linear(x: Tensor, W: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """relu(x W^T + b) for very many rows, in `dtype`; on CUDA bias and ReLU are one pass over them."""
    if not fuses(x):
        return F.relu(rows_linear(x, W, b, dtype))
    from koopsim.nn.kernels.bias_relu import bias_relu

    dtype = dtype or W.dtype
    return bias_relu(sliced_linear(x.to(dtype), W.to(dtype)), b)


def waves(phase: Tensor, dtype: torch.dtype) -> Tensor:
    """(sin, cos) of all phases, (..., F) -> (..., 2 F), in `dtype`; on CUDA in one pass."""
    if not fuses(phase):
        return torch.cat([phase.sin().to(dtype), phase.cos().to(dtype)], dim=-1)
    from koopsim.nn.kernels import waves as kernels

    return kernels.waves(phase, dtype)


def fuses(x: Tensor) -> bool:
    """Whether there are rows enough on CUDA for the sliced product and its kernels."""
    rows = x.numel() // x.shape[-1]
    return rows >= MANY and rows % SLICES == 0 and x.dtype != torch.float64 and usable(x)


def _output(z: Tensor, W: Tensor, b: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The last map, its result in the weights' own precision; padded to `ALIGNED` columns in a short one."""
    if dtype is None or dtype == W.dtype:
        return rows_linear(z, W, b)
    missing = -W.shape[0] % ALIGNED
    y = rows_linear(z, F.pad(W, (0, 0, 0, missing)), F.pad(b, (0, missing)), dtype)
    return y[..., : W.shape[0]].to(W.dtype)
