"""torchdeq on the same work: a training step of equilibrium models, each of our solvers beside its namesake."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bench.reached import Reached, map_of, norms, reached
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, Timing, measure
from koopsim.bench.training import Stepping, copy_stepping, image_of, image_stepping, steps_of
from koopsim.errors import KoopsimError
from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ, Backward
from koopsim.implicit.info import Info
from koopsim.implicit.iteration import Map, Tolerance
from koopsim.implicit.solvers import Solver
from koopsim.implicit.state import leaves
from koopsim.presets import PRESETS
from koopsim.registry import SOLVERS

MAX_STEPS = 60  # enough for both to get below the tolerance
OWN_WIDTH = 128
TURNS = 5  # at most, of a solver's row on CUDA: torchdeq's Anderson takes all its steps
EXTRA = "pip install 'koopsim[bench]'"


@dataclass(frozen=True)
class Residuals:
    """Which residuals mean something in a precision."""

    tolerance: float = 1e-3  # what torchdeq is asked for
    finest: float = 1e-5  # ours is asked for none below
    slack: float = 1.02  # the same iterate has the same residual up to rounding


FLOAT32 = Residuals()
RESIDUALS = {
    "float32": FLOAT32,
    "tf32": Residuals(1e-3, 2.5e-4, 1.1),
    "bf16": Residuals(1e-2, 2e-3, 1.1),  # it rounds by up to 1/256: 1e-3 nobody reaches
}


class TorchDEQ(nn.Module):
    """torchdeq in the place of our `DEQ`: exact implicit gradient, the same relative residual to stop at."""

    limits = captured_steps = (MAX_STEPS, MAX_STEPS)

    def __init__(self, cell: nn.Module, solver: str, tol: tuple[float, float]):
        super().__init__()
        import torchdeq

        self.cell, name = cell, "fixed_point_iter" if solver == "picard" else solver
        self.solve = torchdeq.get_deq(
            ift=True, f_solver=name, b_solver=name, f_max_iter=MAX_STEPS, b_max_iter=MAX_STEPS,
            f_tol=tol[0], b_tol=tol[1], f_stop_mode="rel", b_stop_mode="rel",
        )  # fmt: skip

    def forward(self, *inputs: Tensor, z0: Any = None) -> tuple[Any, Any]:
        f = _in_this_precision(map_of(self.cell, inputs), inputs[0].device.type)
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
    """A training step of DEQs: each of our solvers and its namesake round the same cell, both to the same residual."""
    if not find_spec("torchdeq"):
        raise KoopsimError(f"torchdeq is not installed: {EXTRA}.")
    for work in works or USUAL:
        scale = loss_scale(setting, work)
        for solver in setting.sizes.solvers:
            with in_precision(setting.precision):
                found = _solver_rows(setting, work, solver, scale)
            yield from found


def _solver_rows(setting: Setting, work: str, solver: str, scale: float) -> list[Comparison]:
    sides = solver_sides(setting, work, solver, scale)
    ends = {n: reached(sides[n], setting.autocast) for n in ("koopsim", "torchdeq")}  # at the weights of both
    makers: dict[str, Maker] = {n: s.maker(setting, capture=n.endswith("captured")) for n, s in sides.items()}
    turns = min(TURNS, setting.sizes.turns) if setting.capture else setting.sizes.turns
    timings = measure(makers, setting.device, turns, {n: s.steps for n, s in sides.items()})
    done = {n: _side(f"{n}, {solver}", timings[n], ends[n.split(",")[0]]) for n in sides}
    tolerance = RESIDUALS[setting.precision].tolerance
    said = f"{WORKS[work][0]}, batch {sides['torchdeq'].batch}, to {tolerance:g} or torchdeq's residual"
    return [Comparison("solver", said, done[n], done["torchdeq"]) for n in done if n != "torchdeq"]


def _side(name: str, timing: Timing, end: Reached) -> Side:
    return Side(name, timing, note=str(end), reached=end.as_dict())


def solver_sides(setting: Setting, work: str, solver: str, scale: float) -> dict[str, Stepping]:
    """Steps of torchdeq's and of ours, ours to the residuals that torchdeq's answers have.

    torchdeq is asked for the tolerance. It returns a point one evaluation or two after the one it judged: where the
    cell contracts its answers are below the tolerance, where rounding has the last word they may be above. It judges
    all parts of a state together, so here ours does too.
    """
    meaning = RESIDUALS[setting.precision]
    theirs = solver_stepping("torchdeq", solver, setting, work, scale, (meaning.tolerance, meaning.tolerance))
    tol = asked(reached(theirs, setting.autocast), meaning)
    names = ("koopsim", "koopsim, captured") if setting.capture else ("koopsim",)
    ours = {name: solver_stepping("koopsim", parts_as_one(solver), setting, work, scale, tol) for name in names}
    return ours | {"torchdeq": theirs}


def asked(end: Reached, meaning: Residuals) -> tuple[float, float]:
    """Which residuals to ask for, to end where `end` did; where that ran out of steps, no more than the tolerance."""
    most = [meaning.tolerance if count > MAX_STEPS else math.inf for count in end.evaluations]
    forward, backward = (
        max(meaning.finest, min(limit, meaning.slack * r)) for limit, r in zip(most, end.residuals, strict=True)
    )
    return forward, backward


def parts_as_one(solver: str) -> Solver:
    """Ours, judging all parts of a state as one, as torchdeq does: by itself it waits for each part."""

    def solve(f: Map, z0: Tensor, *, max_steps: int, tol: Tolerance) -> tuple[Tensor, Info]:
        return SOLVERS[solver](f, z0, max_steps=max_steps, tol=replace(tol, sizes=()))

    return solve


def solver_stepping(
    name: str,
    solver: str | Solver,
    setting: Setting,
    work: str = "copy",
    scale: float = 1.0,
    tol: tuple[float, float] = (FLOAT32.tolerance, FLOAT32.tolerance),
) -> Stepping:
    """Steps of a work's model with our solver, or with torchdeq's of the same name; the loss times `scale`."""
    stepping = WORKS[work][1](setting, None)
    model: Any = stepping.model
    if name == "torchdeq":
        assert isinstance(solver, str)
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
    size = float(norms([g for g in grads if g is not None]).mean())
    return 2.0 ** round(-math.log2(size)) if 0 < size < math.inf else 1.0
