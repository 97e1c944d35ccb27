"""Equilibrium models of tables on the same contract: what a SIM is measured against.

DEQ, monDEQ   z = relu(W z + U x + b), y = h(z)          implicit/rows.py
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from koopsim.config import ModelConfig, SolverConfig
from koopsim.implicit.rows import RowDEQConfig, RowMonDEQConfig
from koopsim.sklearn.base import RowEstimator
from koopsim.sklearn.kinds_of_target import RowClassifier, RowRegressor

CLOSE, LONG = 1e-10, 3000  # a tolerance in float64, and the steps it may take


class _Equilibrium(RowEstimator):
    width: int
    tolerance: float
    max_steps: int

    @staticmethod
    def _state(model: Any, x: Tensor) -> Tensor:
        return model.solve(x)[0]


class _RowDEQ(_Equilibrium):
    solver: str
    gradient: Any

    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        solver = SolverConfig(self.solver, self.max_steps, self.tolerance)
        return RowDEQConfig(inputs, self.width, outputs, solver, self.gradient)


class DEQClassifier(RowClassifier, _RowDEQ):
    """A deep equilibrium model that foretells classes.

    Parameters
    ----------
    width : of the state;  solver, max_steps, tolerance : how its fixed point is found, a relative residual
    gradient : "implicit", "jacobian-free", "phantom" or "neumann"
    Others as of `SIMClassifier`.
    """

    def __init__(
        self,
        width: int = 64,
        *,
        solver: str = "anderson",
        max_steps: int = 40,
        tolerance: float = 1e-3,
        gradient: str = "implicit",
        epochs: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 8e-3,
        weight_decay: float = 2.0,
        average: float = 0.9,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        class_weight: Any = None,
        scale: bool = True,
        device: str = "cpu",
        random_state: Any = None,
    ):
        self.width = width
        self.solver = solver
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.gradient = gradient
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.average = average
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.class_weight = class_weight
        self.scale = scale
        self.device = device
        self.random_state = random_state


class DEQRegressor(RowRegressor, _RowDEQ):
    """A deep equilibrium model that foretells numbers. Parameters as of `DEQClassifier`."""

    def __init__(
        self,
        width: int = 64,
        *,
        solver: str = "anderson",
        max_steps: int = 40,
        tolerance: float = 1e-3,
        gradient: str = "implicit",
        epochs: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 8e-3,
        weight_decay: float = 2.0,
        average: float = 0.9,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        scale: bool = True,
        device: str = "cpu",
        random_state: Any = None,
    ):
        self.width = width
        self.solver = solver
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.gradient = gradient
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.average = average
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.scale = scale
        self.device = device
        self.random_state = random_state


class MonDEQClassifier(RowClassifier, _Equilibrium):
    """A monotone operator equilibrium network that foretells classes.

    Parameters
    ----------
    width : of the state;  monotonicity : m, sym(I - W) >= m I;  max_steps, tolerance : of the operator splitting
    Others as of `SIMClassifier`.
    """

    monotonicity: float

    def __init__(
        self,
        width: int = 64,
        *,
        monotonicity: float = 1.0,
        max_steps: int = 300,
        tolerance: float = 1e-3,
        epochs: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 8e-3,
        weight_decay: float = 2.0,
        average: float = 0.9,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        class_weight: Any = None,
        scale: bool = True,
        device: str = "cpu",
        random_state: Any = None,
    ):
        self.width = width
        self.monotonicity = monotonicity
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.average = average
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.class_weight = class_weight
        self.scale = scale
        self.device = device
        self.random_state = random_state

    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        return RowMonDEQConfig(inputs, self.width, outputs, self.monotonicity, self.tolerance, self.max_steps)

    def _exact(self, model: Any) -> Any:
        """A batch is solved until its last row is close enough; so close that its company does not matter."""
        model.tol, model.max_steps = min(model.tol, CLOSE), max(model.max_steps, LONG)
        return model
