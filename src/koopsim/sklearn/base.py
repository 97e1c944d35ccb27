"""scikit-learn's contract over the engine: what all estimators of this room have in common.

    X -> (X - mean) / deviation -> model -> y          float64 outside, float32 inside

A subclass says its model (`_config`) and is a `RowClassifier` or a `RowRegressor`. A fitted one holds its model in
`model_`; pickling writes that as safetensors and its configuration as JSON values, never as code.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from koopsim.config import ModelConfig, Recipe, from_dict, to_dict
from koopsim.datasets.row_splits import TEST, split_rows
from koopsim.engine.drive import pick_device
from koopsim.engine.threads import few_threads
from koopsim.errors import KoopsimError
from koopsim.files.masks import unmasked
from koopsim.files.tensors import require_match, tensors_bytes, tensors_of
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.sklearn.fitted import HeldOut, Learnt, learn, untrained_model
from koopsim.tasks.base import Samples
from koopsim.tasks.row_losses import row_loss, row_targets
from koopsim.tasks.table import ENOUGH, batch_for

Array = NDArray[Any]
ROWS = 65536  # that are answered at a time
STILL = 1e-12  # of the largest value: so small a deviation is of what never changes
LARGEST_SEED = 2**31 - 1


@dataclass(eq=False, repr=False, kw_only=True)  # compared and shown as scikit-learn's estimators are
class RowEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Fits a model of rows of numbers. Not used by itself.

    The fields of these dataclasses are an estimator's parameters, each said once, by the class that reads it.
    """

    epochs: int = 100
    batch_size: int | str = "auto"
    learning_rate: float = 8e-3
    weight_decay: float = 2.0
    average: float = 0.9
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    scale: bool = True
    device: str = "cpu"
    random_state: Any = None
    _classifies: ClassVar[bool]

    @abstractmethod
    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        """The model for rows of so many numbers, with so many answers."""

    def _settled(self, config: ModelConfig, x: Tensor, seed: int) -> ModelConfig:
        """The model with what it takes from the data, such as a bandwidth."""
        return config

    @abstractmethod
    def _targets(self, y: Any, weights: Array | None, reset: bool) -> tuple[Array, int]:
        """(n,) classes or (n, d) scaled numbers, and how many answers a model of them has."""

    def _weights(self, y: Any, given: Any, X: Array) -> Array | None:
        """(n,): the weight of each row; None where all are equal."""
        return None if given is None else _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)

    # ------------------------------------------------------------ fit

    def _fit(self, X: Array, y: Any, sample_weight: Any, further: bool = False) -> None:
        """Anew, or `further`: one epoch more, from where it is. What cannot be is a ValueError, as of scikit-learn."""
        try:
            self._learn(X, y, sample_weight, further)
        except KoopsimError as error:
            raise ValueError(str(error)) from error

    def _learn(self, X: Array, y: Any, sample_weight: Any, further: bool) -> None:
        recipe = self._recipe(len(X), further)
        device = pick_device(self.device)
        going_on = further and hasattr(self, "model_")
        if not going_on:
            self._seeds = check_random_state(self.random_state).randint(LARGEST_SEED, size=2)
        weights = self._weights(y, sample_weight, X)
        targets, outputs = self._targets(y, weights, not going_on)
        if not going_on:
            self._scale_by(X, weights)
        x = self._inputs(X, device)
        if not going_on:
            config = self._settled(self._config(X.shape[1], outputs), x, int(self._seeds[0]))
            self._learnt = Learnt(untrained_model(config, int(self._seeds[0]), device))
            self._model_config = config
        w = None if weights is None else torch.as_tensor(weights / weights.mean(), dtype=torch.float32, device=device)
        t = row_targets(torch.as_tensor(targets, device=device), w)
        loss = row_loss(self._classifies, w is not None)
        patience, kept = None, slice(None)
        if not further and self._holds_out(len(X)):
            held, kept = self._held_out(targets)
            patience = HeldOut(x[held], t[held], self.n_iter_no_change, self.tol)
        with few_threads(recipe.batch_size * count_parameters(self._learnt.model)):
            self._learnt = learn(self._learnt, Samples(x[kept], t[kept]), loss, recipe, int(self._seeds[1]), patience)
        self._learnt.model.to("cpu")
        self.n_iter_, self.loss_curve_ = len(self._learnt.losses), self._learnt.losses
        if self._learnt.held_out:
            self.validation_curve_ = self._learnt.held_out

    def _recipe(self, rows: int, further: bool) -> Recipe:
        self._check_parameters()
        size = batch_for(rows) if self.batch_size == "auto" else int(self.batch_size)
        return Recipe(
            size,
            1 if further else self.epochs,
            self.learning_rate,
            "constant" if further else "cosine",
            weight_decay=self.weight_decay,
            average=0.0 if further else self.average,
        )

    def _check_parameters(self) -> None:
        def between(name: str, kind: type, low: float, high: float = math.inf) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value < high:  # pyright: ignore
                raise ValueError(f"{name} is {value!r}; expected a number of at least {low:g} and below {high:g}.")

        for name in ("epochs", "n_iter_no_change"):
            between(name, Integral, 1)
        if self.batch_size != "auto":
            between("batch_size", Integral, 1)
        if self.early_stopping not in (True, False, "auto"):
            raise ValueError(f"early_stopping is {self.early_stopping!r}; expected True, False or 'auto'.")
        for name in ("weight_decay", "tol"):
            between(name, Real, 0)
        between("learning_rate", Real, 1e-12)
        between("average", Real, 0, 1)
        between("validation_fraction", Real, 1e-6, 1)

    def _holds_out(self, rows: int) -> bool:
        return rows >= ENOUGH if self.early_stopping == "auto" else bool(self.early_stopping)

    def _held_out(self, targets: Array) -> tuple[Array, Array]:
        """The rows that are not learnt, and those that are."""
        n = len(targets)
        if n < 4:
            raise ValueError(f"early_stopping holds rows out, and there is n_samples={n}; give more, or leave it off.")
        marks = split_rows(n, 0.0, self.validation_fraction, int(self._seeds[1]), targets if self._classifies else None)
        return np.flatnonzero(marks == TEST), np.flatnonzero(marks != TEST)

    # ------------------------------------------------------------ numbers in, numbers out

    def _scale_by(self, X: Array, weights: Array | None) -> None:
        """Mean and deviation of each column, over rows that count; 0 and 1 where nothing is to be scaled."""
        self._mean, self._deviation = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.scale:
            self._mean, self._deviation = moments(X, weights)

    def _inputs(self, X: Array, device: torch.device) -> Tensor:
        return torch.as_tensor((X - self._mean) / self._deviation, dtype=torch.float32).to(device)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self, "_learnt")
        return validate_data(self, unmasked(X), reset=False, dtype=np.float64)  # pyright: ignore[reportReturnType]

    def _outputs(self, X: Any) -> Array:
        """(n, outputs)."""
        return self._answers(X, lambda model, x: model(x))

    def transform(self, X: Any) -> Array:
        """(n, H): the state z of each row, which stands in for the equilibrium; of a DEQ it is the equilibrium."""
        return self._answers(X, self._state)

    @torch.no_grad()
    def _answers(self, X: Any, ask: Callable[[Any, Tensor], Tensor]) -> Array:
        """In float64, so that a row's answer does not depend on which others were asked with it."""
        x = (self._checked(X) - self._mean) / self._deviation
        model = self._exact(copy.deepcopy(self.model_).double())
        with few_threads(min(len(x), ROWS) * count_parameters(model)):
            return torch.cat([ask(model, piece) for piece in torch.from_numpy(x).split(ROWS)]).numpy()

    def _exact(self, model: Any) -> Any:
        """The model as it is asked; one with a solver may solve more closely than it was trained."""
        return model

    @staticmethod
    @abstractmethod
    def _state(model: Any, x: Tensor) -> Tensor:
        """What the model reads its answer off."""

    @property
    def model_(self) -> Any:
        """The trained module, float32, on the processor, in eval mode; it takes scaled rows."""
        check_is_fitted(self, "_learnt")
        return self._learnt.model

    @property
    def _n_features_out(self) -> int:
        """How many numbers a state has."""
        with torch.no_grad():
            return self._state(self.model_, torch.zeros(1, len(self._mean))).shape[1]

    # ------------------------------------------------------------ files

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().__getstate__()}  # pyright: ignore[reportGeneralTypeIssues]
        learnt: Learnt | None = state.pop("_learnt", None)
        if learnt is not None:
            tensors = {f"model.{name}": t for name, t in learnt.model.state_dict().items()}
            tensors |= {n: t for n, t in (("mean", learnt.mean), ("square", learnt.square)) if t is not None}
            about = {"steps": learnt.steps, "losses": learnt.losses, "held_out": learnt.held_out}
            state["_tensors"] = tensors_bytes(tensors, {"learnt": about})
            state["_model_config"] = to_dict(state["_model_config"])
            state["_about"] = about
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        weights, about = state.pop("_tensors", None), state.pop("_about", None)
        if weights is not None:
            config = from_dict(ModelConfig, state["_model_config"], "a pickled estimator")
            (tensors, _), model = tensors_of(weights, "a pickled estimator"), build(config)
            own = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
            require_match(model.state_dict(), own, "a pickled estimator", "model of another kind")
            model.load_state_dict(own)
            state["_model_config"] = config
            moments = tensors.get("mean"), tensors.get("square")
            state["_learnt"] = Learnt(model.eval(), about["steps"], *moments, about["losses"], about["held_out"])
        super().__setstate__(state)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learnt")


def moments(values: Array, weights: Array | None) -> tuple[Array, Array]:
    """Mean and deviation of each column over rows that count; a deviation of 1 where nothing changes."""
    mean = np.average(values, axis=0, weights=weights)
    spread = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
    return mean, np.where(spread > STILL * np.abs(values).max(axis=0), spread, 1.0)
