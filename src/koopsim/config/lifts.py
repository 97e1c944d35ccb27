"""The paper's lifts: mu, from what a model is given to its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from koopsim.config.checks import positive, require, require_each
from koopsim.config.kinds_of import LiftConfig


@dataclass(frozen=True)
class TCNConfig(LiftConfig):
    """mu for sequences: a temporal convolutional network."""

    levels: int = 8
    channels: int = 10
    kernel: int = 8
    input_channels: int = 1

    def __post_init__(self) -> None:
        names = ("levels", "channels", "kernel", "input_channels")
        require_each(self, names, positive, "TCN {} is {}; it must be at least 1.")


@dataclass(frozen=True)
class VGGConfig(LiftConfig):
    """mu for images: two stages of two 3x3 convolutions and a max pooling."""

    channels: int = 38
    image: tuple[int, int, int] = (3, 32, 32)  # channels, height, width

    def __post_init__(self) -> None:
        require(self.channels >= 1, lambda: f"VGG channels is {self.channels}; it must be at least 1.")
        require(min(self.image[1:]) >= 4, lambda: f"VGG needs images of at least 4 x 4 pixels, got {self.image[1:]}.")


@dataclass(frozen=True)
class MLPConfig(LiftConfig):
    """mu for points: two hidden layers with ReLU."""

    inputs: int = 2
    width: int = 256
    layers: int = 2
    gain: float = 1.0  # of the matrices it starts with: 1 is PyTorch's own, sqrt(6) He's

    def __post_init__(self) -> None:
        require_each(self, ("inputs", "width", "layers"), positive, "MLP {} is {}; it must be at least 1.")
        require(self.gain > 0, lambda: f"MLP gain is {self.gain}; it must be positive.")


@dataclass(frozen=True)
class IdentityConfig(LiftConfig):
    """mu = identity: the RFF-only model lifts its input by psi alone."""

    alone: ClassVar[bool] = False
    inputs: int = 2

    def __post_init__(self) -> None:
        require(self.inputs >= 1, lambda: f"The identity's inputs is {self.inputs}; it must be at least 1.")

    def features(self, lift_dim: int) -> int:
        return self.inputs
