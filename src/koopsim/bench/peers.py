"""Other people's libraries on the same work: torchdeq for fixed points, deeptime and PyDMD for Koopman matrices.

A peer that is not installed is left out, and said so (`pip install 'koopsim[bench]'`).
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, Timing, measure
from koopsim.bench.training import Stepping, copy_stepping
from koopsim.errors import KoopsimError
from koopsim.implicit.transformer import TransformerDEQ

MAX_STEPS = 60  # enough for both to get below the tolerance
TOLERANCE = 1e-3
EXTRA = "pip install 'koopsim[bench]'"


class TorchDEQ(nn.Module):
    """torchdeq in the place of our `DEQ`: exact implicit gradient, the same relative residual to stop at."""

    def __init__(self, cell: nn.Module, solver: str, max_steps: int, tol: float):
        super().__init__()
        import torchdeq

        self.cell = cell
        self.solve = torchdeq.get_deq(
            ift=True, f_solver=solver, b_solver=solver, f_max_iter=max_steps, b_max_iter=max_steps,
            f_tol=tol, b_tol=tol, f_stop_mode="rel", b_stop_mode="rel",
        )  # fmt: skip

    def forward(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, Any]:
        f: Callable[[Tensor], Tensor] = self.cell.prepare(x)  # pyright: ignore  the cell's own fast form, for both
        (z,), info = self.solve(f, self.cell.initial(x) if z0 is None else z0)  # pyright: ignore
        return z, info


class PeerModel(TransformerDEQ):
    """The DEQ of copy memory with torchdeq inside."""

    def diagnostics(self) -> dict[str, Tensor]:
        return {}


def solver_rows(setting: Setting) -> list[Comparison]:
    """A training step of the DEQ on copy memory: each of our solvers and its namesake round the same cell."""
    if not find_spec("torchdeq"):
        raise KoopsimError(f"torchdeq is not installed: {EXTRA}.")
    found, batch = [], setting.sizes.solver_batch
    for solver in setting.sizes.solvers:
        sides = {name: solver_stepping(name, solver, setting, batch) for name in ("koopsim", "torchdeq")}
        if setting.capture:
            sides["koopsim, captured"] = solver_stepping("koopsim", solver, setting, batch)
        with in_precision(setting.precision):
            makers: dict[str, Maker] = {n: s.maker(setting, capture=n.endswith("captured")) for n, s in sides.items()}
            timings = measure(makers, setting.device, setting.sizes.turns, {n: s.steps for n, s in sides.items()})
            done = {n: Side(f"{n}, {solver}", timings[n], note=_residual(s)) for n, s in sides.items()}
        work = f"DEQ train step, T={setting.sizes.horizon}, batch {batch}, to {TOLERANCE:g}"
        found += [Comparison("solver", work, done[n], done["torchdeq"]) for n in done if n != "torchdeq"]
    return found


def solver_stepping(name: str, solver: str, setting: Setting, batch: int) -> Stepping:
    """Steps of the trained DEQ with our solver, or with torchdeq's of the same name."""
    model = model_of("copy/deq", setting.device)
    assert isinstance(model, TransformerDEQ)
    deq = model.deq
    deq.solver = deq.backward_solver = solver
    deq.max_steps = deq.backward_max_steps = MAX_STEPS
    deq.tol = deq.backward_tol = TOLERANCE
    deq.captured_steps = (MAX_STEPS, MAX_STEPS)
    if name == "torchdeq":
        theirs = "fixed_point_iter" if solver == "picard" else solver
        model.deq = TorchDEQ(deq.cell, theirs, MAX_STEPS, TOLERANCE)  # pyright: ignore
        model.__class__ = PeerModel
    return copy_stepping(model, setting, batch, setting.sizes.horizon)


@torch.no_grad()
def _residual(stepping: Stepping) -> str:
    """The largest relative residual of a sample at the answer, measured the same way for both."""
    model = stepping.model.train()
    assert isinstance(model, TransformerDEQ)
    kept: list[Tensor] = []
    handle = model.deq.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    z, _ = model.solve(stepping.x[: stepping.batch])
    handle.remove()
    fz = model.deq.cell.prepare(kept[0])(z)  # pyright: ignore
    residual = (fz - z).flatten(1).norm(dim=1) / fz.flatten(1).norm(dim=1)
    return f"residual {float(residual.max()):.1e}"


def edmd_rows(setting: Setting) -> list[Comparison]:
    """A fit that ends with eigenvalues, on a CPU in float64: monomials, or the same lifted pairs for PyDMD."""
    if not find_spec("deeptime") and not find_spec("pydmd"):
        raise KoopsimError(f"Neither deeptime nor pydmd is installed: {EXTRA}.")
    from koopsim.spectral import EDMD, Monomials, Observables

    found, rng = [], np.random.default_rng(0)
    for states, degree, samples in setting.sizes.edmd:
        X = rng.uniform(-1, 1, (samples, states))
        Y = np.tanh(X @ rng.standard_normal((states, states)) * 0.4)
        basis = Monomials(degree).fit(X)
        P, Q = (np.ascontiguousarray(basis.transform(Z)) for Z in (X, Y))
        work = f"EDMD, {states} states, {P.shape[1]} monomials, {samples:,} pairs"

        def ours(X=X, Y=Y, degree=degree) -> None:
            _ = EDMD(Monomials(degree)).fit((X, Y)).eigenvalues_

        def lifted(P=P, Q=Q) -> None:
            _ = EDMD(Observables(_same)).fit((P, Q)).eigenvalues_

        if find_spec("deeptime"):
            found.append(_peers("edmd", work, ours, "deeptime", lambda X=X, Y=Y, k=degree: _deeptime(X, Y, k), setting))
        if find_spec("pydmd"):
            theirs = lambda P=P, Q=Q: _pydmd(P, Q)  # noqa: E731
            found.append(_peers("edmd", f"{work}, lifted before", lifted, "pydmd", theirs, setting))
    return found


def _peers(
    row: str, work: str, ours: Callable[[], None], peer: str, theirs: Callable[[], None], setting: Setting
) -> Comparison:
    makers: dict[str, Maker] = {"koopsim": lambda: ours, peer: lambda: theirs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timings: dict[str, Timing] = measure(makers, torch.device("cpu"), setting.sizes.turns)
    return Comparison(row, work, Side("koopsim", timings["koopsim"]), Side(peer, timings[peer]))


def _same(z: np.ndarray) -> np.ndarray:
    return z


def _deeptime(X: np.ndarray, Y: np.ndarray, degree: int) -> None:
    from deeptime.basis import Monomials  # pyright: ignore
    from deeptime.decomposition import EDMD  # pyright: ignore

    _ = EDMD(Monomials(degree, X.shape[1])).fit((X, Y)).fetch_model().eigenvalues


def _pydmd(P: np.ndarray, Q: np.ndarray) -> None:
    from pydmd import DMD  # pyright: ignore

    _ = DMD(svd_rank=-1, exact=True).fit(P.T, Q.T).eigs
