"""Bars: lengths beside labels. Plain HTML, readable without a script."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A length, what it is of, what stands at its end, and what a tooltip adds."""

    label: str
    value: float
    shown: str
    detail: str
    slot: int


@dataclass(frozen=True)
class Bars:
    """The longest one is as wide as there is room."""

    title: str
    bars: Sequence[Bar]

    def share(self, bar: Bar) -> float:
        return bar.value / max(each.value for each in self.bars)
