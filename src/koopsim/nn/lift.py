"""The lift: from an input to the space where the dynamics are linear.

    phi(z_0, x) ~ mu(x) in R^N                                  paper, section 3.4

The initial state is zero and is dropped. mu is the part that knows the task: an MLP for points, a small
VGG for images, a temporal convolutional network for sequences. Any nn.Module can stand in their place.
"""

import itertools
import math
from collections import OrderedDict
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import IdentityConfig, LiftConfig, MLPConfig, TCNConfig, VGGConfig
from koopsim.kinds import LiftKind, SequenceShape, Shape, register
from koopsim.nn import stretches
from koopsim.nn.linear import Linear
from koopsim.nn.padding import padded_kernels, patch_product, patches
from koopsim.nn.synced import SyncedNorm
from koopsim.nn.taps import Taps
from koopsim.nn.transforms import on_cpu, usable


class MLP(nn.Sequential):
    """(..., inputs) -> (..., outputs): `layers` hidden layers of `width` with ReLU, then a linear one.

    Its matrices start `gain` times as large as PyTorch's. A network of coordinates learns faster with He's, sqrt(6).
    """

    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 2, gain: float = 1.0):
        sizes = [inputs] + [width] * layers
        hidden = [m for a, b in itertools.pairwise(sizes) for m in (Linear(a, b), nn.ReLU())]
        super().__init__(*hidden, Linear(sizes[-1], outputs))
        if gain != 1:
            with torch.no_grad():
                for layer in self:
                    if isinstance(layer, nn.Linear):
                        layer.weight.mul_(gain)


class VGG(nn.Module):
    """(..., C, H, W) -> (..., outputs): two stages of [Conv3x3, BatchNorm, ReLU] x 2 and a max pooling."""

    def __init__(self, image: tuple[int, int, int], channels: int, outputs: int):
        super().__init__()
        depth, height, width = image
        self.image, self.channels = image, channels
        self.stages = nn.Sequential(*self._stage(depth, channels), *self._stage(channels, channels))
        self.linear = Linear(channels * (height // 4) * (width // 4), outputs)

    @staticmethod
    def _stage(inputs: int, channels: int) -> list[nn.Module]:
        """The pooling before the second ReLU: they commute, and a quarter is left to be rectified."""
        first, second = (
            [nn.Conv2d(depth, channels, 3, padding=1), nn.BatchNorm2d(channels)] for depth in (inputs, channels)
        )
        return [*first, nn.ReLU(inplace=True), *second, nn.MaxPool2d(2), nn.ReLU(inplace=True)]

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[:-3]
        x = x.reshape(-1, *x.shape[-3:]).to(self.linear.weight.dtype)
        y = self.fused_map(x, torch.bfloat16) if self.fused(x) else self.linear(self.features(x))
        return y.reshape(*batch, -1)

    def features(self, x: Tensor) -> Tensor:
        """What the linear layer sees: (B, C, H, W) -> (B, features)."""
        if not on_cpu(x, self.linear.weight):
            return (self.unbiased_stages(x) if self.training and self.synced else self.stages(x)).flatten(1)
        x = x.contiguous(memory_format=torch.channels_last)  # there convolutions take less than half the time
        return (self.unbiased_stages(x) if self.training else self.stages(x)).flatten(1)

    @property
    def synced(self) -> bool:
        """Whether its statistics are those of several processes (synced.py)."""
        return isinstance(self.stages[1], SyncedNorm)

    def unbiased_stages(self, x: Tensor) -> Tensor:
        """The stages in training, without the convolutions' biases: the normalisation takes them away again.

        Only the running mean sees them. Their gradient is zero, and summing it up over all pixels is not free.
        """
        for layer in self.stages:
            if isinstance(layer, nn.Conv2d):
                x, bias = F.conv2d(x, layer.weight, padding=1), cast(Tensor, layer.bias)
            elif isinstance(layer, SyncedNorm):
                x = layer.unbiased(x, bias)
            elif isinstance(layer, nn.BatchNorm2d):
                seen, own = cast(Tensor, layer.running_mean), bias.detach()
                mean = seen - own
                shift, momentum = layer.bias + 0 * bias, cast(float, layer.momentum)
                x = F.batch_norm(x, mean, layer.running_var, layer.weight, shift, True, momentum, layer.eps)
                seen.copy_(mean + own)
                cast(Tensor, layer.num_batches_tracked).add_(1)
            else:
                x = layer(x)
        return x

    def fused(self, x: Tensor) -> bool:
        """Whether the Triton kernels can take the place of the stages: training in bfloat16 on CUDA."""
        bf16 = x.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        even = all(size % 4 == 0 for size in self.image[1:])
        plain = self.training and not self.synced and not vmapped(x)
        return bf16 and even and plain and usable(x, self.linear.weight)

    def fused_map(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The stages with padded channels and `kernels.norm`, then the linear layer: (B, C, H, W) -> (B, outputs)."""
        from koopsim.nn.kernels.norm import norm_relu_pool

        layers = [(cast(nn.Conv2d, self.stages[k]), cast(nn.BatchNorm2d, self.stages[k + 1])) for k in (0, 3, 7, 10)]
        last = self.linear.weight.unflatten(1, (self.channels, self.image[1] // 4, -1))  # a kernel as large as the map
        y, seen = patches(x, dtype), []
        with torch.autocast(x.device.type, enabled=False):
            *kernels, last = padded_kernels([*(conv.weight for conv, _ in layers), last], dtype)
            for i, ((conv, norm), kernel) in enumerate(zip(layers, kernels, strict=True)):
                # without their biases: see `kernels.norm`
                y = F.conv2d(y, kernel, padding=1).permute(0, 2, 3, 1) if i else patch_product(y, kernel)
                y, table = norm_relu_pool(y, norm.weight, norm.bias, conv.bias, norm.eps, i % 2 == 1)
                y = y.permute(0, 3, 1, 2)
                seen.append(table)
            _count([norm for _, norm in layers], seen)
            features, W = (t.permute(0, 2, 3, 1).flatten(1) for t in (y, last))  # as they lie in memory
            return F.linear(features, W, self.linear.bias.to(dtype))


@torch.no_grad()
def _count(norms: list[nn.BatchNorm2d], tables: list[Tensor]) -> None:
    """The running averages of all layers take in what the batch had: a launch or two for all of them."""
    channels = norms[0].num_features
    running = [cast(Tensor, t) for norm in norms for t in (norm.running_mean, norm.running_var)]
    seen = [row[:channels] for table in tables for row in table[4:6]]
    torch._foreach_lerp_(running, seen, cast(float, norms[0].momentum))  # pyright: ignore[reportCallIssue, reportArgumentType]
    torch._foreach_add_([cast(Tensor, norm.num_batches_tracked) for norm in norms], 1)


def vmapped(x: Tensor) -> bool:
    """Whether torch.func.vmap is at work on x: hand-written kernels do not know its batch axis."""
    return torch._C._functorch.is_batchedtensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def transformed(x: Tensor) -> bool:
    """Whether torch.func is at work on x, be it vmap or grad."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]


class CausalConv(nn.Module):
    """Weight-normed dilated causal convolution, (B, T, in) -> (B, T, out).

        y_t = b + sum_k W_k x_{t - (kernel-1-k) dilation},   W = g v / ||v||     (per output channel)

    At ten channels a convolution library spends its time on set-up; stacking the shifted copies side by side
    turns it into one matrix product. The count of parameters is that of a weight-normed Conv1d.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int):
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        bound = 1 / math.sqrt(inputs * kernel)  # PyTorch's default for convolutions
        self.direction = nn.Parameter(torch.empty(outputs, kernel * inputs).uniform_(-bound, bound))
        self.gain = nn.Parameter(self.direction.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def weight(self) -> Tensor:
        """(out, kernel * in): the oldest tap first."""
        return self.direction * (self.gain / self.direction.norm(dim=1)).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        if vmapped(x):
            felt = min(self.kernel, (x.shape[1] - 1) // self.dilation + 1)  # older taps lie before the beginning
            taps = cast(Tensor, Taps.apply(x, felt, self.dilation))
            return F.linear(taps, self.weight()[:, -felt * x.shape[2] :], self.bias)
        length, reach = x.shape[1], (self.kernel - 1) * self.dilation
        past = F.pad(x, (0, 0, reach, 0))
        taps = [past[:, k * self.dilation : k * self.dilation + length] for k in range(self.kernel)]
        return F.linear(torch.cat(taps, dim=-1), self.weight(), self.bias)


class TemporalBlock(nn.Module):
    """relu(x + relu(conv(relu(conv(x))))), with a 1x1 convolution on x where the channels differ."""

    def __init__(self, inputs: int, channels: int, kernel: int, dilation: int):
        super().__init__()
        self.first = CausalConv(inputs, channels, kernel, dilation)
        self.second = CausalConv(channels, channels, kernel, dilation)
        self.residual = Linear(inputs, channels) if inputs != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + F.relu(self.second(F.relu(self.first(x)))))


def residual_of(layer: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    """(R, r) of a block's residual for `kernels.tcn`; two empty tensors where it is the identity."""
    if isinstance(layer, nn.Linear):
        return layer.weight, layer.bias
    return like.new_empty(0, 0), like.new_empty(0)


class TCN(nn.Module):
    """(..., T, C) -> (..., T, outputs): temporal blocks of dilation 1, 2, 4, ..., then a linear layer.

    With one input channel (the default) the input is the bare sequence, (..., T).
    """

    def __init__(self, outputs: int, levels: int = 8, channels: int = 10, kernel: int = 8, input_channels: int = 1):
        super().__init__()
        self.input_channels, self.channels = input_channels, channels
        widths = [input_channels] + [channels] * levels
        self.blocks = nn.Sequential(
            OrderedDict(
                (f"level{i}", TemporalBlock(widths[i], widths[i + 1], kernel, dilation=2**i)) for i in range(levels)
            )
        )
        self.linear = Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """What the linear layer sees: (..., T, C_in) -> (..., T, C)."""
        x = x.unsqueeze(-1) if self.input_channels == 1 else x
        x = x.to(self.linear.weight.dtype)
        rows = x.reshape(-1, *x.shape[-2:])
        if self.fused(rows):
            found = self.stacked(rows)
        elif on_cpu(rows, self.linear.weight) and self.input_channels <= self.channels:
            residual = residual_of(cast(TemporalBlock, self.blocks[0]).residual, rows)
            found = stretches.features(rows, *residual, *self.normed_weights(self.convs()))
        else:
            found = self.blocks(rows)
        return found.reshape(*x.shape[:-1], -1)

    def convs(self) -> list[CausalConv]:
        """The convolutions in their order, two of each block."""
        return [conv for block in self.blocks for conv in (block.first, block.second)]  # pyright: ignore

    def fused(self, x: Tensor) -> bool:
        """Whether the Triton kernels can take the place of the blocks."""
        small = self.input_channels <= self.channels <= 64
        return small and x.dtype == torch.float32 and usable(x, self.linear.weight)

    def stacked(self, x: Tensor) -> Tensor:
        """The blocks as one stack of layers for `kernels.tcn`: (B, T, C_in) -> (B, T, C)."""
        from koopsim.nn.kernels.tcn import temporal_stack
        from koopsim.nn.kernels.weight_norm import normed_weights

        convs = self.convs()
        if transformed(x) or transformed(convs[0].direction):
            W, b = self.normed_weights(convs)
        else:
            W, b = normed_weights(
                [p for conv in convs for p in (conv.direction, conv.gain, conv.bias)], convs[0].kernel
            )
        R, r = residual_of(cast(TemporalBlock, self.blocks[0]).residual, x)
        one = (t.unsqueeze(0) for t in (x, R, r, W, b))  # one model; under vmap it is many
        return temporal_stack(*one)[0].squeeze(0)

    def normed_weights(self, convs: list[CausalConv]) -> tuple[Tensor, Tensor]:
        """W (L, C, K, C) and b (L, C) of all layers; the first one's missing input channels are zero."""
        direction = torch.stack([conv.direction for conv in convs[1:]])
        gain = torch.stack([conv.gain for conv in convs[1:]])
        later = direction * (gain / direction.norm(dim=-1)).unsqueeze(-1)
        first = convs[0].weight().unflatten(1, (-1, self.input_channels))  # (C, K, C_in)
        first = F.pad(first, (0, self.channels - self.input_channels)).flatten(1)
        W = torch.cat([first.unsqueeze(0), later]).unflatten(2, (-1, self.channels))
        return W, torch.stack([conv.bias for conv in convs])


# ---------------------------------------------------------------- what the house asks of each

Example = tuple[Tensor, dict[int, str]]


@register
class TCNKind(LiftKind):
    config = TCNConfig

    def build(self, config: TCNConfig, dim: int) -> TCN:
        return TCN(dim, config.levels, config.channels, config.kernel, config.input_channels)

    def for_sequences(self, config: TCNConfig, shape: SequenceShape) -> LiftConfig:
        """As many levels as it takes to look back over the whole sequence; bytes are embedded first."""
        reach = 2 * (config.kernel - 1)  # of a level of dilation 1
        levels = max(2, min(8, math.ceil(math.log2((shape.length - 1) / reach + 1)))) if config.kernel > 1 else 8
        if shape.channels:
            return replace(config, levels=levels, input_channels=shape.channels)
        from koopsim.nn.byte_tcn import ByteTCNConfig

        return ByteTCNConfig(levels, config.channels, config.kernel)

    def example(self, config: TCNConfig, batch: int, length: int, random: torch.Generator) -> Example:
        """Symbols, or vectors where it takes more than one channel."""
        axes = {0: "batch", 1: "length"}
        if config.input_channels == 1:
            return torch.randint(0, 10, (batch, length), generator=random).float(), axes
        return torch.randn(batch, length, config.input_channels, generator=random), axes


@register
class VGGKind(LiftKind):
    config = VGGConfig

    def build(self, config: VGGConfig, dim: int) -> VGG:
        return VGG(config.image, config.channels, dim)

    def example(self, config: VGGConfig, batch: int, length: int, random: torch.Generator) -> Example:
        return torch.randn(batch, *config.image, generator=random), {0: "batch"}

    def for_images(self, config: VGGConfig, shape: Shape) -> VGGConfig:
        return replace(config, image=shape)


@register
class MLPKind(LiftKind):
    config = MLPConfig
    widths = ("width",)

    def build(self, config: MLPConfig, dim: int) -> MLP:
        return MLP(config.inputs, config.width, dim, config.layers, config.gain)

    def example(self, config: MLPConfig, batch: int, length: int, random: torch.Generator) -> Example:
        return torch.rand(batch, config.inputs, generator=random), {0: "batch"}

    def for_rows(self, config: MLPConfig, inputs: int) -> MLPConfig:
        return replace(config, inputs=inputs)

    def bytes_a_point(self, config: MLPConfig, features: int, full: int) -> int:
        return full * (5 * config.width * config.layers + 4 * features)


@register
class IdentityKind(LiftKind):
    config = IdentityConfig

    def build(self, config: IdentityConfig, dim: int) -> nn.Identity:
        return nn.Identity()

    def example(self, config: IdentityConfig, batch: int, length: int, random: torch.Generator) -> Example:
        return torch.rand(batch, config.inputs, generator=random), {0: "batch"}

    def for_rows(self, config: IdentityConfig, inputs: int) -> IdentityConfig:
        return replace(config, inputs=inputs)

    def bytes_a_point(self, config: IdentityConfig, features: int, full: int) -> int:
        return 0  # psi of fixed coordinates is computed once
