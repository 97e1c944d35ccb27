"""torchdeq's names of solvers and of their settings, and which of ours they are.

    fixed_point_iter            picard, tau its damping
    simple_fixed_point_iter     the same to the last step, whatever the residual
    anderson                    anderson, m its memory, tau its mixing
    broyden                     broyden, LBFGS_thres its memory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit.info import Info
from koopsim.implicit.iteration import Map, Tolerance, tolerance
from koopsim.implicit.solvers import Solver, anderson, broyden, picard, solver_named
from koopsim.registry import SOLVERS


def picard_to_the_end(
    f: Map, z0: Tensor, *, max_steps: int, tol: float | Tolerance, damping: float = 1.0
) -> tuple[Tensor, Info]:
    """All of `max_steps` plain steps; the tolerance says only whether they were enough."""
    asked = tolerance(tol)
    nothing = replace(asked, value=torch.finfo(z0.dtype).tiny)
    z, info = picard(f, z0, max_steps=max_steps, tol=nothing, damping=damping)
    return z, replace(info, converged=info.residuals < asked.value)


THEIRS: dict[str, Solver] = {
    "fixed_point_iter": picard,
    "simple_fixed_point_iter": picard_to_the_end,
    "anderson": anderson,
    "broyden": broyden,
}
SETTINGS: dict[str, dict[str, str]] = {
    "fixed_point_iter": {"tau": "damping"},
    "simple_fixed_point_iter": {"tau": "damping"},
    "anderson": {"tau": "mixing", "m": "memory"},
    "broyden": {"LBFGS_thres": "memory"},
}
INSTEAD = {
    "lam": "the ridge is relative to the residuals here: f_solver=partial(koopsim.implicit.anderson, ridge=...)",
    "ls": "there is no line search: f_solver='newton' goes back from a step that is too long",
    "return_final": "the best point is returned: f_solver='simple_fixed_point_iter' takes every step",
    "tol": "it is get_deq's: f_tol",
    "stop_mode": "it is get_deq's: f_stop_mode",
    "indexing": "it is get_deq's",
}


def solver_of(solver: str | Solver, settings: Mapping[str, Any] | None = None) -> Solver:
    """The function that torchdeq's name, ours, or a function stands for, with torchdeq's `solver_kwargs`."""
    if isinstance(solver, str) and solver not in THEIRS and solver not in SOLVERS:
        raise KoopsimError(f"There is no solver {solver!r}.{did_you_mean(solver, [*THEIRS, *SOLVERS])}")
    known = SETTINGS.get(solver, {}) if isinstance(solver, str) else {}
    ours: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        if name == "f_max_iter" or (name in ("ls", "return_final") and not value):
            continue
        if name in INSTEAD:
            raise KoopsimError(f"solver_kwargs has {name}={value!r}, which is not taken: {INSTEAD[name]}.")
        if name not in known:
            raise KoopsimError(f"{solver} has no setting {name!r}.{did_you_mean(name, ['f_max_iter', *known])}")
        ours[known[name]] = value
    found = THEIRS[solver] if isinstance(solver, str) and solver in THEIRS else solver_named(solver)
    return partial(found, **ours) if ours else found
