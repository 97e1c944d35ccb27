"""The page: everything that was found, in one HTML file that needs no network and no other file.

    sections of tables, charts and pictures -> templates/page.html -> index.html

What a piece looks like is a macro of templates/pieces.html. The templates escape what they are given.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from koopsim.report.tables import Table

HERE = Path(__file__).parent

PieceKind = Literal["words", "note", "lines", "table", "filed", "charts", "planes", "bars", "sliders", "folded"]


@dataclass(frozen=True)
class Piece:
    """Something that a section shows: the macro that draws it, and what it is."""

    kind: PieceKind
    of: Any


@dataclass(frozen=True)
class Filed:
    """A table that also lies beside the page, as name.csv, name.md and name.tex."""

    table: Table
    name: str


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its table of contents."""

    name: str  # its anchor
    title: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Card:
    """A number that is worth the first look."""

    number: str
    meaning: str


def page(sections: Sequence[Section], cards: Sequence[Card], summary: str) -> str:
    """The whole file."""
    from markupsafe import Markup

    style, script = (Markup((HERE / "assets" / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    template = _templates().get_template("page.html")
    return template.render(sections=sections, cards=cards, summary=summary, style=style, script=script)


def piece_html(piece: Piece) -> str:
    """One piece by itself."""
    return str(getattr(_templates().get_template("pieces.html").module, piece.kind)(piece.of))


@functools.cache
def _templates():
    """jinja2, which comes with torch: escaping, and strict about what a template asks for."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made
