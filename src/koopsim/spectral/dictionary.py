"""Dictionaries: the observables phi that lift the state.

    phi: R^d -> R^N,     phi(f(z)) = A phi(z)  approximately                 paper, section 2.2

    Identity       z itself: dynamic mode decomposition (DMD)
    Monomials      z^a for all |a| <= degree
    RandomFourier  (sin(w_j.z), cos(w_j.z)) / sqrt(M/2), w_j ~ N(0, 1/b^2 I)     psi of the paper
    Nystrom        k(z, c_i) K^{-1/2}: a Gaussian kernel seen from a few centres
    Observables    any function of an (m, d) array
    Lift           a trained network, mu of the paper (torch is imported when it is called)

All are scikit-learn transformers: `fit` draws what is random or depends on the data, `transform` lifts.
Anything else with these two methods will do (sklearn's PolynomialFeatures, a Pipeline), or a plain function.
`Delays` (delays.py) sees the past too; `LearnedDictionary` (learned.py) is trained on the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from sklearn.base import BaseEstimator, TransformerMixin

Array = NDArray[Any]  # float64


MOST_BY_DEFAULT = 500  # monomials of degree 2; with more, the states themselves are the default dictionary
POOL = 20  # samples for each centre, of which the different ones are drawn from
MOST_DISTANCES = 500  # centres whose distances give the bandwidth
REDUNDANT = 1e-13  # of the largest eigenvalue, for each centre: what is below adds nothing, and is dropped


class Identity(TransformerMixin, BaseEstimator):
    """phi(z) = z, real or complex: EDMD becomes DMD."""

    def fit(self, Z: Array, y: Any = None) -> Identity:
        self.state_columns_ = np.arange(Z.shape[1])
        return self

    def transform(self, Z: Array) -> Array:
        return Z

    @property
    def names_(self) -> list[str]:
        return [f"z{j}" for j in self.state_columns_]


class Monomials(TransformerMixin, BaseEstimator):
    """All monomials up to `degree`, the constant first unless `constant=False`."""

    def __init__(self, degree: int = 2, constant: bool = True):
        self.degree = degree
        self.constant = constant

    def fit(self, Z: Array, y: Any = None) -> Monomials:
        if self.degree < 1:
            raise ValueError(f"Monomials needs degree >= 1; got {self.degree}")
        d = Z.shape[1]
        terms = [c for k in range(self.degree + 1) for c in combinations_with_replacement(range(d), k)]
        where = {c: i for i, c in enumerate(terms)}
        self.terms_ = terms if self.constant else terms[1:]
        # each monomial is one of a degree less times one coordinate
        self._recipe = [(i, where[c[:-1]], c[-1]) for i, c in enumerate(terms) if c]
        self.state_columns_ = np.arange(d) + (1 if self.constant else 0)
        return self

    def transform(self, Z: Array) -> Array:
        out = np.empty((len(self._recipe) + 1, len(Z)), dtype=np.result_type(Z, np.float64))
        coordinates = np.ascontiguousarray(Z.T)
        out[0] = 1.0
        for i, lower, j in self._recipe:
            np.multiply(out[lower], coordinates[j], out=out[i])
        return (out if self.constant else out[1:]).T

    @property
    def names_(self) -> list[str]:
        """'1', 'z0', 'z0 z1', ... in the order of the observables."""
        return [" ".join(f"z{j}" for j in c) or "1" for c in self.terms_]


class RandomFourier(TransformerMixin, BaseEstimator):
    """`n_features` (even) random Fourier features with length scale `bandwidth`: the paper's psi."""

    def __init__(self, n_features: int = 100, bandwidth: float = 1.0, seed: int = 0):
        self.n_features = n_features
        self.bandwidth = bandwidth
        self.seed = seed

    def fit(self, Z: Array, y: Any = None) -> RandomFourier:
        if self.n_features < 2 or self.n_features % 2:
            raise ValueError(f"RandomFourier needs an even number of features; got {self.n_features}")
        if not self.bandwidth > 0:
            raise ValueError(f"RandomFourier needs a bandwidth > 0; got {self.bandwidth}")
        rng = np.random.default_rng(self.seed)
        self.frequencies_ = rng.standard_normal((Z.shape[1], self.n_features // 2)) / self.bandwidth
        return self

    def transform(self, Z: Array) -> Array:
        angle = Z @ self.frequencies_
        return np.concatenate([np.sin(angle), np.cos(angle)], axis=1) / np.sqrt(self.n_features / 2)


class Nystrom(TransformerMixin, BaseEstimator):
    """Gaussian kernel exp(-|x-y|^2 / 2b^2) seen from `n_centers` data points; b None: median distance."""

    def __init__(self, n_centers: int = 100, bandwidth: float | None = None, seed: int = 0):
        self.n_centers = n_centers
        self.bandwidth = bandwidth
        self.seed = seed

    def fit(self, Z: Array, y: Any = None) -> Nystrom:
        if self.n_centers < 1:
            raise ValueError(f"Nystrom needs n_centers >= 1; got {self.n_centers}")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(f"Nystrom needs a bandwidth > 0; got {self.bandwidth}")
        rng = np.random.default_rng(self.seed)
        distinct = np.unique(Z[rng.permutation(len(Z))[: POOL * self.n_centers]], axis=0)
        self.centers_ = distinct[rng.permutation(len(distinct))[: self.n_centers]]
        middle = float(np.median(pdist(self.centers_[:MOST_DISTANCES]))) if len(self.centers_) > 1 else 1.0
        self.bandwidth_ = self.bandwidth if self.bandwidth is not None else (middle or 1.0)
        w, Q = np.linalg.eigh(self._kernel(self.centers_))
        keep = w > REDUNDANT * w.size * w[-1]
        self.whiten_ = Q[:, keep] / np.sqrt(w[keep])
        return self

    def _kernel(self, Z: Array) -> Array:
        return np.exp(-cdist(Z, self.centers_, "sqeuclidean") / (2 * self.bandwidth_**2))

    def transform(self, Z: Array) -> Array:
        return self._kernel(Z) @ self.whiten_


class Observables(TransformerMixin, BaseEstimator):
    """A user's function from an (m, d) array to an (m, N) array."""

    def __init__(self, function: Callable[[Array], Any]):
        self.function = function

    def fit(self, Z: Array, y: Any = None) -> Observables:
        return self

    def transform(self, Z: Array) -> Array:
        out = np.asarray(self.function(Z))
        if out.ndim == 1:
            out = out[:, None]
        if out.ndim != 2 or len(out) != len(Z):
            raise ValueError(f"the dictionary must give one row per sample: {Z.shape} went in, {out.shape} came out")
        return out

    def __sklearn_is_fitted__(self) -> bool:
        return True


class Lift(TransformerMixin, BaseEstimator):
    """A torch module (a SIM's trained mu, say), evaluated without gradients and in its own dtype."""

    def __init__(self, module: Any, batch: int = 65536):
        self.module = module
        self.batch = batch

    def fit(self, Z: Array, y: Any = None) -> Lift:
        return self

    def transform(self, Z: Array) -> Array:
        import torch

        like = next(iter(self.module.parameters()), None) if hasattr(self.module, "parameters") else None
        dtype, device = (torch.float64, "cpu") if like is None else (like.dtype, like.device)
        training = getattr(self.module, "training", False)
        if training:
            self.module.eval()
        try:
            with torch.no_grad():
                parts = [
                    self.module(torch.as_tensor(Z[i : i + self.batch], dtype=dtype, device=device))
                    for i in range(0, len(Z), self.batch)
                ]
        finally:
            if training:
                self.module.train()
        return torch.cat(parts).flatten(1).double().cpu().numpy()

    def __sklearn_is_fitted__(self) -> bool:
        return True


def as_dictionary(dictionary: Any, dims: int) -> Any:
    """For None monomials of degree 2 or, where these are too many, the states; modules and functions are wrapped."""
    if dictionary is None:
        return Monomials() if comb(dims + 2, 2) <= MOST_BY_DEFAULT else Identity()
    if hasattr(dictionary, "fit") and hasattr(dictionary, "transform"):
        return dictionary
    if hasattr(dictionary, "state_dict"):
        return Lift(dictionary)
    if callable(dictionary):
        return Observables(dictionary)
    raise ValueError(f"a dictionary is a transformer, a torch module or a function; got {type(dictionary).__name__}")
