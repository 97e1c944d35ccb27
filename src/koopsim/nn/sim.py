"""Stable invariant models, composed from the four maps beside this file.

equilibrium   z* ~ phi^-1( lim A^l phi(z_0, x) )            paper, eq. (5) and (6)
single-tier   z = nu( U V mu(x) )                           paper, eq. (11)
two-tier      z = nu( U' V' psi(mu(x)) )                    paper, eq. (11), second line
RFF only      z = nu( U V psi(x) )                          paper, eq. (12)
output        y = h(z)
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import FourierConfig, ModelConfig, SIMConfig
from koopsim.kinds import ModelKind, SequenceShape, Shape, lift_kind, register
from koopsim.nn.fourier import NormalisedFourierFeatures, RandomFourierFeatures
from koopsim.nn.lift import TCN
from koopsim.nn.limit import LimitOperator
from koopsim.nn.linear import Linear
from koopsim.nn.products import affine, times
from koopsim.nn.readout import Output, StateReadout
from koopsim.nn.saved import Model
from koopsim.nn.transforms import on_cpu, usable
from koopsim.spaces import BANDWIDTH, LogUniform, Parameter
from koopsim.words import Look

TAIL_SIZES = (128, 64, 64, 32)  # D, K, H and outputs: up to these the tiles of `kernels.tail` stay in registers


class SIM(Model):
    """y = h(nu(U V phi(x))) with phi = mu, psi o mu, or psi.

    lift       mu: any module (..., input) -> (..., lift_dim); nn.Identity() for the RFF-only model
    lift_dim   N, the size of the lift's last axis
    fourier    psi, or None for the single-tier model
    rank       K, the size of the invariant subspace; None is half of the lifted dimension
    projector  enforce V U = I; with the rank N that is the identity, and U V has no parameters
    hidden     H, the width of nu;   outputs: the size of y
    """

    def __init__(
        self,
        lift: nn.Module,
        lift_dim: int,
        outputs: int,
        hidden: int = 32,
        fourier: RandomFourierFeatures | None = None,
        rank: int | None = None,
        projector: bool = False,
    ):
        super().__init__()
        for name, size in (("lift_dim", lift_dim), ("hidden", hidden), ("outputs", outputs)):
            if type(size) is bool or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} is {size!r}; expected a whole number of at least 1.")
        if not callable(lift):
            raise ValueError(f"The lift is {lift!r}; expected a module: nn.Identity() for none.")
        if fourier is not None and not isinstance(fourier, RandomFourierFeatures):
            raise ValueError(f"fourier is {fourier!r}; expected koopsim.nn.RandomFourierFeatures(...), or None.")
        lifted = lift_dim if fourier is None else 2 * fourier.frequencies.shape[0]
        self.mu = lift
        self.psi = nn.Identity() if fourier is None else fourier
        self.limit = LimitOperator(lifted, rank, projector)
        self.nu = StateReadout(lifted, hidden)
        self.h = Output(hidden, outputs)

    def lifted(self, x: Tensor) -> Tensor:
        """phi(x), the state on the lifted space before the limit is taken."""
        phi = self.psi(self.mu(x))
        if phi.shape[-1] != self.limit.dim:
            raise ValueError(f"The lift gives {phi.shape[-1]} numbers where lift_dim says {self.limit.dim}.")
        return phi

    def state(self, x: Tensor) -> Tensor:
        """z, what stands in for the equilibrium of a DEQ."""
        return self.nu(self.limit(self.lifted(x)))

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(x, "is_floating_point"):
            raise ValueError(f"x is {type(x).__name__}; expected a tensor: torch.as_tensor(x, dtype=torch.float32).")
        if on_cpu(x) and self._foldable(x):
            return self.folded(x)
        if isinstance(self.mu, TCN) and isinstance(self.psi, nn.Identity) and self.mu.channels <= TAIL_SIZES[2]:
            features = self.mu.features(x)
            if self.fused(features):
                return self.tail(features, self.mu.linear)
            phi = self.mu.linear(features)
        else:
            phi = self.lifted(x)
        return self.tail(phi) if self.fused(phi) else self.h(self.nu(self.limit(phi)))

    def _foldable(self, x: Tensor) -> bool:
        own = isinstance(self.nu, StateReadout) and isinstance(self.h, Output)
        many = isinstance(self.mu, nn.Identity) and x.numel() >= 2 * self.limit.dim * x.shape[-1]
        return own and (many or isinstance(self.mu, TCN)) and not torch.is_autocast_enabled("cpu")

    def folded(self, x: Tensor) -> Tensor:
        """The same with neighbouring linear maps multiplied first: there are more steps or points than they have rows.

        nu_1 U V (L a + c) = (nu_1 U V L) a + nu_1 U V c, L the lift's last layer, and h nu_3; see also `folded.py`.
        """
        first, second, third = (cast(Linear, self.nu[i]) for i in (0, 2, 4))
        U, V = self.limit.factors()
        W, b = times(times(first.weight, U), V), first.bias
        if isinstance(self.psi, nn.Identity):
            mu = cast(TCN, self.mu)
            phi, W, b = mu.features(x), W @ mu.linear.weight, b + W @ mu.linear.bias
        else:
            phi = self.lifted(x)
        z = F.relu(affine(F.relu(affine(phi, W, b)), second.weight, second.bias))
        return affine(z, self.h.weight @ third.weight, self.h.weight @ third.bias + self.h.bias)

    def fused(self, phi: Tensor) -> bool:
        """Whether the Triton kernel can take the place of the limit, nu and h: training in float32 on CUDA."""
        if not (self.training and torch.is_grad_enabled() and usable(phi, self.h.weight)):
            return False
        if not (isinstance(self.nu, StateReadout) and isinstance(self.h, Output)):
            return False
        sizes = (self.limit.dim, self.limit.rank, self.h.in_features, self.h.out_features)
        small = all(size <= most for size, most in zip(sizes, TAIL_SIZES, strict=True)) and 0 < phi.numel() < 2**31
        kinds = phi.dtype in (torch.float32, torch.bfloat16) and self.h.weight.dtype == torch.float32
        return small and kinds

    def tail(self, phi: Tensor, front: nn.Linear | None = None) -> Tensor:
        """h(nu(U V phi)) in one kernel, (..., D) -> (..., outputs): `kernels.tail`; `front`: of front(phi) instead."""
        from koopsim.nn.kernels.tail import tail

        U, V = self.limit.factors()
        layers = [
            cast(Linear, layer) for layer in (self.nu[0], self.nu[2], self.nu[4], self.h, front) if layer is not None
        ]
        weights = [V, U, *(t for layer in layers for t in (layer.weight, layer.bias))]
        rows, *weights = (t.unsqueeze(0) for t in (phi.reshape(-1, phi.shape[-1]), *weights))  # one; under vmap many
        return tail(rows, weights).reshape(*phi.shape[:-1], -1)

    def fuse(self) -> nn.Module:
        """The same map for inference, its linear maps multiplied out and its normalisations folded away."""
        from koopsim.nn.fuse import fuse

        return fuse(self)


def build_fourier(fourier: FourierConfig, inputs: int) -> RandomFourierFeatures:
    """The module of psi's configuration."""
    if fourier.normalise:
        return NormalisedFourierFeatures(inputs, fourier.features, fourier.bandwidth, fourier.kernel)
    return RandomFourierFeatures(inputs, fourier.features, fourier.bandwidth, fourier.kernel, fourier.spread)


def build_sim(sim: SIMConfig) -> Model:
    """The module of a SIM's configuration."""
    dim = sim.lift.features(sim.lift_dim)
    psi = sim.fourier and build_fourier(sim.fourier, dim)
    lift = lift_kind(sim.lift).build(sim.lift, dim)
    model = SIM(lift, dim, sim.outputs, sim.hidden, psi, sim.rank, sim.projector)
    if sim.start == "even":
        start_evenly(model)
    if sim.z0 == "zero":
        return model
    from koopsim.nn.started import StartedSIM

    return StartedSIM(model, sim.z0)


@torch.no_grad()
def start_evenly(model: SIM) -> None:
    """U V a projector from the first step on, U = V^T orthonormal, and linear layers that keep a signal's size.

    A SIM has seven matrices in a row. PyTorch's start makes each of them shrink what it is given by about sqrt(3), so
    that a small table's answers begin as a constant and are learnt from noise; Glorot & Bengio's (2010) does not.
    """
    if not model.limit.identity:
        nn.init.orthogonal_(model.limit.U)
        model.limit.V.copy_(model.limit.U.mT)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def count_parameters(model: nn.Module) -> int:
    """The number of learnable scalars, as the paper counts them (buffers are not learnt)."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@register
class SIMKind(ModelKind):
    """What the house asks of a SIM; of its lift it asks the lift's own kind."""

    config = SIMConfig
    stackable = True
    has_limit = True
    can_take_over = True
    order = 2

    def build(self, config: SIMConfig) -> Model:
        return build_sim(config)

    def slug(self, config: SIMConfig) -> str:
        return "sim-single" if config.fourier is None else "sim-two" if config.lift.alone else "sim-rff"

    def title(self, config: SIMConfig) -> str:
        return {"sim-single": "SIM (single)", "sim-two": "SIM (two)", "sim-rff": "SIM (RFF only)"}[self.slug(config)]

    def look(self, config: SIMConfig, best: bool = False) -> Look:
        plain = {"sim-single": (4, "#2563eb"), "sim-two": (5, "#dc2626"), "sim-rff": (8, "#059669")}
        freer = {"sim-single": (6, "#60a5fa"), "sim-two": (7, "#f87171"), "sim-rff": (9, "#34d399")}
        words = super().look(config, best).title
        return Look(words, *(freer if best else plain)[self.slug(config)])

    def limit_dim(self, config: SIMConfig) -> int:
        return config.lifted

    def for_images(self, config: SIMConfig, shape: Shape, outputs: int) -> SIMConfig:
        return replace(config, lift=lift_kind(config.lift).for_images(config.lift, shape), outputs=outputs)

    def for_rows(self, config: SIMConfig, inputs: int, outputs: int) -> SIMConfig:
        return replace(config, lift=lift_kind(config.lift).for_rows(config.lift, inputs), outputs=outputs)

    def for_sequences(self, config: SIMConfig, shape: SequenceShape, outputs: int) -> SIMConfig:
        return replace(config, lift=lift_kind(config.lift).for_sequences(config.lift, shape), outputs=outputs)

    def coarser(self, config: SIMConfig, factor: float) -> ModelConfig:
        return self.with_bandwidth(config, config.fourier.bandwidth * factor) if config.fourier else config

    def example(self, config: SIMConfig, batch: int, length: int, random: torch.Generator):
        return lift_kind(config.lift).example(config.lift, batch, length, random)

    def parameters(self, config: SIMConfig) -> dict[str, Parameter]:
        return {BANDWIDTH: LogUniform(1e-3, 1e3)} if config.fourier else {}

    def sizes(self, config: SIMConfig, values: Parameter) -> dict[str, Parameter]:
        widths = lift_kind(config.lift).widths
        found = {f"model.lift.{width}": values for width in widths}
        found |= {"model.lift_dim": values} if widths else {}
        return found | ({"model.fourier.features": values} if config.fourier else {})

    def common(self, config: SIMConfig) -> ModelConfig:
        return self.with_bandwidth(config, 1.0) if config.fourier else config

    def with_bandwidth(self, config: SIMConfig, bandwidth: float) -> ModelConfig:
        if config.fourier is None:
            return super().with_bandwidth(config, bandwidth)  # refuses
        return replace(config, fourier=replace(config.fourier, bandwidth=bandwidth))

    def bytes_a_point(self, config: SIMConfig, short: int, full: int) -> int:
        features = config.lifted if config.fourier else 0
        own = short * (features + 6 * config.hidden) + 3 * full * config.outputs
        return own + lift_kind(config.lift).bytes_a_point(config.lift, features, full)

    def learns_phases(self, config: SIMConfig) -> bool:
        return config.fourier is not None and config.lift.alone
