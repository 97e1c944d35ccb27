"""The page: everything that was found, in one HTML file that needs no network and no other file.

findings -> sections of tables, charts and pictures -> index.html
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from koopsim.report.charts import Chart
from koopsim.report.collect import Findings, Measurement
from koopsim.report.compare import BYTES, Comparison, data_uri
from koopsim.report.names import machine_of
from koopsim.report.tables import Table

ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its table of contents."""

    name: str  # its anchor
    title: str
    body: str

    def html(self) -> str:
        return f'<section id="{self.name}">\n<h2>{html.escape(self.title)}</h2>\n{self.body}\n</section>'


@dataclass(frozen=True)
class Card:
    """A number that is worth the first look."""

    number: str
    meaning: str


def page(sections: Sequence[Section], cards: Sequence[Card], found: Findings) -> str:
    """The whole file."""
    links = "\n".join(f'<a href="#{s.name}">{html.escape(s.title)}</a>' for s in sections)
    numbers = "".join(f"<div><b>{html.escape(c.number)}</b>{html.escape(c.meaning)}</div>" for c in cards)
    style, script = ((ASSETS / name).read_text() for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>koopsim: report</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<div class="page">
<nav aria-label="Contents"><b>koopsim</b>
{links}
<button id="theme" type="button">theme</button></nav>
<main>
<h1>Stable Invariant Models, measured</h1>
<p class="note">{html.escape(_summary(found))}</p>
<div class="cards">{numbers}</div>
<noscript><p>The charts need JavaScript; the same figures lie beside this page as PNG and SVG.</p></noscript>
{chr(10).join(s.html() for s in sections)}
</main>
</div>
<div id="tip" role="status" hidden></div>
<script>
{script}</script>
</body>
</html>
"""


def _summary(found: Findings) -> str:
    machines = sorted({machine_of(r) for r in found.runs})
    return found.counts() + (f", on {' and '.join(machines)}" if machines else "") + "."


def table_html(table: Table, name: str) -> str:
    """A table, and links to its other forms, which lie beside the page."""
    forms = "".join(
        f'<a href="{name}.{form}">{text}</a>' for form, text in (("csv", "CSV"), ("md", "Markdown"), ("tex", "LaTeX"))
    )
    return f'{table.html()}<p class="files">{forms}</p>'


def charts_html(charts: Sequence[Chart], kind: str = "") -> str:
    return f'<div class="charts{kind}">' + "\n".join(chart.html() for chart in charts) + "</div>"


def compares_html(comparisons: Sequence[Comparison]) -> tuple[str, int]:
    """(the pictures with their sliders, how many there was no room for)."""
    figures, room = [], BYTES
    for place, comparison in enumerate(comparisons):
        figure = _compare_html(comparison)
        room -= len(figure)
        if room < 0:
            return f'<div class="compares">{"".join(figures)}</div>', len(comparisons) - place
        figures.append(figure)
    return f'<div class="compares">{"".join(figures)}</div>', 0


def _compare_html(comparison: Comparison) -> str:
    buttons, images = [], []
    models = sorted(comparison.models.items(), key=lambda m: -(m[1][1] or 0))  # the best one first
    for i, (title, (values, psnr)) in enumerate(models):
        shown = html.escape(title + (f", {psnr:.1f} dB" if isinstance(psnr, (int, float)) else ""))
        pressed, hidden = ("true", "") if i == 0 else ("false", " hidden")
        buttons.append(
            f'<button type="button" aria-pressed="{pressed}" data-name="{html.escape(title)}">{shown}</button>'
        )
        images.append(f'<img class="over" alt="{html.escape(title)}" src="{data_uri(values)}"{hidden}>')
    name, first = html.escape(f"{comparison.pictures}: {comparison.name}"), html.escape(models[0][0])
    return (
        f'<figure class="compare"><figcaption>{name}</figcaption><div class="models">{"".join(buttons)}</div>'
        f'<div class="stage" style="--at:50%"><img alt="truth" src="{data_uri(comparison.truth)}">{"".join(images)}'
        f'<div class="handle"></div><span class="left">truth</span><span class="right">{first}</span>'
        f'<input type="range" min="0" max="100" step="0.5" value="50" aria-label="truth against model, {name}">'
        "</div></figure>\n"
    )


def measurement_html(measurement: Measurement) -> str:
    """A benchmark's rows as they are, folded away; a whole configuration among their values is for the file."""
    keys = dict.fromkeys(key for row in measurement.rows for key in row)
    head = [key for key in keys if not any(isinstance(row.get(key), (dict, list)) for row in measurement.rows)]
    rows = [[_plain(row.get(key)) for key in head] for row in measurement.rows]
    where = measurement.environment
    note = f"{where.get('command') or 'command unknown'}, at {where.get('commit') or 'an unknown commit'}"
    table = Table(measurement.name, [key.replace("_", " ") for key in head], rows, note)
    return f"<details><summary>{html.escape(measurement.name)}</summary>{table.html()}</details>"


def _plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def list_html(lines: Sequence[str]) -> str:
    return '<ul class="plain">' + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
