"""What a SIM is, computed on two small cells: Figure 1 (a DEQ beside a SIM) and Figure 3 (the two tiers).

    Figure 1    z_{l+1} = f(z_l, x) -> z*   beside   z = phi^-1(U V phi(0, x)),  U V = P_1     paper, eq. (2), (9)
    Figure 3    single-tier: P_1 phi -> the point z*;  two-tier: P'_1 psi -> a set's measure   paper, eq. (9), (10)

The paper draws both as diagrams; here every point is computed, the projectors by `closed_form` and `closed_measure`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.bridge import closed_form, closed_measure
from koopsim.bridge.cells import LimitCycle, example_inputs
from koopsim.files.writing import write_png_and_svg
from koopsim.implicit import DEQ
from koopsim.spectral import Monomials

TURN, SHRINK = 0.9, 0.8  # radians and factor a step of the cell that settles
SHOWN = 24  # steps of it that are drawn
ORBIT = 400  # states of the cell that does not settle


class Spiral(nn.Module):
    """f(z, x) = R z + x: turns and shrinks, so z* = (I - R)^-1 x, and phi(z, x) = (1, z, x) is closed under it."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        c, s = SHRINK * np.cos(TURN), SHRINK * np.sin(TURN)
        return z @ torch.tensor([[c, s], [-s, c]], dtype=z.dtype) + x


def paths(cell: nn.Module, x: Tensor, steps: int) -> np.ndarray:
    """z_0, z_1, ..., z_steps of each input, (inputs, steps + 1, 2)."""
    states = [cell.initial(x) if isinstance(cell, LimitCycle) else torch.zeros_like(x)]
    for _ in range(steps):
        states.append(cell(states[-1], x))
    return torch.stack(states, 1).numpy()


def spirals() -> tuple[np.ndarray, np.ndarray]:
    """Of the cell that settles, on inputs nothing was fitted to: its iterates, and what the SIM gives at once."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, dtype=torch.float64, generator=draw)
    sim = closed_form(DEQ(Spiral(), max_steps=100), x[:30], Monomials(1))
    return paths(Spiral(), x[30:34], SHOWN), sim(x[30:34]).numpy()


def ring_of_measure(x: Tensor) -> float:
    """sqrt(E |z|^2) under the invariant measure of the cell that does not settle, of the first input, by P'_1."""
    measure = closed_measure(DEQ(LimitCycle(), max_steps=100), x[1:])
    return float(measure.average(lambda z: z.square().sum(1, keepdim=True))(x[:1])) ** 0.5


def figure1(folder: Path) -> list[Path]:
    """A DEQ's iterates on their way, and the SIM's answer after its three steps, as PNG and SVG."""
    from matplotlib.figure import Figure

    walked, answer = spirals()
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    plane, errors = figure.subplots(1, 2)
    for number, (path, point) in enumerate(zip(walked, answer, strict=True)):
        plane.plot(*path.T, ".-", lw=0.8, ms=4, color=f"C{number}")
        plane.plot(*point, "o", mfc="none", ms=12, mew=2, color=f"C{number}")
        away = np.linalg.norm(path - point, axis=1) / np.linalg.norm(point)
        errors.semilogy(away, ".-", lw=0.8, ms=4, color=f"C{number}")
    plane.set(title="four inputs: $z_{l+1} = f(z_l, x)$ (dots)\nand $z = U V \\varphi(0, x)$ (rings)", aspect="equal")
    errors.set(
        title="how far the DEQ still is from the SIM's answer", xlabel="evaluations of f", ylabel="relative distance"
    )
    return write_png_and_svg(folder, "figure1", figure, dpi=130)


def figure3(folder: Path) -> list[Path]:
    """Both tiers: what settles goes to a point, what does not has a measure that stays; as PNG and SVG."""
    from matplotlib.figure import Figure

    walked, answer = spirals()
    x = example_inputs(300, 1).double()
    orbit = paths(LimitCycle(), x[:1], ORBIT)[0]
    radius = ring_of_measure(x)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    one, two = figure.subplots(1, 2)
    one.plot(*walked[0].T, ".-", color="C0", lw=0.8, ms=4, label="$z_l$")
    one.plot(*answer[0], "o", color="C3", ms=9, label="$z^* \\approx \\varphi^{-1}(U V \\varphi)$")
    one.set(title="single-tier: the Koopman operator's eigenvalue 1,\na point", aspect="equal")
    two.plot(*orbit[:40].T, "-", color="C0", lw=0.5, alpha=0.5, label="$z_l$, first steps")
    two.plot(*orbit[40:].T, ".", color="C0", ms=3, label="$z_l$, later: an invariant set")
    angle = np.linspace(0, 2 * np.pi, 200)
    ring = radius * np.array([np.cos(angle), np.sin(angle)])
    two.plot(*ring, "--", color="C3", lw=1.5, label="radius $\\sqrt{E|z|^2}$, by $U' V' \\psi$")
    two.set(title="two-tier: the Perron-Frobenius operator's eigenvalue 1,\na measure on a set", aspect="equal")
    for axis in (one, two):
        axis.legend(fontsize=8)
    return write_png_and_svg(folder, "figure3", figure, dpi=130)
