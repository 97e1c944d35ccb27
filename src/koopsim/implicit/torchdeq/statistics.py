"""How a solve went, in torchdeq's form: a dict of tensors, a number for each sample.

    abs_lowest   || f(z) - z ||                        of the state that is returned, all its parts together
    rel_lowest   || f(z) - z || / (|| f(z) || + eps)
    nstep        steps until the sample was done
    sradius      rho(df/dz), where it was asked for; else [-1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from koopsim.implicit.info import Info
from koopsim.implicit.iteration import EPS, Tolerance
from koopsim.implicit.solvers import Solver, name_of


class Statistics(dict[str, Tensor]):
    """abs_lowest, rel_lowest, nstep, sradius."""

    def __missing__(self, key: str) -> Tensor:
        kept = f"There is no {key!r} here: kept are {', '.join(self)}."
        if key in ("abs_trace", "rel_trace"):
            kept += " Residuals on the way are seen by a norm of your own: koopsim.implicit.Tolerance(value, norm)."
        raise KeyError(kept)


def statistics(z: Tensor, fz: Tensor, info: Info) -> Statistics:
    size = (len(z), z[:1].numel())
    z, fz = z.detach().reshape(size), fz.detach().reshape(size).to(z.dtype)
    norm = torch.linalg.vector_norm(fz - z, dim=1)
    return Statistics(
        abs_lowest=norm,
        rel_lowest=norm / (torch.linalg.vector_norm(fz, dim=1) + EPS),
        nstep=info.steps.to(norm.dtype),
        sradius=norm.new_full((1,), -1),
    )


def telling(solver: Solver, writer: Callable[[Statistics], Any]) -> Solver:
    """The same solver, which tells `writer` how it went: of a backward solve, dL/dz being scaled to size 1."""

    def told(f: Callable[[Tensor], Tensor], z0: Tensor, *, max_steps: int, tol: Tolerance) -> tuple[Tensor, Info]:
        y, info = solver(f, z0, max_steps=max_steps, tol=tol)
        writer(statistics(y, f(y), info))
        return y, info

    told.__name__ = name_of(solver)
    return told
