"""torchdeq on the same work: a training step of equilibrium models, each of our solvers beside its namesake."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, measure
from koopsim.bench.training import Stepping, copy_stepping, image_of, image_stepping, steps_of
from koopsim.errors import KoopsimError
from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ, Backward
from koopsim.implicit.iteration import EPS
from koopsim.implicit.state import leaves
from koopsim.presets import PRESETS

MAX_STEPS = 60  # enough for both to get below the tolerance
TOLERANCE = 1e-3
FINEST = 1e-5  # a residual that float32 still resolves
SLACK = 1.02  # the same iterate has the same residual up to rounding
OWN_WIDTH = 128
TURNS = 5  # at most, of a solver's row on CUDA: torchdeq's Anderson takes all its steps
EXTRA = "pip install 'koopsim[bench]'"


class TorchDEQ(nn.Module):
    """torchdeq in the place of our `DEQ`: exact implicit gradient, the same relative residual to stop at."""

    limits = captured_steps = (MAX_STEPS, MAX_STEPS)

    def __init__(self, cell: nn.Module, solver: str, tol: tuple[float, ...]):
        super().__init__()
        import torchdeq

        self.cell, name = cell, "fixed_point_iter" if solver == "picard" else solver
        self.solve = torchdeq.get_deq(
            ift=True, f_solver=name, b_solver=name, f_max_iter=MAX_STEPS, b_max_iter=MAX_STEPS,
            f_tol=tol[0], b_tol=tol[1], f_stop_mode="rel", b_stop_mode="rel",
        )  # fmt: skip

    def forward(self, *inputs: Tensor, z0: Any = None) -> tuple[Any, Any]:
        f = _in_this_precision(_map(self.cell, inputs), inputs[0].device.type)
        z0 = self.cell.initial(*inputs) if z0 is None else z0  # pyright: ignore
        if isinstance(z0, Tensor):
            (z,), _ = self.solve(f, z0)
            return z, None
        (z, *_), _ = self.solve(lambda *z: f(z), z0)
        return z, None


def _in_this_precision(f: Callable[[Any], Any], kind: str) -> Callable[[Any], Any]:
    """f under the autocast of now whenever it is called (torchdeq does, in the backward pass), as precise as z."""
    if not torch.is_autocast_enabled(kind):
        return f
    dtype = torch.get_autocast_dtype(kind)

    def same(z: Any) -> Any:
        with torch.autocast(kind, dtype=dtype):
            fz = f(z)
        if isinstance(z, Tensor):
            return fz.to(z.dtype)
        return tuple(part.to(own.dtype) for part, own in zip(fz, z, strict=True))

    return same


class OwnCell(nn.Module):
    """A cell as a user writes one, z -> tanh(W' tanh(W z + b) + x + b'), nothing prepared; it takes some 20 steps."""

    def __init__(self, width: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        for layer in (self.inner, self.outer):
            nn.init.orthogonal_(layer.weight)

    def initial(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.outer(torch.tanh(self.inner(z))) + x)


class OwnModel(EquilibriumModel):
    """(B, width) -> (B, 10) through the fixed point of an `OwnCell`."""

    def __init__(self, width: int):
        super().__init__()
        self.deq, self.head = DEQ(OwnCell(width)), nn.Linear(width, 10)

    def solve(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.deq(x, z0=z0)

    def read(self, z: Tensor) -> Tensor:
        return self.head(z)


WorkSteps = Callable[[Setting, nn.Module | None], Stepping]


def _copy_steps(setting: Setting, model: nn.Module | None = None) -> Stepping:
    model = model or model_of("copy/deq", setting.device)
    return copy_stepping(model, setting, setting.sizes.solver_batch, setting.sizes.horizon)


def _own_steps(setting: Setting, model: nn.Module | None = None) -> Stepping:
    torch.manual_seed(0)
    model, batch = model or OwnModel(OWN_WIDTH).to(setting.device), setting.sizes.image_batch
    count = batch * steps_of(setting, model)
    x = 0.3 * torch.randn(count, OWN_WIDTH, device=setting.device)
    return Stepping(model, F.cross_entropy, x, torch.randint(0, 10, (count,), device=setting.device), batch)


def _image_steps(setting: Setting, model: nn.Module | None = None, preset: bool = True) -> Stepping:
    """At the batch that the preset trains with, or at the one of all images."""
    name = "cifar10/mdeq" if setting.capture else "digits/mdeq"
    model, most = model or model_of(name, setting.device), setting.sizes.image_batch
    batch = min(PRESETS[name].run.recipe.batch_size, most) if preset else most
    return image_stepping(model, setting, batch, image_of(name))


MULTISCALE = "multiscale DEQ, a state of several tensors"
WORKS: dict[str, tuple[str, WorkSteps]] = {
    "copy": ("DEQ train step on copy memory", _copy_steps),
    "own": (f"own cell of width {OWN_WIDTH}, train step", _own_steps),
    "multiscale": (f"{MULTISCALE}, train step", _image_steps),
    "multiscale-large": (f"{MULTISCALE}, train step of a large batch", partial(_image_steps, preset=False)),
}
USUAL = ("copy", "own", "multiscale")


def solver_rows(setting: Setting, works: Sequence[str] = ()) -> Iterator[Comparison]:
    """A training step of DEQs: each of our solvers and its namesake round the same cell.

    torchdeq returns points that it evaluated the cell at once or twice more after the test of the tolerance. Ours
    is therefore asked for the residuals that torchdeq's answers really have, where those are below the tolerance.
    """
    if not find_spec("torchdeq"):
        raise KoopsimError(f"torchdeq is not installed: {EXTRA}.")
    for work in works or USUAL:
        scale = loss_scale(setting, work)
        for solver in setting.sizes.solvers:
            with in_precision(setting.precision):
                found = _solver_rows(setting, work, solver, scale)
            yield from found


def _solver_rows(setting: Setting, work: str, solver: str, scale: float) -> list[Comparison]:
    theirs = solver_stepping("torchdeq", solver, setting, work, scale)
    reached = residuals(theirs, setting.autocast)
    tol = tuple(min(TOLERANCE, max(FINEST, SLACK * r)) for r in reached)
    sides = {"koopsim": solver_stepping("koopsim", solver, setting, work, scale, tol), "torchdeq": theirs}
    if setting.capture:
        sides["koopsim, captured"] = solver_stepping("koopsim", solver, setting, work, scale, tol)
    makers: dict[str, Maker] = {n: s.maker(setting, capture=n.endswith("captured")) for n, s in sides.items()}
    turns = min(TURNS, setting.sizes.turns) if setting.capture else setting.sizes.turns
    timings = measure(makers, setting.device, turns, {n: s.steps for n, s in sides.items()})
    notes = {"koopsim": residuals(sides["koopsim"], setting.autocast), "torchdeq": reached}
    done = {n: Side(f"{n}, {solver}", timings[n], note=_note(*notes[n.split(",")[0]])) for n in sides}
    said = f"{WORKS[work][0]}, batch {theirs.batch}, to {TOLERANCE:g} or torchdeq's residual"
    return [Comparison("solver", said, done[n], done["torchdeq"]) for n in done if n != "torchdeq"]


def solver_stepping(
    name: str,
    solver: str,
    setting: Setting,
    work: str = "copy",
    scale: float = 1.0,
    tol: tuple[float, ...] = (TOLERANCE, TOLERANCE),
) -> Stepping:
    """Steps of a work's model with our solver, or with torchdeq's of the same name; the loss times `scale`."""
    stepping = WORKS[work][1](setting, None)
    model: Any = stepping.model
    if name == "torchdeq":
        model.deq = TorchDEQ(model.deq.cell, solver, tol)
    else:
        model.deq = DEQ(model.deq.cell, solver, MAX_STEPS, tol[0], backward=Backward(tol=tol[1]))
    plain, rows = stepping.loss, stepping.batch * min(setting.sizes.solver_steps, stepping.steps)
    return replace(stepping, loss=lambda a, b: scale * plain(a, b), x=stepping.x[:rows], y=stepping.y[:rows])


def loss_scale(setting: Setting, work: str = "copy") -> float:
    """What makes the gradient at a fixed point of size 1, as a power of two.

    A trained model's is 1e-10. torchdeq's residual is relative to a norm plus 1e-9, and its Anderson has an absolute
    ridge: neither means anything at that size. Ours scales each sample itself.
    """
    stepping = solver_stepping("koopsim", "broyden", setting, work)
    model: Any = stepping.model.train()
    with torch.no_grad():
        z, _ = model.solve(stepping.x[: stepping.batch])
    parts = [part.requires_grad_() for part in leaves(z)]
    grads = torch.autograd.grad(stepping.loss(model.read(z), stepping.y[: stepping.batch]), parts, allow_unused=True)
    size = float(_norms([g for g in grads if g is not None]).mean())
    return 2.0 ** round(-math.log2(size)) if 0 < size < math.inf else 1.0


def _map(cell: Any, inputs: tuple[Tensor, ...]) -> Callable[[Any], Any]:
    """The cell's own fast form where it has one, for both."""
    return cell.prepare(*inputs) if hasattr(cell, "prepare") else lambda z: cell(z, *inputs)


class _Shifted(nn.Module):
    """f + p with p = 0: the gradient in p is y, the answer to y = J^T y + g, whoever solved it."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell

    def initial(self, *inputs: Tensor) -> Any:
        return self.cell.initial(*inputs)  # pyright: ignore

    def prepare(self, *inputs: Tensor) -> Callable[[Any], Any]:
        self.shift = [part.requires_grad_() for part in leaves(self.initial(*inputs))]
        self.f = _map(self.cell, inputs)

        def shifted(z: Any) -> Any:
            fz = self.f(z)
            return fz + self.shift[0] if isinstance(fz, Tensor) else tuple(map(torch.add, fz, self.shift))

        return shifted


def residuals(stepping: Stepping, autocast: torch.dtype | None = None) -> tuple[float, float]:
    """The largest relative residual of a sample's answer, forward and backward, measured the same way for both."""
    worst = torch.zeros(2, device=stepping.x.device)
    model: Any = stepping.model.train()
    cell = model.deq.cell
    for first in range(0, len(stepping.x), stepping.batch):
        shifted = model.deq.cell = _Shifted(cell)
        with torch.autocast(stepping.x.device.type, dtype=autocast, enabled=autocast is not None):
            try:
                z, _ = model.solve(stepping.x[first : first + stepping.batch])
                loss = stepping.loss(model.read(z), stepping.y[first : first + stepping.batch])
            finally:
                model.deq.cell = cell
            at = [part.detach().requires_grad_() for part in leaves(z)]
            fz = leaves(shifted.f(at[0] if isinstance(z, Tensor) else tuple(at)))
        parts = leaves(z)
        found = torch.autograd.grad(loss, [*parts, *shifted.shift], allow_unused=True)
        g = [torch.zeros_like(p) if part is None else part for p, part in zip(parts, found, strict=False)]
        y = [torch.zeros_like(p) if part is None else part for p, part in zip(parts, found[len(parts) :], strict=True)]
        pulled = torch.autograd.grad(fz, at, [part.to(f.dtype) for part, f in zip(y, fz, strict=True)])
        forward = [(f.detach() - a.detach(), f.detach()) for f, a in zip(fz, at, strict=True)]
        backward = [(p + gg - yy, yy) for p, gg, yy in zip(pulled, g, y, strict=True)]
        worst = torch.maximum(worst, torch.stack([_relative(forward), _relative(backward)]))
    forward, backward = worst.tolist()
    return forward, backward


def _norms(parts: list[Tensor]) -> Tensor:
    """Of each sample, all parts together."""
    return torch.cat([part.flatten(1) for part in parts], dim=1).norm(dim=1)


def _relative(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The worst sample's, and of a state of several parts the worst part's: what ours stops by."""
    return torch.stack([(_norms([error]) / (_norms([size]) + EPS)).max() for error, size in pairs]).max()


def _note(forward: float, backward: float) -> str:
    return f"residual {forward:.1e}, backward {backward:.1e}"
