"""Bars: lengths beside labels. Plain HTML, readable without a script."""

import html
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


def bars_html(title: str, bars: Sequence[Bar]) -> str:
    """The longest one is as wide as there is room."""
    longest = max(bar.value for bar in bars)
    rows = "\n".join(
        f'<div class="bar" data-tip="{html.escape(bar.detail)}"><span>{html.escape(bar.label)}</span>'
        f'<i><b class="s{bar.slot}" style="width:{100 * bar.value / longest:.1f}%"></b>'
        f"<em>{html.escape(bar.shown)}</em></i></div>"
        for bar in bars
    )
    return f'<figure class="bars"><figcaption>{html.escape(title)}</figcaption>{rows}</figure>'
