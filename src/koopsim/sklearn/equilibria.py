"""Equilibrium models of tables on the same contract: what a SIM is measured against.

DEQ, monDEQ   z = relu(W z + U x + b), y = h(z)          implicit/rows.py
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from torch import Tensor

from koopsim.config import ModelConfig, SolverConfig
from koopsim.implicit.rows import RowDEQConfig, RowMonDEQConfig
from koopsim.sklearn.base import RowEstimator
from koopsim.sklearn.kinds_of_target import RowClassifier, RowRegressor

CLOSE, LONG = 1e-10, 3000  # a tolerance in float64, and the steps it may take


@dataclass(eq=False, repr=False)
class _Equilibrium(RowEstimator):
    width: int = 64
    _: KW_ONLY
    tolerance: float = 1e-3
    max_steps: int = 40

    @staticmethod
    def _state(model: Any, x: Tensor) -> Tensor:
        return model.solve(x)[0]


@dataclass(eq=False, repr=False, kw_only=True)
class _RowDEQ(_Equilibrium):
    solver: str = "anderson"
    gradient: Literal["implicit", "jacobian-free", "phantom", "neumann"] = "implicit"

    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        solver = SolverConfig(self.solver, self.max_steps, self.tolerance)
        return RowDEQConfig(inputs, self.width, outputs, solver, self.gradient)


@dataclass(eq=False, repr=False)
class DEQClassifier(RowClassifier, _RowDEQ):
    """A deep equilibrium model that foretells classes.

    Parameters
    ----------
    width : of the state;  solver, max_steps, tolerance : how its fixed point is found, a relative residual
    gradient : "implicit", "jacobian-free", "phantom" or "neumann"
    Others as of `SIMClassifier`.
    """


@dataclass(eq=False, repr=False)
class DEQRegressor(RowRegressor, _RowDEQ):
    """A deep equilibrium model that foretells numbers. Parameters as of `DEQClassifier`."""


@dataclass(eq=False, repr=False, kw_only=True)
class MonDEQClassifier(RowClassifier, _Equilibrium):
    """A monotone operator equilibrium network that foretells classes.

    Parameters
    ----------
    width : of the state;  monotonicity : m, sym(I - W) >= m I;  max_steps, tolerance : of the operator splitting
    Others as of `SIMClassifier`.
    """

    monotonicity: float = 1.0
    max_steps: int = 300

    def _config(self, inputs: int, outputs: int) -> ModelConfig:
        return RowMonDEQConfig(inputs, self.width, outputs, self.monotonicity, self.tolerance, self.max_steps)

    def _exact(self, model: Any) -> Any:
        """A batch is solved until its last row is close enough; so close that its company does not matter."""
        model.tol, model.max_steps = min(model.tol, CLOSE), max(model.max_steps, LONG)
        return model
