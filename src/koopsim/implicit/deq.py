"""Deep equilibrium: a layer whose output is the fixed point of a cell.

    z_{l+1} = f(z_l, x)  ->  z* = f(z*, x)                                     paper, eq. (1) and (2)

    deq = DEQ(cell)                               deq = DEQ(cell, "broyden", tol=1e-5, gradient="jacobian-free")
    z, info = deq(x)                              deq = DEQ(cell, partial(anderson, memory=9), tol=Tolerance(1e-4, "absolute"))

The state may be one tensor, or a tuple or dict of tensors of unlike shapes (`state.py`); how it is found is a solver's
business (`solvers.py`), how a gradient goes back a gradient's (`gradient.py`, `reversible.py`).
"""  # noqa: E501

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit.detached import refuse_detached, used_by, wanting
from koopsim.implicit.gradient import Gradient, Neumann, Phantom, implicit, jacobian_free
from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning, capturing
from koopsim.implicit.iteration import Map, Tolerance, tolerance
from koopsim.implicit.reversible import Reversible
from koopsim.implicit.solvers import Solver, name_of, solver_named
from koopsim.implicit.stabilise import held_still
from koopsim.implicit.state import Packing, State, described, leaves, packing_of
from koopsim.implicit.uncompiled import uncompiled

EVALUATION_FACTOR = 4  # in eval mode a solve may take this many times the steps: no gradient waits for it
_OF_A_CELL = (TypeError, ValueError, RuntimeError, IndexError, AttributeError)  # what a cell given another z says
GRADIENTS: dict[str, Gradient | Reversible] = {
    "implicit": implicit,
    "jacobian-free": jacobian_free,
    "phantom": Phantom(),
    "neumann": Neumann(),
    "reversible": Reversible(),
}


@dataclass(frozen=True)
class Backward:
    """How the implicit gradient is solved for; what is left out is as in the forward pass."""

    solver: str | Solver | None = None
    max_steps: int | None = None
    tol: float | Tolerance | None = None


class DEQ(nn.Module):
    """(x, ...) -> z* with z* = cell(z*, x, ...), and how the solve went.

    cell       any callable f(z, *inputs) that maps z to its own shape, a sample an element of dimension 0; inputs may
               have a sample each, or be shared. Two methods are used where it has them: `cell.initial(*inputs)` gives
               z0 (else zeros like the first input), and `cell.prepare(*inputs)` gives z -> f(z, *inputs) with
               everything that does not depend on z computed, once a forward. If what it gives is `Narrowing`, samples
               that have converged are no longer evaluated; if it is `Transposing`, the implicit gradient is solved for
               by its own products
    solver     a name of `SOLVERS`, or a function like those
    tol        a relative residual, or a `Tolerance`
    gradient   a name of `GRADIENTS`, or one with settings: `Phantom(steps=3)`, `Reversible(0.3)`
    """

    def __init__(
        self,
        cell: Callable[..., State],
        solver: str | Solver = "anderson",
        max_steps: int = 30,
        tol: float | Tolerance = 1e-3,
        gradient: str | Gradient | Reversible = "implicit",
        backward: Backward | None = None,
    ) -> None:
        super().__init__()
        back = Backward() if backward is None else backward
        if not isinstance(back, Backward):
            raise KoopsimError(f"backward={back!r}: expected Backward(solver, max_steps, tol), or None.")
        self.solver, self.max_steps, self.tol = solver, max_steps, tol
        self.backward = Backward(
            solver if back.solver is None else back.solver,
            max_steps if back.max_steps is None else back.max_steps,
            tol if back.tol is None else back.tol,
        )
        for name, steps, how in ((solver, max_steps, tol), tuple(vars(self.backward).values())):
            solver_named(name)
            tolerance(how)
            if not isinstance(steps, Integral) or steps < 1:
                raise KoopsimError(f"max_steps={steps!r}: expected a whole number of at least 1.")
        if isinstance(gradient, str) and gradient not in GRADIENTS:
            raise KoopsimError(f"There is no gradient {gradient!r}.{did_you_mean(gradient, GRADIENTS)}")
        if isinstance(gradient, type) or not (isinstance(gradient, str | Reversible) or callable(gradient)):
            raise KoopsimError(f"gradient={gradient!r}: expected {', '.join(GRADIENTS)}, or such as Phantom(steps=3).")
        if not callable(cell):
            raise KoopsimError(f"The cell is a {type(cell).__name__}; expected a module or a function f(z, *inputs).")
        self.cell, self.gradient = cell, gradient
        self.captured_steps = self.limits  # a CUDA graph cannot exit early: how many it runs
        self._warned: set[str] = set()

    @property
    def limits(self) -> tuple[int, int]:
        """The most steps of a forward and a backward solve in training."""
        assert self.backward.max_steps is not None
        return self.max_steps, self.backward.max_steps

    def extra_repr(self) -> str:
        return (
            f"solver={name_of(self.solver)!r}, max_steps={self.max_steps}, tol={self.tol}, gradient={self.gradient!r}"
        )

    @uncompiled
    def forward(self, *inputs: Any, z0: State | None = None) -> tuple[State, DEQInfo]:
        """The fixed point reached from z0. No gradient flows to z0: the fixed point does not depend on it."""
        with self._settled_cell():
            f, packing, start = self._problem(inputs, z0)
            try:
                z, info = self._answer(f, packing, start, inputs)
            except _OF_A_CELL as error:
                if z0 is None and not hasattr(self.cell, "initial") and not isinstance(error, KoopsimError):
                    error.add_note(
                        f"The cell was called with a state z of zeros like the first input, {tuple(start.shape)}: if "
                        "its state has another form, give deq(..., z0=...), or the cell a method initial(*inputs)."
                    )
                elif isinstance(error, TypeError) and not packing.single:
                    error.add_note(
                        f"The cell was called as cell(z, *inputs), z of {described(packing.form)} as one argument: a "
                        "function of the parts is DEQ(lambda z, *inputs: cell(*z, *inputs))."
                    )
                raise
        return packing.unpack(z), info

    def path(self, *inputs: Any, at: Sequence[int], z0: State | None = None) -> tuple[list[State], DEQInfo]:
        """The iterates that were evaluated in the steps `at`, and at the end the fixed point: for a correction loss.

        A step that the solve did not come to has no iterate. Each iterate has the Jacobian-free gradient, one recorded
        evaluation; the fixed point has the DEQ's own.
        """
        if not all(isinstance(k, Integral) and k >= 1 for k in at):
            raise KoopsimError(f"at={tuple(at)!r}: expected steps, whole numbers from 1 on.")
        with self._settled_cell():
            f, packing, start = self._problem(inputs, z0)
            seen: dict[int, Tensor] = {}
            count = itertools.count(1)

            def watched(z: Tensor) -> Tensor:
                k = next(count)
                if k in at:
                    seen[k] = z.detach().clone()
                return f(z)

            with torch.no_grad():
                self._solve("forward", watched, start, packing, _rounding(start.device.type))
            kept = [jacobian_free(f, z, _never) if torch.is_grad_enabled() else z for z in seen.values()]
            z, info = self._answer(f, packing, start, inputs)
        return [packing.unpack(state) for state in (*kept, z)], info

    def health(self, *inputs: Any) -> Any:
        """Where this DEQ stands on these inputs: convergence, spectral radius, case. A table; `.plot()` a picture.

        The bridge does the work, a room below this one: it is asked for by name when it is needed.
        """
        return import_module("koopsim.bridge.health").health(self, *inputs)

    def initial(self, *inputs: Any) -> State:
        """Where a solve of these inputs starts."""
        initial: Callable[..., State] | None = getattr(self.cell, "initial", None)
        if initial is not None:
            return initial(*inputs)
        if not inputs or not isinstance(inputs[0], Tensor):
            given = f"a {type(inputs[0]).__name__}" if inputs else "missing"
            raise KoopsimError(
                f"The first input is {given}, so the shape of the state is unknown: give deq(..., z0=...), or the cell "
                "a method initial(*inputs)."
            )
        return torch.zeros_like(inputs[0])

    # ------------------------------------------------------------ inside, a state is one tensor

    def _problem(self, inputs: tuple[Any, ...], z0: State | None) -> tuple[Map, Packing, Tensor]:
        """z -> f(z, *inputs) and z0, both packed."""
        if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
            raise KoopsimError(
                "A DEQ was called under a transform of torch.func (grad, vmap, jacrev, ...), which cannot follow a "
                "solve; expected plain autograd: use torch.autograd, or functional_call outside of the transform."
            )
        if torch.autograd.forward_ad._current_level >= 0:
            raise KoopsimError(
                "A DEQ was called with dual numbers (torch.autograd.forward_ad), which cannot follow a solve; expected "
                "plain autograd: use torch.autograd.grad."
            )
        prepare = getattr(self.cell, "prepare", None)
        f = prepare(*inputs) if prepare is not None else lambda z: self.cell(z, *inputs)
        z0 = self.initial(*inputs) if z0 is None else z0
        packing = packing_of(z0)
        return packing.packed(f), packing, packing.pack(z0).detach()

    def _answer(self, f: Map, packing: Packing, z0: Tensor, inputs: tuple[Any, ...]) -> tuple[Tensor, DEQInfo]:
        gradient = GRADIENTS[self.gradient] if isinstance(self.gradient, str) else self.gradient
        versions = [(t, t._version) for t in leaves(inputs) if not t.is_inference()]
        rounding = _rounding(z0.device.type)  # the backward pass has the forward one's
        if isinstance(gradient, Reversible):
            z, info = gradient.run(f, z0, self._budget(False), self._tolerance(self.tol, packing))
            _refuse_changed(versions)
            self._warn("forward", "the reversible iteration", info.forward, rounding)
            return self._with_past(z, f, inputs), info
        with torch.no_grad():
            z, solved = self._solve("forward", f, z0, packing, rounding)
        _refuse_changed(versions)
        info = DEQInfo(solved)
        if not torch.is_grad_enabled():
            return z, info
        # Autocast keeps the low-precision copies of weights made just now under no_grad: without a history.
        torch.clear_autocast_cache()
        if not self._differentiable(f, z, inputs):
            return self._with_past(z, f, inputs), info

        def backward(transposed: Map, start: Tensor) -> Tensor:
            y, info.backward = self._solve("backward", transposed, start, packing, rounding)
            return y

        return self._with_past(gradient(f, z, backward), f, inputs), info

    def _with_past(self, z: Tensor, f: Map, inputs: tuple[Any, ...]) -> Tensor:
        """z, unless it should have a past and has none."""
        if self.training and torch.is_grad_enabled() and not z.requires_grad:
            refuse_detached(wanting(self.cell, inputs))
            if not isinstance(self.cell, nn.Module) and "detached" not in self._warned:  # it is asked once
                refuse_detached(used_by(f, z))
                self._warned.add("detached")
        return z

    def _tolerance(self, tol: float | Tolerance, packing: Packing) -> Tolerance:
        return tolerance(tol) if packing.single else replace(tolerance(tol), sizes=packing.sizes)

    def _budget(self, backward: bool) -> int:
        steps = self.limits[backward]
        if not self.training and not self._reversible():  # whose iteration, converged or not, is what was trained
            steps *= EVALUATION_FACTOR
        return min(steps, self.captured_steps[backward]) if capturing() else steps

    def _reversible(self) -> bool:
        return self.gradient == "reversible" or isinstance(self.gradient, Reversible)

    def _solve(self, direction: str, f: Map, z0: Tensor, packing: Packing, rounding: float) -> tuple[Tensor, Info]:
        backward = direction == "backward"
        solver, tol = (self.backward.solver, self.backward.tol) if backward else (self.solver, self.tol)
        assert solver is not None
        assert tol is not None
        z, info = solver_named(solver)(f, z0, max_steps=self._budget(backward), tol=self._tolerance(tol, packing))
        self._warn(direction, name_of(solver), info, rounding)
        return z, info

    def _warn(self, direction: str, solver: str, info: Info, rounding: float) -> None:
        if direction in self._warned or capturing() or info.converged.all():
            return
        self._warned.add(direction)
        count, total = int((~info.converged).sum()), info.converged.numel()
        lost = int((~info.residuals.isfinite()).sum())
        how = tolerance(self.backward.tol if direction == "backward" else self.tol)  # pyright: ignore
        reason = (
            f"{lost} of them never had a finite value: f(z, *inputs) is NaN or infinite from the start, so check the "
            "inputs and the weights. "
            if lost
            else f"the worst residual is {info.residuals.max():.2g}. "
        )
        if rounding > how.value and how.kind == "relative":
            reason += f"Autocast rounds the cell to {rounding:.1g}: expected a tolerance of about that, or float32. "
        warnings.warn(
            f"the {direction} solve left {count} of {total} samples above tol={how.value:g} after at most "
            f"{self._budget(direction == 'backward')} steps of {solver}; {reason}"
            "Try more steps, another solver, a larger tolerance, or a cell that contracts more. Each "
            "call's residuals are in its info; this is said once.",
            UnconvergedWarning,
            stacklevel=7 if self._reversible() else 8,  # whoever called the DEQ
        )

    def _differentiable(self, f: Map, z: Tensor, inputs: tuple[Any, ...]) -> bool:
        """Whether anything the cell sees needs a gradient. A plain function may see anything: ask it."""
        if any(t.requires_grad for t in leaves(inputs)):
            return True
        if isinstance(self.cell, nn.Module) and any(p.requires_grad for p in self.cell.parameters()):
            return True
        return f(z).requires_grad

    def _settled_cell(self) -> AbstractContextManager[None]:
        return held_still(self.cell)


def _rounding(kind: str) -> float:
    """Of a cell under autocast; else 0. No solve gets far below it, however many steps it takes."""
    return torch.finfo(torch.get_autocast_dtype(kind)).eps if torch.is_autocast_enabled(kind) else 0.0


def _refuse_changed(versions: list[tuple[Tensor, int]]) -> None:
    if any(t._version != version for t, version in versions):
        raise KoopsimError("The cell changed one of its inputs in place; expected a new tensor from f(z, *inputs).")


def _never(transposed: Map, start: Tensor) -> Tensor:
    raise AssertionError("this gradient needs no solve")
