"""Delay coordinates: the past makes up for what was not measured.

    phi(z_l, z_{l-1}, ..., z_{l-k}) = (z_l, z_{l-s}, ..., z_{l-ks})          Takens 1981; Arbabi & Mezic 2017

One series of a pendulum has no Koopman matrix of its own; with a delay it has. The rows are those of a Hankel matrix,
the newest sample first, so that the state is the first d columns. `dictionary` lifts further what the delays see.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone

from .dictionary import Identity, as_dictionary

Array = NDArray[Any]


class Delays(TransformerMixin, BaseEstimator):
    """The state and `delays` earlier ones, `stride` samples apart; then `dictionary` of them all (None: as they are).

    `transform` takes windows as rows, newest first, as EDMD makes them from trajectories; `windows` makes them.
    """

    def __init__(self, delays: int = 10, dictionary: Any = None, stride: int = 1):
        self.delays = delays
        self.dictionary = dictionary
        self.stride = stride

    @property
    def history(self) -> int:
        """How many samples before the first one of a trajectory that has its whole past."""
        for name in ("delays", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or int(value) != value or value < 1:
                raise ValueError(f"Delays needs {name} to be a whole number >= 1; got {value!r}")
        return int(self.delays) * int(self.stride)

    def fit(self, Z: Array, y: Any = None) -> Delays:
        inner: Any = Identity() if self.dictionary is None else self.dictionary
        inner = clone(inner) if isinstance(inner, BaseEstimator) else as_dictionary(inner, Z.shape[1])
        self.dictionary_ = inner.fit(Z)
        self.state_columns_ = getattr(self.dictionary_, "state_columns_", None)
        return self

    def transform(self, Z: Array) -> Array:
        return self.dictionary_.transform(Z)

    def windows(self, Z: Array) -> Array:
        """(m, d) -> (m - history, d (delays + 1))."""
        return windows(Z, self.history, int(self.stride))


def windows(Z: Array, history: int, stride: int = 1) -> Array:
    """Each row a sample and those before it, the newest first."""
    if len(Z) <= history:
        raise ValueError(f"{history} samples of past need a trajectory longer than that; got {len(Z)} samples")
    m = len(Z) - history
    return np.hstack([Z[history - k : history - k + m] for k in range(0, history + 1, stride)])
