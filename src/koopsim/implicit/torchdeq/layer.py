"""torchdeq's layer: a function and a start in, a list of states and a dict of statistics out.

    deq = get_deq(f_solver="anderson", f_max_iter=40)
    states, info = deq(lambda z: f(z, x), z0)             states[-1] = z* = f(z*, x)

A state is a tensor, or a list of them for a function of several. The work is a `DEQ`'s: this one is made anew for each
call, since the function is.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.implicit.deq import DEQ, Backward
from koopsim.implicit.gradient import Gradient, Phantom
from koopsim.implicit.info import Info
from koopsim.implicit.iteration import Map, Tolerance, tolerance
from koopsim.implicit.penalties import spectral_radius
from koopsim.implicit.stabilise import held_still, modules_in
from koopsim.implicit.state import Packing, State
from koopsim.implicit.torchdeq.options import Options, options_of
from koopsim.implicit.torchdeq.solving import solver_of
from koopsim.implicit.torchdeq.statistics import Statistics, statistics, telling

log = logging.getLogger(__package__)
POWER_STEPS = 100
Cell = Callable[[State], State]
Writer = Callable[[Statistics], Any]


def get_deq(args: Any = None, **options: Any) -> Equilibrium:
    """torchdeq's layer, from options by name, or from a Namespace, dict or object that has them among others.

    The gradient is the implicit one, which is right, unless `grad` or `ift=False` asks for another: `grad=1` is the
    one-step gradient that torchdeq has by default. A name that is no option is an error.
    """
    return Equilibrium(options_of(args, options))


class Equilibrium(nn.Module):
    """(func, z_init) -> [..., z*], statistics. What `get_deq` makes; it has no parameters."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self._warned: set[str] = set()
        self._equilibrium(_Call(_same), options.f_max_iter, self._gradient(-1, True))  # what cannot be is refused now
        if options.grad is None and options.ift is None:
            _note_the_gradient()

    def extra_repr(self) -> str:
        return f"{self.options}"

    def forward(
        self,
        func: Callable[..., State],
        z_init: State,
        solver_kwargs: Mapping[str, Any] | None = None,
        sradius_mode: bool = False,
        backward_writer: Writer | None = None,
    ) -> tuple[list[State], Statistics]:
        """The states, the fixed point last, and how the solve went.

        func             z -> f(z); of several tensors f(z1, z2, ...) -> (f1, f2, ...)
        z_init           where the solve starts: a tensor, or a list or tuple
        solver_kwargs    for this call: f_max_iter, and the solver's settings
        sradius_mode     in eval mode: measure the spectral radius, too
        backward_writer  called with the statistics of the backward solve, once there is one
        """
        several = not isinstance(z_init, Tensor)
        cell = (lambda z: func(*z)) if several else (lambda z: func(z))  # of func itself nothing but the map is used
        start = tuple(z_init) if several else z_init
        call = _Call(cell, solver_kwargs or {}, backward_writer)
        with held_still(cell):
            if self.training:
                states, found = (self._sliced if self.options.core == "sliced" else self._indexed)(call, start)
            else:
                deq = self._equilibrium(call, call.steps(self.options.eval_steps), self._gradient(-1, True))
                z, found = deq.reach(start)
                if sradius_mode:
                    found["sradius"] = spectral_radius(cell, z, POWER_STEPS)
                states = [z]
        return [list(z) if several else z for z in states], found

    def _sliced(self, call: _Call, z: State) -> tuple[list[State], Statistics]:
        """A solve for each state, from the state before it."""
        states, found = [], Statistics()
        stops = self.options.stops(call.steps(self.options.f_max_iter))
        for k, (early, late) in enumerate(itertools.pairwise([0, *stops])):
            last = late == stops[-1]
            deq = self._equilibrium(call, late - early, self._gradient(k, last))
            if not last:
                deq._warned = {"forward"}  # a state on the way is not to have converged
            z, found = deq.reach(z)
            states.append(z)
        return states, found

    def _indexed(self, call: _Call, z: State) -> tuple[list[State], Statistics]:
        """One solve; of the points it comes by those that were asked for, each with its phantom gradient."""
        stops = self.options.stops(call.steps(self.options.f_max_iter))
        deq = self._equilibrium(call, stops[-1], self._gradient(-1, True))
        deq.at, deq.seen = tuple(stops[:-1]), []
        z, found = deq.reach(z)
        return [*(self._stepped(call.cell, point, self._steps(k)) for k, point in enumerate(deq.seen)), z], found

    def _stepped(self, cell: Cell, z: State, steps: int) -> State:
        for _ in range(steps):
            z = _each(lambda a, b: torch.lerp(a, b.to(a.dtype), self.options.tau), z, cell(z))
        return z

    def _steps(self, k: int) -> int:
        steps = self.options.phantom_steps
        return steps[k if len(steps) > 1 else 0]

    def _gradient(self, k: int, last: bool) -> str | Gradient:
        if last and self.options.implicit:
            return "implicit"
        steps, tau = self._steps(k), self.options.tau
        return "jacobian-free" if steps == 1 and tau == 1 else Phantom(steps, tau)

    def _equilibrium(self, call: _Call, steps: int, gradient: str | Gradient) -> _Held:
        options = self.options
        back = solver_of(options.b_solver)
        back = back if call.writer is None else telling(back, call.writer)
        deq = _Held(
            call.cell,
            solver_of(options.f_solver, call.settings),
            steps,
            options.f_tolerance,
            gradient,
            Backward(back, options.b_max_iter, options.b_tolerance),
        )
        deq._warned = self._warned  # said once by the layer, not once a call
        return deq


@dataclass(frozen=True)
class _Call:
    """What a call of the layer has of its own."""

    cell: Cell
    settings: Mapping[str, Any] = field(default_factory=dict)
    writer: Writer | None = None

    def steps(self, usual: int) -> int:
        return int(self.settings.get("f_max_iter", usual))


class _Held(DEQ):
    """A DEQ of one call, whose cell is held still by who calls it: several solves have one dropout mask."""

    at: tuple[int, ...] = ()  # steps whose points are kept, in `seen`
    seen: list[State]

    def reach(self, z0: State) -> tuple[State, Statistics]:
        """The fixed point with its gradient, and the statistics there: f(z*) was evaluated for the gradient anyway."""
        f, packing, start = self._problem((), z0)
        images: list[Tensor] = []

        def noted(z: Tensor) -> Tensor:
            fz = f(z)
            if torch.is_grad_enabled() and not images:  # the solve is not recorded; what comes after begins at z*
                images.append(fz.detach())
            return fz

        z, info = self._answer(noted, packing, start, ())
        with torch.no_grad():
            found = statistics(z, images[0] if images else f(z), info.forward)
        return packing.unpack(z), found

    def _solve(self, direction: str, f: Map, z0: Tensor, packing: Packing, rounding: float) -> tuple[Tensor, Info]:
        if direction == "backward" or not self.at:
            return super()._solve(direction, f, z0, packing, rounding)
        count = itertools.count(1)

        def watched(z: Tensor) -> Tensor:
            if next(count) in self.at:
                self.seen.append(packing.unpack(z.clone()))
            return f(z)

        return super()._solve(direction, watched, z0, packing, rounding)

    def _tolerance(self, tol: float | Tolerance, packing: Packing) -> Tolerance:
        """Of several parts torchdeq judges all together: where that asks for more than each by itself, so do we."""
        asked = tolerance(tol)
        return asked if asked.kind == "absolute" else super()._tolerance(tol, packing)

    def _differentiable(self, f: Map, z: Tensor, inputs: tuple[Any, ...]) -> bool:
        """Modules that the function names are looked at first: that spares an evaluation."""
        return any(
            p.requires_grad for module in modules_in(self.cell) for p in module.parameters(recurse=False)
        ) or super()._differentiable(f, z, inputs)


def _each(make: Callable[..., Tensor], *states: State) -> State:
    if isinstance(states[0], Tensor):
        return make(*states)
    return tuple(make(*parts) for parts in zip(*states, strict=True))


def _same(z: State) -> State:
    return z


@cache
def _note_the_gradient() -> None:
    log.info("get_deq: the gradient is the implicit one, where torchdeq's default is one step (grad=1).")
