"""What the page says, section by section: the paper's tables in its order, then what stands behind them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from koopsim.report.collect import Findings, Measurement
from koopsim.report.compare import SMALL, SideBySide, sliders
from koopsim.report.curves import curve_charts
from koopsim.report.kinds import task_kind_of
from koopsim.report.names import machine_of, place_of, title_of
from koopsim.report.other_tasks import PREFIX
from koopsim.report.page import Card, Filed, Piece, Section, page
from koopsim.report.search_views import search_charts
from koopsim.report.spectra import RunSpectrum, spectrum_charts
from koopsim.report.speed import Ratio, speed_bars
from koopsim.report.table_views import table_pieces
from koopsim.report.tables import Table
from koopsim.words import Figure

PAPER = {
    "table1": "Table 1: copy memory", "table2": "Table 2: image classification", "table3": "Table 3: image regression",
}  # fmt: skip
MOST_CARDS = 8
SLIDE = (
    "Drag across a picture: the truth on the left, the model on the right. Of pictures wider than "
    f"{SMALL} pixels only the test pixels are shown, which no model has seen."
)
POINT = "Point at a curve for its figures; click a name to hide or show it. Each line is a run."
PLANES = (
    "Dots are the eigenvalues of a trained U V that need not vanish; dashed is the unit circle. The model applies U V "
    "once, so a dot near 0 is no fault: the paper leaves U and V free, the networks before and after absorb their "
    "scale, and nothing in training asks for 1. What U V stands for is the projector onto the same directions, "
    "U (V U)⁻¹ V, whose eigenvalues are 1 (its dot is in the plane too) and 0. The verdict in the table is about "
    "applying U V again and again: 'origin' means that it would fade, not that the model is wrong."
)


@dataclass(frozen=True)
class Content:
    """What a report says, before it is written anywhere."""

    found: Findings
    faster: list[Ratio]
    planes: list[RunSpectrum]
    pairs: list[SideBySide]
    tables: dict[str, Table]
    left_out: list[str]

    def page(self) -> str:
        """index.html"""
        return page(self.sections(), first_looks(self.found, self.faster), _summary(self.found))

    def sections(self) -> list[Section]:
        """Those that have something to show."""
        others = {name: table.title for name, table in self.tables.items() if name.startswith(PREFIX)}
        given = [Section(name, title, self._table(name)) for name, title in (PAPER | others).items()]
        curves = curve_charts(self.found.runs)
        given += [
            Section("pictures", "Pictures", _pictures(self.pairs) if self.pairs else []),
            Section("rows", "Tables, looked at", table_pieces(self.found.runs)),
            Section("curves", "Learning curves", [Piece("words", POINT), Piece("charts", curves)] if curves else []),
            Section("speed", "Training speed", self._speed() if self.faster else []),
            Section("spectra", "Spectra", self._spectra() if self.planes else []),
            Section("searches", "Searches", self._searches() if self.found.searches else []),
            Section("measurements", "Measurements", _measurements(self.found.measurements)),
            Section("runs", "Every run", self._table("runs")),
            Section("left-out", "Left out", _left_out(self.left_out) if self.left_out else []),
        ]
        return [section for section in given if section.pieces]

    def _table(self, name: str) -> list[Piece]:
        return [Piece("filed", Filed(self.tables[name], name))] if name in self.tables else []

    def _speed(self) -> list[Piece]:
        return [Piece("bars", speed_bars(self.faster)), *self._table("speed")]

    def _spectra(self) -> list[Piece]:
        return [Piece("words", PLANES), Piece("planes", spectrum_charts(self.planes)), *self._table("spectra")]

    def _searches(self) -> list[Piece]:
        charts = [chart for pair in search_charts(self.found.searches) for chart in pair]
        return [*self._table("searches"), Piece("charts", charts)]


def _left_out(lines: Sequence[str]) -> list[Piece]:
    return [Piece("words", "What could not be read or shown, and why."), Piece("lines", lines)]


def _measurements(found: Sequence[Measurement]) -> list[Piece]:
    return [Piece("folded", measurement_table(measurement)) for measurement in found]


def _pictures(pairs: Sequence[SideBySide]) -> list[Piece]:
    shown, missing = sliders(pairs)
    more = [Piece("note", f"{missing} more are not shown, to keep this page small.")] if missing else []
    return [Piece("words", SLIDE), Piece("sliders", shown), *more]


def measurement_table(measurement: Measurement) -> Table:
    """A benchmark's rows as they are; a whole configuration among their values is for the file."""
    keys = dict.fromkeys(key for row in measurement.rows for key in row)
    head = [key for key in keys if not any(isinstance(row.get(key), (dict, list)) for row in measurement.rows)]
    rows = [[_plain(row.get(key)) for key in head] for row in measurement.rows]
    where = measurement.environment
    note = f"{where.get('command') or 'command unknown'}, at {where.get('commit') or 'an unknown commit'}"
    return Table(measurement.name, [key.replace("_", " ") for key in head], rows, note)


def _plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _summary(found: Findings) -> str:
    machines = sorted({machine_of(r) for r in found.runs})
    return found.counts() + (f", on {' and '.join(machines)}" if machines else "") + "."


def first_looks(found: Findings, faster: Sequence[Ratio]) -> list[Card]:
    """The best ratio against each implicit model, and the best mean over seeds of each data set."""
    made = []
    for other in dict.fromkeys(r.other for r in faster):
        theirs = [r for r in faster if r.other == other]
        equal = [r for r in theirs if r.sim_setting == r.other_setting]
        best = max(equal or theirs, key=lambda r: r.times)
        unequal = f"batch {best.sim_setting} against {best.other_setting}: not equal settings"
        how = f"batch {best.sim_setting} both" if equal else unequal
        said = f"faster an epoch: {title_of(best.sim)} against {title_of(other)}, {best.place} ({how})"
        made.append(Card(f"{best.times:.1f}×", said))
    places: dict[tuple[str, Figure], dict[str, list[float]]] = {}
    for run in found.runs:
        if "test" in run:
            judged = task_kind_of(run).judged
            seeds = places.setdefault((place_of(run), judged), {}).setdefault(run["name"], [])
            seeds.append(run["test"][judged.key])
    for (place, judged), models in places.items():
        means = {name: statistics.mean(values) for name, values in models.items()}
        best = judged.best(means)
        made.append(Card(judged.short.format(means[best]), f"test {judged.title}, {place}: {title_of(best)}"))
    return made[:MOST_CARDS]
