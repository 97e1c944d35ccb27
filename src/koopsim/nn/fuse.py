"""A SIM for inference: every product that does not depend on the input is done beforehand.

    nu_1 U V (L a + c) + d   =  (nu_1 U V L) a + (nu_1 U V c + d)        mu's last layer, the limit, nu's first layer
    h (nu_3 a + c) + d       =  (h nu_3) a + (h c + d)                   nu's last layer, the output
    gamma (w * x + b - m) / s + beta  =  (gamma w / s) * x + ...         BatchNorm in the convolution before it
    g v / ||v||                                                          weight norm, once

What is left is convolutions, ReLUs, poolings and a few small products: the same function up to rounding, without a
limit operator to be seen. Products of weights are taken in float64. Where psi follows the lift, mu's last layer is left
alone: a phase of hundreds of radians would feel a rounding of the weights in its third digit after the point. All this
is read off the modules: see `fusable.py`.
"""

import copy
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.errors import KoopsimError
from koopsim.nn.bands import Bands
from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.fusable import as_built, unfusable
from koopsim.nn.lift import MLP, TCN, VGG, CausalConv, TemporalBlock, residual_of
from koopsim.nn.padding import countable, images_of_depth
from koopsim.nn.sim import SIM
from koopsim.nn.transforms import on_cpu, usable, vmapped


def fuse(sim: SIM, channel_multiple: int = 1) -> nn.Sequential:
    """The map of `sim` in eval mode, as plain layers that torch.export and ONNX know.

    channel_multiple   pad the channels of a VGG with zeros to a multiple of this: tensor cores take them in eights
    """
    why = unfusable(sim)
    if why is not None:
        raise KoopsimError(f"This model cannot be fused: {why}. Use it as it is: model.eval().")
    layers, last = _lift(sim.mu, channel_multiple)
    U, V = (factor.detach().double() for factor in sim.limit.factors())
    first, second, third = (cast(nn.Linear, sim.nu[i]) for i in (0, 2, 4))
    W, b = first.weight.double() @ U @ V, first.bias.double()
    if isinstance(sim.psi, nn.Identity):
        if last is not None:
            W, b = W @ last.weight.double(), b + W @ last.bias.double()
    else:
        layers += [] if last is None else [last]
        if type(sim.psi) is RandomFourierFeatures:
            layers.append(Waves(sim.psi.frequencies))
            W = W / sim.psi.frequencies.shape[0] ** 0.5  # psi's own factor
        else:
            layers.append(copy.deepcopy(sim.psi))
    h = sim.h.weight.double()
    output = _linear(h @ third.weight.double(), h @ third.bias.double() + sim.h.bias.double(), sim.h.weight)
    layers += [_linear(W, b, first.weight), nn.ReLU(), _plain(second), nn.ReLU(), output]
    return nn.Sequential(*layers).eval().requires_grad_(False)


class Waves(nn.Module):
    """(..., N) -> (..., M): (sin(w_j . x), cos(w_j . x)), psi before its division by sqrt(M/2)."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor):
        super().__init__()
        self.register_buffer("frequencies", frequencies.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # see `fourier`
            phase = x.to(self.frequencies.dtype) @ self.frequencies.mT
            return torch.cat([phase.sin(), phase.cos()], dim=-1)


class FusedVGG(nn.Module):
    """(..., C, H, W) -> (..., features): convolutions, ReLUs and poolings, channels last in memory.

    That layout is what a GPU's tensor cores want, and on a CPU it takes half the time. On CUDA bias, ReLU and pooling
    are one pass over a convolution's result.
    """

    def __init__(self, lift: VGG, multiple: int):
        super().__init__()
        layers: list[nn.Module] = []
        self.depth, self.channels = (-(-c // multiple) * multiple for c in (lift.image[0], lift.channels))
        self.missing = self.depth - lift.image[0]
        inputs, self.even = self.depth, all(size % 4 == 0 for size in lift.image[1:])
        for layer in lift.stages:
            if isinstance(layer, nn.BatchNorm2d):
                layers[-1] = _normed(cast(nn.Conv2d, layers[-1]), layer, inputs, self.channels)
                inputs = self.channels
            else:
                layers.append(layer if isinstance(layer, nn.Conv2d) else copy.deepcopy(layer))
        self.stages = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[:-3]
        images = x.reshape(-1, *x.shape[-3:]) if len(batch) != 1 else x
        features = self._in_passes(images) if self._has_kernels(images) else self._plainly(images)
        features = features.flatten(1)
        return features.reshape(*batch, -1) if len(batch) != 1 else features

    def _has_kernels(self, x: Tensor) -> bool:
        wanted = torch.is_grad_enabled() and x.requires_grad
        plain = x.dtype == torch.float32 and self.even and not wanted and not vmapped(x)
        return plain and usable(x) and countable(x, self.channels)  # an exporter has no number of rows

    def _plainly(self, x: Tensor) -> Tensor:
        x = x.to(cast(Tensor, self.stages[0].weight).dtype)
        x = F.pad(x, (0, 0, 0, 0, 0, self.missing)) if self.missing else x
        return self.stages(x.contiguous(memory_format=torch.channels_last))

    def _in_passes(self, x: Tensor) -> Tensor:
        from koopsim.nn.kernels.norm import bias_relu_pool

        short = torch.is_autocast_enabled(x.device.type)
        x = images_of_depth(x, self.depth, torch.get_autocast_dtype(x.device.type) if short else x.dtype)
        convs = [layer for layer in self.stages if isinstance(layer, nn.Conv2d)]
        for i, conv in enumerate(convs):
            y = F.conv2d(x, conv.weight, padding=1).permute(0, 2, 3, 1)
            x = bias_relu_pool(y, cast(Tensor, conv.bias), i % 2 == 1).permute(0, 3, 1, 2)
        return x


class FusedTCN(nn.Module):
    """(..., T, C_in) -> (..., T, C), or (..., T) with one channel: dilated causal convolutions of fixed weights.

    Time is the last axis inside, as a convolution has it. On CUDA the kernels of the TCN take over, with W and b, and
    on a CPU those of `bands.py`, made for sequences of one length at a time.
    """

    W: Tensor  # (L, C, K, C): the oldest tap first
    b: Tensor  # (L, C)

    def __init__(self, lift: TCN):
        super().__init__()
        blocks = [cast(TemporalBlock, block) for block in lift.blocks]
        self.input_channels, self.channels = lift.input_channels, lift.channels
        convs = [conv for block in blocks for conv in (block.first, block.second)]
        self.convs = nn.ModuleList(_causal(conv) for conv in convs)
        self.residual = _plain(blocks[0].residual) if isinstance(blocks[0].residual, nn.Linear) else nn.Identity()
        W, b = self.gathered()
        self.register_buffer("W", W, persistent=False)
        self.register_buffer("b", b, persistent=False)
        self.register_load_state_dict_post_hook(_gathered_anew)
        self.bands: Bands | None = None  # of the last length

    def gathered(self) -> tuple[Tensor, Tensor]:
        """W and b, as the convolutions have them."""
        convs = [cast(nn.Conv1d, conv) for conv in self.convs]
        weights = [conv.weight.detach().mT for conv in convs]
        small = self.input_channels <= self.channels
        W = torch.stack([F.pad(w, (0, self.channels - w.shape[-1])) for w in weights]) if small else weights[0]
        return W.contiguous(), torch.stack([cast(Tensor, conv.bias).detach() for conv in convs])

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1) if self.input_channels == 1 else x
        x = x.to(self.b.dtype)
        batch = x.shape[:-2]
        rows = x.reshape(-1, *x.shape[-2:]) if len(batch) != 1 else x
        quick = self._stacked if self._has_kernels(rows) else self._stretched if self._has_bands(rows) else None
        features = (quick or self._convolved)(rows)
        return features.reshape(*batch, *features.shape[-2:]) if len(batch) != 1 else features

    def _convolved(self, x: Tensor) -> Tensor:
        skip, h = self.residual(x).mT, x.mT
        for first, second in zip(self.convs[::2], self.convs[1::2], strict=True):
            h = skip = F.relu(skip + F.relu(second(F.relu(first(h)))))
        return h.mT

    def _has_bands(self, x: Tensor) -> bool:
        plain = x.numel() > 0 and on_cpu(x) and not torch.is_autocast_enabled("cpu")
        return plain and self.input_channels <= self.channels

    def _stretched(self, x: Tensor) -> Tensor:
        bands = self.bands
        if bands is None or bands.W is not self.W or x.shape[1] != bands.T:
            bands = self.bands = Bands(self.W, self.b, self.input_channels, x.shape[1])
        return bands(x, self.residual)

    def _has_kernels(self, x: Tensor) -> bool:
        small = self.input_channels <= self.channels <= 64
        return small and x.dtype == torch.float32 and usable(x)

    def _stacked(self, x: Tensor) -> Tensor:
        from koopsim.nn.kernels.tcn import temporal_stack

        one = (t.unsqueeze(0) for t in (x, *residual_of(self.residual, x), self.W, self.b))
        return temporal_stack(*one)[0].squeeze(0)


def _gathered_anew(fused: FusedTCN, keys: object) -> None:
    """After load_state_dict."""
    fused.W, fused.b = fused.gathered()


def _lift(mu: nn.Module, multiple: int) -> tuple[list[nn.Module], nn.Linear | None]:
    """A lift as plain layers, and its last linear layer apart where it has one."""
    if not as_built(mu):
        return [copy.deepcopy(mu)], None  # somebody's own: taken as it is
    match mu:
        case nn.Identity():
            return [], None
        case VGG():
            fused = FusedVGG(mu, multiple)
            height, width = mu.image[1] // 4, mu.image[2] // 4
            weight = mu.linear.weight.double().unflatten(1, (mu.channels, height * width))
            weight = F.pad(weight, (0, 0, 0, fused.channels - mu.channels)).flatten(1)
            return [fused], _linear(weight, mu.linear.bias.double(), mu.linear.weight)
        case TCN():
            return [FusedTCN(mu)], _plain(mu.linear)
        case _:
            assert isinstance(mu, MLP)
            layers = [_plain(layer) if isinstance(layer, nn.Linear) else copy.deepcopy(layer) for layer in mu]
            return layers[:-1], cast(nn.Linear, layers[-1])


Layer = TypeVar("Layer", nn.Linear, nn.Conv1d, nn.Conv2d)


def _filled(layer: Layer, W: Tensor, b: Tensor, like: Tensor) -> Layer:
    """A layer made on the meta device, so that no random number is drawn, given its weights in the kind of `like`."""
    layer.weight = nn.Parameter(W.detach().to(like.dtype).contiguous(), requires_grad=False)
    layer.bias = nn.Parameter(b.detach().to(like.dtype, copy=True), requires_grad=False)
    return layer


def _linear(W: Tensor, b: Tensor, like: Tensor) -> nn.Linear:
    """x W^T + b."""
    return _filled(nn.Linear(W.shape[1], W.shape[0], device="meta"), W, b, like)


def _plain(layer: nn.Linear) -> nn.Linear:
    """A linear layer without its slices: those are for gradients."""
    return _linear(layer.weight.clone(), layer.bias, layer.weight)


def _normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, inputs: int, outputs: int) -> nn.Conv2d:
    """The convolution with the normalisation that follows it inside, padded with zeros to these channels."""
    mean, variance, bias = (cast(Tensor, t).double() for t in (norm.running_mean, norm.running_var, conv.bias))
    scale = norm.weight.double() / (variance + norm.eps).sqrt()
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    bias = (bias - mean) * scale + norm.bias.double()
    missing = outputs - weight.shape[0]
    weight = F.pad(weight, (0, 0, 0, 0, 0, inputs - weight.shape[1], 0, missing))
    fused = nn.Conv2d(inputs, outputs, 3, padding=1, device="meta")
    return _filled(fused, weight, F.pad(bias, (0, missing)), conv.weight)


class CausalConv1d(nn.Conv1d):
    """(B, C, T) -> (B, C', T): sees the past only. Padding on the left beats padding both sides and cutting."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


def _causal(conv: CausalConv) -> nn.Conv1d:
    """The same convolution with its weight norm multiplied out."""
    outputs, inputs = conv.direction.shape[0], conv.direction.shape[1] // conv.kernel
    fused = CausalConv1d(inputs, outputs, conv.kernel, dilation=conv.dilation, device="meta")
    return _filled(fused, conv.weight().unflatten(1, (conv.kernel, inputs)).mT, conv.bias, conv.bias)
