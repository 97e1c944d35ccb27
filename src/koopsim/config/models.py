"""The shapes of the paper's models. The symbols in comments are the paper's (docs/math.md has the glossary)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from koopsim.config.checks import positive, require, require_each
from koopsim.config.kinds_of import LiftConfig, ModelConfig
from koopsim.config.lifts import TCNConfig
from koopsim.registry import SOLVERS


@dataclass(frozen=True)
class FourierConfig:
    """psi: random Fourier features of a shift-invariant kernel."""

    features: int = 32  # M
    bandwidth: float = 1.0  # b, a length scale
    kernel: Literal["gaussian", "laplace"] = "gaussian"
    normalise: bool = False  # measure distances in the lift's own scale: b = 1 is about that of two inputs
    spread: Literal["random", "even"] = "random"  # frequencies drawn one by one, or evenly over the plane

    def __post_init__(self) -> None:
        require(
            self.spread == "random" or (self.kernel == "gaussian" and not self.normalise),
            lambda: (
                "Evenly spread frequencies are those of the Gaussian kernel in given units; leave "
                "--model.fourier.kernel at gaussian and --model.fourier.normalise off."
            ),
        )
        require(
            self.features >= 2 and self.features % 2 == 0,
            lambda: f"The number of Fourier features M is {self.features}; it must be even (a sine and a cosine each).",
        )
        require(
            self.bandwidth > 0, lambda: f"The bandwidth is {self.bandwidth}; it is a length scale and must be positive."
        )


@dataclass(frozen=True)
class SIMConfig(ModelConfig):
    """A stable invariant model: z = nu(U V phi), y = h(z)."""

    lift: LiftConfig = field(default_factory=TCNConfig)
    lift_dim: int = 32  # N
    fourier: FourierConfig | None = None  # set: two-tier (with lift) or RFF only (identity lift)
    rank: int | None = None  # K; None is the paper's half of the lifted dimension
    projector: bool = False  # enforce V U = I
    hidden: int = 32  # H, the width of nu
    outputs: int = 10
    start: Literal["plain", "even"] = "plain"  # PyTorch's matrices; "even": U V a projector, the others Glorot's
    z0: Literal["zero", "learnt", "again"] = "zero"  # where it begins: the paper's; one vector; its answer from zero

    def __post_init__(self) -> None:
        require_each(self, ("lift_dim", "hidden", "outputs"), positive, "{} is {}; it must be at least 1.")
        require(
            self.lift.alone or self.fourier is not None,
            lambda: "An identity lift needs Fourier features (the RFF-only model).",
        )
        inputs = self.lift.features(self.lift_dim)
        even = self.fourier is not None and self.fourier.spread == "even"
        require(
            not even or inputs == 2,
            lambda: (
                f"Evenly spread frequencies are for points of the plane; here psi is given {inputs} numbers. "
                "Leave --model.fourier.spread at random."
            ),
        )
        n = self.lifted
        if self.rank is None:
            require(n >= 2, lambda: f"The lifted dimension is {n}; the paper's rank K = N/2 needs at least 2.")
        else:
            require(
                1 <= self.rank <= n,
                lambda: f"The rank K is {self.rank}; it lies between 1 and the lifted dimension {n}.",
            )

    @property
    def lifted(self) -> int:
        """The dimension the limit operator acts on: M with Fourier features, else N."""
        return self.fourier.features if self.fourier else self.lift_dim


_SOLVERS = ("anderson", "broyden", "picard")  # the common ones, so that a configuration is read without torch


@dataclass(frozen=True)
class SolverConfig:
    """How a fixed point is found."""

    method: str = "anderson"  # anderson, broyden, newton, picard, relaxed, or one of your own
    max_steps: int = 30
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.method not in _SOLVERS:
            SOLVERS[self.method]  # looks through the plugins, and says which one was probably meant
        require(self.max_steps >= 1, lambda: f"The solver's max_steps is {self.max_steps}; it must be at least 1.")
        require(self.tolerance > 0, lambda: f"The solver's tolerance is {self.tolerance}; it must be positive.")


@dataclass(frozen=True)
class DEQConfig(ModelConfig):
    """The deep equilibrium model of the copy memory task: a Universal Transformer cell."""

    heads: int = 8
    head_dim: int = 5
    model_dim: int = 40
    inner_dim: int = 40
    vocabulary: int = 10
    forward: SolverConfig = field(default_factory=SolverConfig)
    backward: SolverConfig = field(default_factory=SolverConfig)
    memory: int | None = None  # how many past steps the solvers keep; None is each one's own default
    gradient: Literal["implicit", "jacobian-free", "phantom", "neumann", "reversible"] = "implicit"

    def __post_init__(self) -> None:
        names = ("heads", "head_dim", "model_dim", "inner_dim", "vocabulary")
        require_each(self, names, positive, "DEQ {} is {}; it must be at least 1.")
        require(
            self.model_dim % 2 == 0,
            lambda: f"DEQ model_dim is {self.model_dim}; sinusoidal positions need an even one.",
        )
        require(self.memory is None or self.memory >= 1, lambda: f"DEQ memory is {self.memory}; it must be at least 1.")


@dataclass(frozen=True)
class MonDEQConfig(ModelConfig):
    """A monotone operator equilibrium network: z = relu(W z + U x + b) with sym(I - W) >= m I."""

    image: tuple[int, int, int] = (3, 32, 32)  # channels, height, width
    tiers: tuple[int, ...] = (81,)  # channels of each tier, each half as wide as the one before; or units
    connected: bool = False  # fully connected: one tier of that many units
    splitting: Literal["peaceman-rachford", "forward-backward"] = "peaceman-rachford"
    monotonicity: float = 1.0  # m
    alpha: float = 1.0  # the splitting's step size, where the tuning starts
    tune_alpha: bool = True  # at the start of an epoch try halves of alpha and keep what needs the fewest steps
    tolerance: float = 1e-2
    max_steps: int = 300
    outputs: int = 10
    mirrored: bool = False  # images are turned by 180 degrees: so the published multi-tier weights fit
    scale: Literal["exp", "free"] = "exp"  # of A^T A: exp(2 log_g), or g itself, as published

    def __post_init__(self) -> None:
        require(
            len(self.tiers) >= 1 and min(self.tiers) >= 1,
            lambda: f"monDEQ tiers is {self.tiers}; give a positive width.",
        )
        require(not self.connected or len(self.tiers) == 1, lambda: "A fully connected monDEQ has one tier.")
        require(self.monotonicity > 0, lambda: f"monDEQ monotonicity m is {self.monotonicity}; it must be positive.")
        require(self.alpha > 0, lambda: f"monDEQ alpha is {self.alpha}; it must be positive.")
        require(self.tolerance > 0, lambda: f"monDEQ tolerance is {self.tolerance}; it must be positive.")
        require(self.max_steps >= 1, lambda: f"monDEQ max_steps is {self.max_steps}; it must be at least 1.")
        require(self.outputs >= 1, lambda: f"monDEQ outputs is {self.outputs}; it must be at least 1.")


@dataclass(frozen=True)
class FourierNetworkConfig(ModelConfig):
    """The Gaussian Fourier-feature network of Tancik et al.: a perceptron on features, ended by a sigmoid."""

    inputs: int = 2
    features: int = 512
    sigma: float = 10.0  # the frequencies' standard deviation, in cycles; a bandwidth b of 1 / (2 pi sigma)
    width: int = 256
    layers: int = 3
    outputs: int = 3

    def __post_init__(self) -> None:
        even = self.features >= 2 and self.features % 2 == 0
        require(even, lambda: f"The number of features is {self.features}; it must be even.")
        require(self.sigma > 0, lambda: f"sigma is {self.sigma}; it must be positive.")
        require_each(self, ("inputs", "width", "layers", "outputs"), positive, "{} is {}; it must be at least 1.")
