"""koopsim spectrum --cell module:function: the case, the spectrum and the set of a cell of one's own.

A cell is f(z, x), a torch module or a function, or a class that makes one; where it has `initial(x)` that is z_0.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError

MOST_DIGITS = 1e6  # of a modulus before the point


def load_cell(name: str) -> Any:
    """The cell that `module:function` names, looked for in the working directory too."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise KoopsimError(f"--cell is {name!r}; expected module:function, as in mymodel:cell.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise KoopsimError(f"--cell {name}: the module {module!r} cannot be imported: {error}.") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    cell = getattr(found, attribute, None)
    if cell is None:
        raise KoopsimError(f"--cell {name}: {module} has no {attribute!r}.")
    try:
        cell = cell() if isinstance(cell, type) else cell
    except TypeError as error:
        raise KoopsimError(f"--cell {name}: {attribute} cannot be made without arguments: {error}.") from error
    if not callable(cell):
        raise KoopsimError(f"--cell {name}: {attribute} is a {type(cell).__name__}, not something to call as f(z, x).")
    return cell


def cell_inputs(path: Path | None, count: int, size: int) -> Any:
    """The rows of a file, or `count` points at random in [-1, 1]^size."""
    import torch

    if count < 1 or size < 1:
        raise KoopsimError(f"--inputs is {count} and --input-size {size}; both must be at least 1.")
    if path is None:
        return 2 * torch.rand(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    from koopsim.datasets.series import read_numbers

    x = read_numbers(path)
    if x.ndim != 2:
        raise KoopsimError(f"{path} holds an array of shape {x.shape}; inputs are rows, (inputs, size).")
    return torch.as_tensor(x, dtype=torch.float64)[:count]


def describe_cell(name: str, x: Any, steps: int, stages: Any) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """(lines, values, figures): what the iteration does on each input, its spectra, and the sets it ends in."""
    from koopsim.bridge import linearise, observe, plot_observation, settling
    from koopsim.bridge.hidden import in_float64
    from koopsim.bridge.sets import plot_sets, set_of

    cell = in_float64(load_cell(name))  # the inputs are
    try:
        went = settling(cell, x, starts=1)
        spread = reach_of(cell, x, went.ends)
        seen = observe(cell, x, steps, starts=6, spread=spread, progress=stages.begin("observing"))
        local = linearise(cell, x, progress=stages.begin("linearising"))
    except KoopsimError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise KoopsimError(
            f"--cell {name} failed on inputs of shape {tuple(x.shape)}: {' '.join(str(error).split())[:200]}. "
            "Give it the inputs it expects (--x FILE, --input-size), and an initial(x) if z_0 is not zeros like x."
        ) from error
    sets = [set_of(states) for states in seen.states]
    lines = [f"{name}: a cell, on {len(x)} inputs, {seen.states.shape[1]} starts each, {steps} steps"]
    lines += _table(seen, local, went.cases, sets)
    lines += _warning(local, went.cases)
    values = {
        "kind": "cell", "inputs": len(x), "cases": list(went.cases), "verdicts": list(seen.cases),
        "jacobian_radius": [l.radius if l.found else None for l in local], "sets": [s.to_dict() for s in sets],
        "eigenvalues": [[[float(w.real), float(w.imag)] for w in v.eigenvalues] for v in seen.verdicts],
    }  # fmt: skip
    titles = [f"input {i}" for i in range(len(sets))]
    return lines, values, {"inputs": plot_observation(seen, local), "sets": plot_sets(sets, titles)}


def reach_of(cell: Any, x: Any, ends: Any) -> float:
    """How far apart starts must be to be as far apart as the ends of the iteration, in units of f(z_0)."""
    import torch

    from koopsim.bridge.hidden import hidden_map

    with torch.no_grad():
        f, z = hidden_map(cell, x)
        first, last = (t.double().square().mean().sqrt().nan_to_num(1.0, 1.0, 1.0) for t in (f(z), ends))
    return float((last / first.clamp_min(1e-3)).clamp(1.0, 100.0))


def _warning(local: list[Any], cases: tuple[str, ...]) -> list[str]:
    """What a solver would say, where it is not where the iteration goes."""
    repelling = [case for l, case in zip(local, cases, strict=True) if l.found and not l.stable]
    settled = repelling.count("fixed-point")
    if not repelling:
        return []
    share = f"{len(repelling)} of {len(cases)} inputs"
    lines = [f"On {share} a solver finds an equilibrium that repels: nothing goes there."]
    if settled:
        lines.append(f"  On {settled} the iteration settles elsewhere; distill() learns z_0's branch.")
    if moving := repelling.count("invariant-set"):
        lines.append(f"  On {moving} it does not settle; distill() learns its invariant measure.")
    return lines


def _table(seen: Any, local: list[Any], cases: tuple[str, ...], sets: list[Any]) -> list[str]:
    """A line an input, sixteen at most."""
    lines = ["  input  iteration      verdict        |eigenvalue|  rho(df/dz)  set"]
    for i, (case, verdict, v, l, s) in enumerate(zip(cases, seen.cases, seen.verdicts, local, sets, strict=True)):
        if i == 16:
            lines.append(f"  ... and {len(sets) - 16} more")
            break
        largest = float(abs(v.eigenvalues).max()) if v.eigenvalues.size else 0.0
        radius = f"{l.radius:10.4f}" if l.found else "         -"
        lines.append(f"  {i:5d}  {case:13s}  {verdict:13s}  {_short(largest)}  {radius}  {s}")
    return lines


def _short(size: float) -> str:
    return f"{size:12.4f}" if size < MOST_DIGITS else f"{size:12.3e}"
