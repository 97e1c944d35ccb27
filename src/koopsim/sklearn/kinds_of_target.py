"""Classes and numbers: what of the contract depends on what is foretold.

classifier   labels of any kind -> 0 .. C-1 -> softmax          regressor   y -> (y - mean) / deviation, d of them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import column_or_1d, validate_data

from koopsim.files.masks import unmasked
from koopsim.sklearn.base import Array, RowEstimator, moments


@dataclass(eq=False, repr=False, kw_only=True)
class RowClassifier(ClassifierMixin, RowEstimator):
    """Foretells one of some classes."""

    class_weight: Any = None
    _classifies: ClassVar[bool] = True

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X (n, d) and their labels y (n,), of any kind."""
        X, y = validate_data(self, unmasked(X), unmasked(y), dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        self._refuse_one_class()
        self._fit(X, y, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more rows: one epoch over them. The first call says all `classes`; the scaling is its rows'."""
        first = not self.__sklearn_is_fitted__()
        X, y = validate_data(self, unmasked(X), unmasked(y), dtype=np.float64, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ValueError("The first call of partial_fit needs classes: those that may come later among them.")
            self.classes_ = unique_labels(classes)
            self._refuse_one_class()
        elif classes is not None and not np.array_equal(self.classes_, unique_labels(classes)):
            raise ValueError(f"classes is {classes!r}; the first call of partial_fit said {self.classes_.tolist()}.")
        self._fit(X, y, sample_weight, further=True)
        return self

    def predict(self, X: Any) -> Array:
        """The likeliest label of each row."""
        likeliest = self._outputs(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> Array:
        """(n, classes): the probability of each."""
        return softmax(self._outputs(X), axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def _refuse_one_class(self) -> None:
        if len(self.classes_) < 2:
            raise ValueError(
                f"All labels are one class, {self.classes_.tolist()[0]!r}; a classifier needs at least two."
            )

    def _targets(self, y: Any, weights: Array | None, reset: bool) -> tuple[Array, int]:
        y = column_or_1d(y, warn=True)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(
                f"y has the label {strange.tolist()[0]!r}, which is none of classes: {self.classes_.tolist()}."
            )
        return np.searchsorted(self.classes_, y), len(self.classes_)

    def _weights(self, y: Any, given: Any, X: Array) -> Array | None:
        own = super()._weights(y, given, X)
        if self.class_weight is None:
            return own
        by_class = compute_sample_weight(self.class_weight, y)
        return by_class if own is None else own * by_class


class RowRegressor(RegressorMixin, RowEstimator):
    """Foretells one number, or several."""

    _classifies: ClassVar[bool] = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X (n, d) and numbers y, (n,) or (n, outputs)."""
        X, y = validate_data(self, unmasked(X), unmasked(y), dtype=np.float64, multi_output=True, y_numeric=True)
        self._fit(X, y, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from more rows: one epoch over them. The scaling is that of the first call's rows."""
        first = not self.__sklearn_is_fitted__()
        X, y = unmasked(X), unmasked(y)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first)
        self._fit(X, y, sample_weight, further=True)
        return self

    def predict(self, X: Any) -> Array:
        """(n,), or (n, outputs) where y had that shape."""
        scaled = self._outputs(X)
        y = scaled * self._y_deviation + self._y_mean
        return y[:, 0] if self._flat else y

    def _targets(self, y: Any, weights: Array | None, reset: bool) -> tuple[Array, int]:
        y = np.asarray(y, np.float64)
        wide = y[:, None] if y.ndim == 1 else y
        if reset:
            self._flat = y.ndim == 1
            self._y_mean, self._y_deviation = moments(wide, weights)
        elif wide.shape[1] != len(self._y_mean):
            raise ValueError(f"y has {wide.shape[1]} outputs; the first call of partial_fit had {len(self._y_mean)}.")
        return ((wide - self._y_mean) / self._y_deviation).astype(np.float32), wide.shape[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
