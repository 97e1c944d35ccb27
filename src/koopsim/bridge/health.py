"""Where a DEQ stands on given inputs: `deq.health(x)`.

    converged   does its own solver get below its tolerance, in how many steps
    radius      rho(df/dz) at the fixed point: below 1 the plain iteration settles from close by     (`jacobian.py`)
    case        what the plain iteration z <- f(z, x) does: settles at the origin (i) or elsewhere (ii), keeps moving in
                a bounded set (iii), diverges (iv); from a Koopman matrix of its increments          (`observe.py`)

A solver may converge where the plain iteration does not: Anderson, Broyden and Newton reach fixed points that repel. It
is slower there, and such a DEQ is not called healthy. States of several tensors and many inputs are put side by side.
All of it is in float64, a function's weights included (`doubled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.bridge.doubled import CellInFloat64
from koopsim.bridge.hidden import Solvable, hidden_map, module_in_float64
from koopsim.bridge.jacobian import Linearisation, linearise
from koopsim.bridge.observe import Observation, observe
from koopsim.bridge.plots import plot_observation
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ
from koopsim.implicit.state import Packing, leaves, packing_of

NUMERALS = {"origin": "i", "fixed-point": "ii", "invariant-set": "iii", "divergent": "iv"}
LARGE = 2**13  # numbers of a state above which fewer steps are watched, from one start
SHOWN = 12  # inputs in the table
USUAL, BY_COPIES = "float64", "float64, with copies of the float32 tensors that the cell uses"


@dataclass(frozen=True)
class Health:
    """What was found, an input each. `str(health)` is the table."""

    steps: np.ndarray
    residuals: np.ndarray
    converged: np.ndarray
    radius: np.ndarray  # nan where no fixed point was found
    cases: tuple[str, ...]
    seen: Observation
    local: list[Linearisation]
    precision: str = USUAL  # of the evaluations

    @property
    def healthy(self) -> bool:
        """Every solve converges, at a point that attracts."""
        return bool(self.converged.all() and (self.radius < 1).all())

    def __str__(self) -> str:
        lines = ["input  steps  residual  converged  radius  case"]
        for i in range(min(len(self.cases), SHOWN)):
            case = self.cases[i]
            named = f"({NUMERALS[case]}) {case}" if case in NUMERALS else case
            yes = "yes" if self.converged[i] else "no"
            lines.append(
                f"{i:5d}  {self.steps[i]:5d}  {self.residuals[i]:8.1e}  {yes:>9}  {self.radius[i]:6.3f}  {named}"
            )
        if len(self.cases) > SHOWN:
            lines.append(f"... and {len(self.cases) - SHOWN} more inputs")
        found = self.radius[np.isfinite(self.radius)]
        most = f", largest spectral radius {found.max():.3f}" if len(found) else ", no fixed point found"
        lines.append(
            f"{int(self.converged.sum())} of {len(self.cases)} solves converge{most}; plain iteration: {self.seen.case}"
        )
        lines.append(f"evaluated in {self.precision}")
        return "\n".join(lines)

    def plot(self) -> Any:
        """The increments of the iteration and the eigenvalues of df/dz, as a figure."""
        return plot_observation(self.seen, self.local)


def health(deq: Solvable, *inputs: Any, steps: int = 200) -> Health:
    """Solve, linearise and watch, input by input; a few inputs are enough."""
    one, x = _on_matrices(deq, inputs) if isinstance(deq, DEQ) else (deq, inputs[0])
    precision = USUAL
    if isinstance(one, DEQ):
        x = x.double() if x.is_floating_point() else x
        one, precision = _exactly(one, x)
    size = _state_size(one, x)
    seen = observe(one, x, steps=min(steps, 60) if size > LARGE else steps, starts=1 if size > LARGE else 2)
    local = linearise(one, x)
    if seen.solver is None:
        raise KoopsimError(f"A {type(deq).__name__} has no solver; wrap the cell: koopsim.implicit.DEQ(cell).")
    found, radius = seen.solver, np.array([point.radius for point in local])
    steps_taken, residuals, converged = (t.cpu().numpy() for t in (found.steps, found.residuals, found.converged))
    return Health(steps_taken, residuals, converged, radius, seen.cases, seen, local, precision)


class _Joined(nn.Module):
    """The cell of a DEQ on matrices: the parts of a state side by side, and so its inputs."""

    def __init__(self, cell: Any, start: Any, given: Packing, shared: list[Any], places: list[int]) -> None:
        super().__init__()
        self.cell, self.given, self.shared, self.places = cell, given, shared, places
        self.alone = isinstance(start, Tensor)
        self.state = packing_of((start,) if self.alone else start)

    def initial(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), sum(self.state.sizes))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inputs = [x.to(z) if isinstance(x, Tensor) and x.is_floating_point() else x for x in self.shared]
        for place, part in zip(self.places, self.given.unpack(x), strict=True):
            inputs[place] = part
        parts = self.state.unpack(z)
        fz = self.cell(parts[0] if self.alone else parts, *inputs)
        return self.state.pack((fz,) if self.alone else fz)


def _on_matrices(deq: DEQ, inputs: tuple[Any, ...]) -> tuple[DEQ, Tensor]:
    """The same DEQ with one input and one tensor for a state, as the bridge knows it."""
    start = deq.initial(*inputs)
    if isinstance(start, Tensor) and len(inputs) == 1:
        return deq, inputs[0]
    count = len(leaves(start)[0])
    places = [
        i
        for i, x in enumerate(inputs)
        if isinstance(x, Tensor) and x.dim() and len(x) == count and x.is_floating_point()
    ]
    if not places:
        raise KoopsimError(
            f"None of the {len(inputs)} inputs has a sample for each of the {count} states; pass x first."
        )
    each = tuple(inputs[i].detach().to(torch.promote_types(inputs[i].dtype, torch.float32)) for i in places)
    given = packing_of(each)
    shared = [None if i in places else x.detach() if isinstance(x, Tensor) else x for i, x in enumerate(inputs)]
    joined = DEQ(_Joined(deq.cell, start, given, shared, places), deq.solver, deq.max_steps, deq.tol)
    return joined.train(deq.training), given.pack(each)


def _exactly(one: DEQ, x: Tensor) -> tuple[DEQ, str]:
    """The DEQ to be looked at, and in which precision it then computes, by trying an input and a backward pass.

    Spectra are of float64. A copy of a module can be; what a function uses is converted as it goes (`doubled.py`).
    """
    plain, copied = module_in_float64(one), module_in_float64(one)
    copied.cell = cell = CellInFloat64(copied.cell)
    refused, refused_copies = (_refused(deq, x) for deq in (plain, copied))
    if refused_copies is None and cell.converted:
        return copied, BY_COPIES
    if refused is None:
        return plain, USUAL
    said = str(refused.__cause__ or refused).splitlines()[0]
    raise KoopsimError(
        "The cell cannot be evaluated in float64, as a spectrum needs it, nor with float64 copies of the tensors it "
        f"uses ({said[:120]}); expected an nn.Module, of which health() takes a copy in float64, or a function of "
        "PyTorch's own operations: make it one."
    ) from refused


def _refused(deq: DEQ, x: Tensor) -> Exception | None:
    """What a cell says to float64, there and back; nothing is best."""
    try:
        with torch.no_grad():
            f, z = hidden_map(deq, x[:1])
        with torch.enable_grad():
            out = f(z.requires_grad_())
            if out.requires_grad:
                torch.autograd.grad(out.sum(), z, allow_unused=True)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KoopsimError) as error:
        return error
    return None if out.dtype == torch.float64 else KoopsimError(f"its answer is {out.dtype}")


def _state_size(deq: Any, x: Tensor) -> int:
    with torch.no_grad():
        return hidden_map(deq, x[:1])[1].numel()
