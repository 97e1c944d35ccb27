"""The lift of images: a small VGG (paper, section 5.2).

    mu(x) = Linear( stage( stage(x) ) ),    stage = [Conv3x3, BatchNorm, ReLU] x 2, MaxPool 2

In bfloat16 on CUDA it trains by the kernels of `kernels/norm.py`, `kernels/padding.py` and, on Hopper,
`kernels/conv.py`, whose twin is `stages`.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import VGGConfig
from koopsim.kinds import LiftKind, Shape, register
from koopsim.nn.linear import Linear
from koopsim.nn.padding import TILE, countable, padded_kernels, patch_product, patches
from koopsim.nn.synced import SyncedNorm
from koopsim.nn.transforms import on_cpu, usable, vmapped
from koopsim.nn.wide_norm import batch_norm


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
        if not on_cpu(x):
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
                shift, momentum = torch.add(layer.bias, bias, alpha=0), cast(float, layer.momentum)
                running = mean, cast(Tensor, layer.running_var)
                x = batch_norm(x, running, layer.weight, shift, momentum, layer.eps)
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
        return bf16 and even and plain and countable(x, self.channels) and usable(x, self.linear.weight)

    def fused_map(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The stages with padded channels and our kernels, then the linear layer: (B, C, H, W) -> (B, outputs).

        Without the convolutions' biases: see `kernels.norm`.
        """
        from koopsim.nn.kernels import conv_tiles

        layers = [(cast(nn.Conv2d, self.stages[k]), cast(nn.BatchNorm2d, self.stages[k + 1])) for k in (0, 3, 7, 10)]
        last = self.linear.weight.unflatten(1, (self.channels, self.image[1] // 4, -1))  # a kernel as large as the map
        ours = conv_tiles.taken_over(x, self.channels, dtype)
        y = patches(x, dtype)
        with torch.autocast(x.device.type, enabled=False):
            weights = [*(conv.weight for conv, _ in layers), last]
            *kernels, last = padded_kernels(weights, dtype, conv_tiles.TILE if ours else TILE)
            y = patch_product(y, kernels[0])
            y, seen = (_by_tensor_cores if ours else _by_library)(y, kernels[1:], layers)
            _count([norm for _, norm in layers], seen)
            features, W = y.flatten(1), last.permute(0, 2, 3, 1).flatten(1)  # as they lie in memory
            return F.linear(features, W, self.linear.bias.to(dtype))


Layers = list[tuple[nn.Conv2d, nn.BatchNorm2d]]


def _by_library(y: Tensor, kernels: list[Tensor], layers: Layers) -> tuple[Tensor, list[Tensor]]:
    """What follows the first convolution's y (B, H, W, P), and the tables of all normalisations."""
    from koopsim.nn.kernels.norm import norm_relu_pool

    seen = []
    for i, (conv, norm) in enumerate(layers):
        if i:
            y = F.conv2d(y.permute(0, 3, 1, 2), kernels[i - 1], padding=1).permute(0, 2, 3, 1)
        y, table = norm_relu_pool(y, norm.weight, norm.bias, conv.bias, norm.eps, i % 2 == 1)
        seen.append(table)
    return y, seen


def _by_tensor_cores(y: Tensor, kernels: list[Tensor], layers: Layers) -> tuple[Tensor, list[Tensor]]:
    """The same by our convolutions, which normalise what they read and take the sums of what they write."""
    from koopsim.nn.kernels.conv import conv_table, norm_conv_pool, picture_table

    second, third, fourth = (kernel.permute(0, 2, 3, 1) for kernel in kernels)
    norms, eps = [[norm.weight, norm.bias, cast(Tensor, conv.bias)] for conv, norm in layers], layers[0][1].eps
    with torch.no_grad():
        one = picture_table(y, norms[0], eps)
    y, _, two = norm_conv_pool(y, one, second, norms[0] + norms[1], eps)
    y, three = conv_table(y, third, norms[2], eps)
    y, _, four = norm_conv_pool(y, three, fourth, norms[2] + norms[3], eps)
    return y, [one, two, three, four]


@torch.no_grad()
def _count(norms: list[nn.BatchNorm2d], tables: list[Tensor]) -> None:
    """The running averages of all layers take in what the batch had: a launch or two for all of them."""
    channels = norms[0].num_features
    running = [cast(Tensor, t) for norm in norms for t in (norm.running_mean, norm.running_var)]
    seen = [row[:channels] for table in tables for row in table[4:6]]
    torch._foreach_lerp_(running, seen, cast(float, norms[0].momentum))  # pyright: ignore[reportCallIssue, reportArgumentType]
    torch._foreach_add_([cast(Tensor, norm.num_batches_tracked) for norm in norms], 1)


@register
class VGGKind(LiftKind):
    config = VGGConfig

    def build(self, config: VGGConfig, dim: int) -> VGG:
        return VGG(config.image, config.channels, dim)

    def example(
        self, config: VGGConfig, batch: int, length: int, random: torch.Generator
    ) -> tuple[Tensor, dict[int, str]]:
        return torch.randn(batch, *config.image, generator=random), {0: "batch"}

    def for_images(self, config: VGGConfig, shape: Shape) -> VGGConfig:
        return replace(config, image=shape)
