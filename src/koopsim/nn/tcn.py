"""The lift of sequences: a temporal convolutional network (paper, section 5.1).

    a_i = relu( R a_{i-1} + relu( conv( relu( conv( a_{i-1} )))) ),   dilation 2^i,      mu(x) = Linear( a_levels )

Triton kernels take its place on CUDA (`kernels/tcn.py`), stretches that fit the cache on a CPU (`stretches.py`).
"""

import math
from collections import OrderedDict
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import LiftConfig, TCNConfig
from koopsim.kinds import LiftKind, SequenceShape, register
from koopsim.nn import stretches
from koopsim.nn.linear import Linear
from koopsim.nn.taps import Taps
from koopsim.nn.transforms import on_cpu, transformed, usable, vmapped


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
        elif on_cpu(rows) and self.input_channels <= self.channels:
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

    def example(
        self, config: TCNConfig, batch: int, length: int, random: torch.Generator
    ) -> tuple[Tensor, dict[int, str]]:
        """Symbols, or vectors where it takes more than one channel."""
        axes = {0: "batch", 1: "length"}
        if config.input_channels == 1:
            return torch.randint(0, 10, (batch, length), generator=random).float(), axes
        return torch.randn(batch, length, config.input_channels, generator=random), axes
