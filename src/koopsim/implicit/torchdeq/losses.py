"""torchdeq's losses: Jacobian penalty and spectral radius of an evaluation f0 = f(z0), and fixed-point correction.

    jac_reg          || J ||_F^2 / numel(z0) by random vectors           power_method    the leading eigenvector, rho(J)
    fp_correction    sum_k w(n, k) crit(state k),  w  exp  gamma^(n - 1 - k)
                                                      linear  1 - gamma (n - 1 - k) / n + bias
                                                      const  c
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit.penalties import power_iteration, squared_norm


def jac_reg(f0: Tensor, z0: Tensor, vecs: int = 1, create_graph: bool = True) -> Tensor:
    """Hutchinson's estimate of || df/dz ||_F^2 over the number of elements, f0 = f(z0) being recorded from z0."""
    _check_recorded(f0, z0)
    return squared_norm(f0, z0, vecs, create_graph, constant=False)


def power_method(f0: Tensor, z0: Tensor, n_iters: int = 100) -> tuple[Tensor, Tensor]:
    """Where the power iteration on df/dz ends, like z0, and the spectral radius of each sample, (B,).

    A pair of complex eigenvalues is measured too: the radius is the mean growth, not a Rayleigh quotient.
    """
    _check_recorded(f0, z0)
    return power_iteration(f0, z0, n_iters)


def _check_recorded(f0: Tensor, z0: Tensor) -> None:
    if not (f0.requires_grad and z0.requires_grad):
        raise KoopsimError(
            "f0 has no history that leads to z0; expected f0 = f(z0) of a z0 that requires a gradient: "
            "z0 = z.detach().requires_grad_()."
        )


def exponential_weight(n: int, k: int, gamma: float = 0.8) -> float:
    return gamma ** (n - 1 - k)


def linear_weight(n: int, k: int, gamma: float = 0.9, bias: float = 0.0) -> float:
    return 1 - gamma * (n - 1 - k) / n + bias


def constant_weight(n: int, k: int, c: float = 1.0) -> float:
    return c


_weights: dict[str, Callable[..., Any]] = {
    "exp": exponential_weight,
    "linear": linear_weight,
    "const": constant_weight,
}


def register_weight_func(name: str, func: Callable[..., Any]) -> None:
    """Make w(n, k, ...) known to `fp_correction` by a name: the weight of state k of n."""
    if not callable(func):
        raise KoopsimError(f"The weight {name!r} is a {type(func).__name__}; expected a function of (n, k).")
    _weights[name] = func


def fp_correction(
    crit: Callable[..., Tensor],
    args: Sequence[Any],
    weight_func: str = "exp",
    return_loss_values: bool = False,
    **settings: float,
) -> Any:
    """The weighted sum of crit over the states; with `return_loss_values` also a list of the losses themselves.

    Of `args` a list or tuple has an entry for each state, anything else serves them all: crit is called with one of
    each. `settings` are the weight's: gamma, bias, c.
    """
    if weight_func not in _weights:
        raise KoopsimError(f"There is no weight {weight_func!r}.{did_you_mean(str(weight_func), _weights)}")
    weight = _weights[weight_func]
    _check_settings(weight_func, settings)
    columns = [arg if isinstance(arg, list | tuple) else [arg] for arg in args]
    n = max((len(column) for column in columns), default=0)
    if not n or not all(columns):
        raise KoopsimError(f"fp_correction was given lists of {[len(c) for c in columns]}; expected a state or more.")
    losses = [crit(*(column[k % len(column)] for column in columns)) for k in range(n)]
    total: Any = sum(weight(n, k, **settings) * loss for k, loss in enumerate(losses))
    return (total, [loss.item() for loss in losses]) if return_loss_values else total


def _check_settings(name: str, settings: dict[str, float]) -> None:
    parameters = inspect.signature(_weights[name]).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = list(parameters)[2:]
    for setting in settings:
        if setting not in known:
            raise KoopsimError(f"The weight {name!r} has no setting {setting!r}.{did_you_mean(setting, known)}")
