"""Stable invariant models of tables, with scikit-learn's contract.

    single   y = h(nu(U V mu(x)))          two   y = h(nu(U V psi(mu(x))))          rff   y = h(nu(U V psi(x)))

mu is a perceptron, psi random Fourier features whose bandwidth is the median distance of what they are given.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from torch import Tensor

from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, ModelConfig, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.searching.bandwidth import POINTS, median_bandwidth
from koopsim.sklearn.base import RowEstimator
from koopsim.sklearn.fitted import untrained_model
from koopsim.sklearn.kinds_of_target import RowClassifier, RowRegressor

TIERS = ("single", "two", "rff")


@dataclass(eq=False, repr=False)
class _RowSIM(RowEstimator):
    """The model of both."""

    tier: Literal["single", "two", "rff"] = "single"
    _: KW_ONLY
    width: int = 64
    layers: int = 1
    lift_dim: int = 64
    features: int = 128
    bandwidth: float | str = "median"
    rank: int | None = None
    projector: bool = False
    hidden: int = 32

    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        if self.tier not in TIERS:
            raise KoopsimError(f"tier is {self.tier!r}; expected one of {', '.join(TIERS)}.")
        if self.bandwidth != "median" and not isinstance(self.bandwidth, int | float):
            raise KoopsimError(f"bandwidth is {self.bandwidth!r}; expected 'median' or a positive number.")
        lift = IdentityConfig(inputs) if self.tier == "rff" else MLPConfig(inputs, self.width, self.layers)
        return SIMConfig(lift, self.lift_dim, self._fourier(), self.rank, self.projector, self.hidden, outputs, "even")

    def _fourier(self) -> FourierConfig | None:
        """As it is before the data settle a bandwidth."""
        if self.tier == "single":
            return None
        if self.bandwidth == "median":
            return FourierConfig(self.features)
        return FourierConfig(self.features, float(self.bandwidth))

    def _settled(self, config: ModelConfig, x: Tensor, seed: int) -> ModelConfig:
        if self.tier == "single" or self.bandwidth != "median":
            return config
        x = x[:POINTS]
        if (x == x[:1]).all():  # there is no distance to go by
            return config
        return model_kind(config).with_bandwidth(config, median_bandwidth(untrained_model(config, seed, x.device), x))

    @staticmethod
    def _state(model: Any, x: Tensor) -> Tensor:
        return model.state(x)


@dataclass(eq=False, repr=False)
class SIMClassifier(RowClassifier, _RowSIM):
    """A stable invariant model that foretells classes.

    Parameters
    ----------
    tier : "single" (a learnt lift), "two" (Fourier features of it) or "rff" (Fourier features of the rows themselves)
    width, layers : hidden layers of the lift mu;  lift_dim : N, what it ends in
    features : M, Fourier features;  bandwidth : their length scale, "median" by the distances of the data
    rank : K of the limit operator U V, None is half of what it acts on;  projector : enforce V U = I
    hidden : H, the width of nu, the size of a state (`transform`)
    epochs, batch_size, learning_rate, weight_decay : of Adam, its rate falling as a cosine; "auto": by the rows
    average : judge an average of the weights over about 1 / (1 - average) steps; 0: the last ones
    early_stopping : hold `validation_fraction` of the rows out, stop when their loss has not fallen by `tol` for
        `n_iter_no_change` epochs, and keep the best weights; "auto": of 100 rows or more
    class_weight : None, "balanced" or {label: weight}
    scale : bring every column to mean 0 and deviation 1 first
    device : where it is trained, "cpu", "cuda" or "auto"; random_state : decides every bit of it on a CPU
    """


@dataclass(eq=False, repr=False)
class SIMRegressor(RowRegressor, _RowSIM):
    """A stable invariant model that foretells numbers, one or several. Parameters as of `SIMClassifier`."""
