"""Other people's libraries on the same work: torchdeq for fixed points, deeptime and PyDMD for Koopman matrices.

A peer that is not installed is left out, and said so (`pip install 'koopsim[bench]'`).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, Timing, measure
from koopsim.bench.training import Stepping, copy_stepping
from koopsim.errors import KoopsimError
from koopsim.implicit.deq import DEQ, Backward
from koopsim.implicit.transformer import TransformerDEQ

MAX_STEPS = 60  # enough for both to get below the tolerance
TOLERANCE = 1e-3
FINEST = 1e-5  # a residual that float32 still resolves
STEPS, TURNS = 4, 5  # a turn of a solver's row on CUDA, and the most turns: torchdeq's Anderson takes all its steps
EXTRA = "pip install 'koopsim[bench]'"


class TorchDEQ(nn.Module):
    """torchdeq in the place of our `DEQ`: exact implicit gradient, the same relative residual to stop at."""

    def __init__(self, cell: nn.Module, solver: str, max_steps: int, tol: tuple[float, ...]):
        super().__init__()
        import torchdeq

        self.cell = cell
        self.solve = torchdeq.get_deq(
            ift=True, f_solver=solver, b_solver=solver, f_max_iter=max_steps, b_max_iter=max_steps,
            f_tol=tol[0], b_tol=tol[1], f_stop_mode="rel", b_stop_mode="rel",
        )  # fmt: skip

    def forward(self, x: Tensor, *, z0: Tensor | None = None) -> tuple[Tensor, Any]:
        f: Callable[[Tensor], Tensor] = self.cell.prepare(x)  # pyright: ignore  the cell's own fast form, for both
        (z,), info = self.solve(f, self.cell.initial(x) if z0 is None else z0)  # pyright: ignore
        return z, info


class PeerModel(TransformerDEQ):
    """The DEQ of copy memory with torchdeq inside."""

    def diagnostics(self) -> dict[str, Tensor]:
        return {}


def solver_rows(setting: Setting) -> list[Comparison]:
    """A training step of the DEQ on copy memory: each of our solvers and its namesake round the same cell.

    torchdeq returns points that it evaluated the cell at once or twice more after the test of the tolerance. Ours
    is therefore asked for the residuals that torchdeq's answers really have, where those are below the tolerance.
    """
    if not find_spec("torchdeq"):
        raise KoopsimError(f"torchdeq is not installed: {EXTRA}.")
    found, batch, scale = [], setting.sizes.solver_batch, loss_scale(setting)
    for solver in setting.sizes.solvers:
        with in_precision(setting.precision):
            theirs = solver_stepping("torchdeq", solver, setting, batch, scale)
            reached = residuals(theirs, setting.autocast)
            tol = tuple(min(TOLERANCE, max(FINEST, r)) for r in reached)
            sides = {"koopsim": solver_stepping("koopsim", solver, setting, batch, scale, tol), "torchdeq": theirs}
            if setting.capture:
                sides["koopsim, captured"] = solver_stepping("koopsim", solver, setting, batch, scale, tol)
            makers: dict[str, Maker] = {n: s.maker(setting, capture=n.endswith("captured")) for n, s in sides.items()}
            turns = min(TURNS, setting.sizes.turns)
            timings = measure(makers, setting.device, turns, {n: s.steps for n, s in sides.items()})
            notes = {"koopsim": residuals(sides["koopsim"], setting.autocast), "torchdeq": reached}
        done = {n: Side(f"{n}, {solver}", timings[n], note=_note(*notes[n.split(",")[0]])) for n in sides}
        work = f"DEQ train step, T={setting.sizes.horizon}, batch {batch}, to {TOLERANCE:g} or torchdeq's residual"
        found += [Comparison("solver", work, done[n], done["torchdeq"]) for n in done if n != "torchdeq"]
    return found


def solver_stepping(
    name: str,
    solver: str,
    setting: Setting,
    batch: int,
    scale: float = 1.0,
    tol: tuple[float, ...] = (TOLERANCE, TOLERANCE),
) -> Stepping:
    """Steps of the trained DEQ with our solver, or with torchdeq's of the same name; the loss times `scale`."""
    model = model_of("copy/deq", setting.device)
    assert isinstance(model, TransformerDEQ)
    deq = model.deq
    model.deq = deq = DEQ(deq.cell, solver, MAX_STEPS, tol[0], backward=Backward(tol=tol[1]))
    if name == "torchdeq":
        theirs = "fixed_point_iter" if solver == "picard" else solver
        model.deq = TorchDEQ(deq.cell, theirs, MAX_STEPS, tol)  # pyright: ignore
        model.__class__ = PeerModel
    stepping = copy_stepping(model, setting, batch, setting.sizes.horizon)
    plain, rows = stepping.loss, batch * min(STEPS, stepping.steps)
    return replace(stepping, loss=lambda a, b: scale * plain(a, b), x=stepping.x[:rows], y=stepping.y[:rows])


def loss_scale(setting: Setting) -> float:
    """What makes the gradient at a fixed point of size 1, as a power of two.

    A trained model's is 1e-10. torchdeq's residual is relative to a norm plus 1e-9, and its Anderson has an absolute
    ridge: neither means anything at that size. Ours scales each sample itself.
    """
    stepping = solver_stepping("koopsim", "broyden", setting, setting.sizes.solver_batch)
    model = stepping.model.train()
    assert isinstance(model, TransformerDEQ)
    with torch.no_grad():
        z, _ = model.solve(stepping.x[: stepping.batch])
    (g,) = torch.autograd.grad(_loss(stepping, z.requires_grad_(), 0), z)
    size = float(g.flatten(1).norm(dim=1).mean())
    return 2.0 ** round(-math.log2(size)) if 0 < size < math.inf else 1.0


def _loss(stepping: Stepping, z: Tensor, first: int) -> Tensor:
    """The loss at states z of the batch that begins with sample `first`."""
    model = stepping.model
    assert isinstance(model, TransformerDEQ)
    logits = F.linear(z, model.embedding, model.output_bias)
    return stepping.loss(logits, stepping.y[first : first + stepping.batch])


class _Shifted(nn.Module):
    """f + p with p = 0: the gradient in p is y, the answer to y = J^T y + g, whoever solved it."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell

    def initial(self, u: Tensor) -> Tensor:
        return self.cell.initial(u)  # pyright: ignore

    def prepare(self, u: Tensor) -> Callable[[Tensor], Tensor]:
        self.shift = self.initial(u).requires_grad_()
        self.f: Callable[[Tensor], Tensor] = self.cell.prepare(u)  # pyright: ignore
        return lambda z: self.f(z) + self.shift


def residuals(stepping: Stepping, autocast: torch.dtype | None = None) -> tuple[float, float]:
    """The largest relative residual of a sample's answer, forward and backward, measured the same way for both."""
    model, worst = stepping.model.train(), torch.zeros(2, device=stepping.x.device)
    assert isinstance(model, TransformerDEQ)
    cell = model.deq.cell
    for first in range(0, len(stepping.x), stepping.batch):
        shifted = model.deq.cell = _Shifted(cell)  # pyright: ignore
        with torch.autocast(stepping.x.device.type, dtype=autocast, enabled=autocast is not None):
            try:
                z, _ = model.solve(stepping.x[first : first + stepping.batch])
                loss = _loss(stepping, z, first)
            finally:
                model.deq.cell = cell
            at = z.detach().requires_grad_()
            fz = shifted.f(at)
        g, y = torch.autograd.grad(loss, [z, shifted.shift])
        (pulled,) = torch.autograd.grad(fz, at, y)
        forward, backward = _relative(fz.detach() - at.detach(), fz.detach()), _relative(pulled + g - y, y)
        worst = torch.maximum(worst, torch.stack([forward, backward]))
    forward, backward = worst.tolist()
    return forward, backward


def _relative(error: Tensor, size: Tensor) -> Tensor:
    return (error.flatten(1).norm(dim=1) / size.flatten(1).norm(dim=1)).max()


def _note(forward: float, backward: float) -> str:
    return f"residual {forward:.1e}, backward {backward:.1e}"


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
