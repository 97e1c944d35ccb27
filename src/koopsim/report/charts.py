"""A chart of the page: series of points, the axes one may choose from, and how they are drawn.

Here it is only data. assets/page.js draws it, answers to the mouse and to its switches.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class PointSeries:
    """Points that are toggled together with others of the same name. Each point has a value for every column."""

    name: str
    slot: int  # colour
    points: Sequence[Sequence[float]]
    detail: str = ""  # of the whole series, in tooltips
    texts: Sequence[str] = ()  # one a point, in tooltips


@dataclass(frozen=True)
class Axis:
    """A column that is drawn along an axis, at first on a logarithmic scale or not."""

    column: int
    log: bool = False
    whole: bool = False  # it counts something: no ticks between numbers


@dataclass(frozen=True)
class Chart:
    """Series in the plane. `x` lists the columns a reader may choose from."""

    title: str
    columns: Sequence[str]
    x: Sequence[Axis]
    y: Axis
    marks: Literal["line", "dots", "steps"]
    series: list[PointSeries] = field(default_factory=list)
    switches: bool = False  # offer log/linear
    plane: bool = False  # equal scales, and the unit circle
    rule: tuple[float, str] | None = None  # a level to compare with, and what it is

    def data(self) -> dict[str, Any]:
        """What the page's script draws, as plain values."""
        return asdict(self)


def short(value: float) -> float:
    """Five digits: what a tooltip shows, at half the bytes."""
    return float(f"{value:.5g}")
