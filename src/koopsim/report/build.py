"""From findings to a folder: tables in four forms, figures as PNG and SVG, and the page that shows it all."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from koopsim.errors import KoopsimError
from koopsim.report.classification import classification_table, learning_curves
from koopsim.report.collect import Findings
from koopsim.report.compare import SMALL, Comparison, comparisons
from koopsim.report.copy_memory import copy_memory_table, figure3
from koopsim.report.curves import curve_charts
from koopsim.report.names import in_order, place_of, title_of
from koopsim.report.page import (
    Card,
    Section,
    charts_html,
    compares_html,
    list_html,
    measurement_html,
    page,
    table_html,
)
from koopsim.report.pictures import image_table
from koopsim.report.repeat import runs_table
from koopsim.report.search_views import search_charts, search_table
from koopsim.report.spectra import RunSpectrum, spectra, spectrum_charts, spectrum_figure, spectrum_table
from koopsim.report.speed import Ratio, ratios, speed_bars, speed_figure, speed_table
from koopsim.report.tables import Table
from koopsim.runs import write_atomically

PAPER = {
    "table1": "Table 1: copy memory", "table2": "Table 2: image classification", "table3": "Table 3: image regression",
}  # fmt: skip
MOST_CARDS = 8


@dataclass(frozen=True)
class Report:
    """What was written, the tables by file name, and what could not be shown."""

    files: list[Path]
    tables: dict[str, Table]
    left_out: list[str]


@dataclass(frozen=True)
class Content:
    """What a report says, before it is written anywhere."""

    found: Findings
    faster: list[Ratio]
    planes: list[RunSpectrum]
    pairs: list[Comparison]
    tables: dict[str, Table]
    left_out: list[str]

    def page(self) -> str:
        """index.html"""
        return page(_sections(self), _cards(self.found, self.faster), self.found)


def compose(found: Findings) -> Content:
    """Everything of `found` that can be shown, in the order of the paper."""
    found = replace(found, runs=in_order(found.runs))
    planes, no_spectra = spectra(found.runs)
    pairs, no_pictures = comparisons(found.runs)
    faster = ratios(found.runs)
    given = {
        "table1": copy_memory_table(found.runs), "table2": classification_table(found.runs),
        "table3": image_table(found.runs), "speed": speed_table(faster), "spectra": spectrum_table(planes),
        "searches": search_table(found.searches), "runs": runs_table(found.runs),
    }  # fmt: skip
    tables = {name: table for name, table in given.items() if table is not None}
    return Content(found, faster, planes, pairs, tables, [*found.skipped, *no_spectra, *no_pictures])


def build_report(found: Findings, out: Path) -> Report:
    """Write the report of `found` into the folder `out`: index.html first."""
    content = compose(found)
    texts = {"index.html": content.page()}
    for name, table in content.tables.items():
        texts |= {f"{name}.md": table.markdown(), f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(out / name, (text.rstrip("\n") + "\n").encode())
        runs = content.found.runs
        figures = figure3(runs, out) + learning_curves(runs, out) + speed_figure(content.faster, out)
        figures += spectrum_figure(content.planes, out) + _figure4(content.pairs, out)
    except OSError as error:
        raise KoopsimError(f"Cannot write into {out}: {error.strerror}.") from error
    return Report([*(out / name for name in texts), *figures], content.tables, content.left_out)


def _figure4(pairs: list[Comparison], out: Path) -> list[Path]:
    """Figure 4: truth and models side by side, of the pictures that all models drew."""
    from koopsim.pictures.figures import figure4

    most = max((len(pair.models) for pair in pairs), default=0)
    full = [pair for pair in pairs if len(pair.models) == most and list(pair.models) == list(pairs[0].models)]
    if not full:
        return []
    rows = [{"truth": pair.truth, **{title: values for title, (values, _) in pair.models.items()}} for pair in full[:4]]
    psnrs = [{t: p for t, (_, p) in pair.models.items() if p is not None} for pair in full[:4]]
    return [figure4(rows, out / f"figure4.{form}", psnrs) for form in ("png", "svg")]


def _sections(content: Content) -> list[Section]:
    """What there is to show, in the order of the paper, then what stands behind it."""
    found, tables, faster, planes = content.found, content.tables, content.faster, content.planes
    parts = [Section(name, PAPER[name], table_html(tables[name], name)) for name in PAPER if name in tables]
    if content.pairs:
        shown, missing = compares_html(content.pairs)
        said = (
            "Drag across a picture: the truth on the left, the model on the right. Of pictures wider than "
            f"{SMALL} pixels only the test pixels are shown, which no model has seen."
        )
        more = f'<p class="note">{missing} more are not shown, to keep this page small.</p>' if missing else ""
        parts.append(Section("pictures", "Pictures", f"<p>{said}</p>{shown}{more}"))
    curves = curve_charts(found.runs)
    if curves:
        said = "Point at a curve for its figures; click a name to hide or show it. Each line is a run."
        parts.append(Section("curves", "Learning curves", f"<p>{said}</p>{charts_html(curves)}"))
    if faster:
        parts.append(Section("speed", "Training speed", speed_bars(faster) + table_html(tables["speed"], "speed")))
    if planes:
        said = (
            "The eigenvalues of U V that need not vanish. Were it a projector, all would be 1. Dashed: the unit circle."
        )
        charts = charts_html(spectrum_charts(planes), " planes")
        parts.append(Section("spectra", "Spectra", f"<p>{said}</p>{charts}{table_html(tables['spectra'], 'spectra')}"))
    if found.searches:
        charts = charts_html([chart for pair in search_charts(found.searches) for chart in pair])
        parts.append(Section("searches", "Searches", table_html(tables["searches"], "searches") + charts))
    if found.measurements:
        folded = "".join(measurement_html(m) for m in found.measurements)
        parts.append(Section("measurements", "Measurements", folded))
    if found.runs:
        parts.append(Section("runs", "Every run", table_html(tables["runs"], "runs")))
    if content.left_out:
        said = "<p>What could not be read or shown, and why.</p>"
        parts.append(Section("left-out", "Left out", said + list_html(content.left_out)))
    return parts


def _cards(found: Findings, faster: list[Ratio]) -> list[Card]:
    """The best ratio against each implicit model, and the best mean over seeds of each data set."""
    cards = []
    for other in dict.fromkeys(r.other for r in faster):
        best = max((r for r in faster if r.other == other), key=lambda r: r.times)
        cards.append(
            Card(f"{best.times:.1f}×", f"faster an epoch: {title_of(best.sim)} against {title_of(other)}, {best.place}")
        )
    keys = {"CopyMemoryConfig": "loss", "ClassificationConfig": "accuracy", "ImageRegressionConfig": "PSNR"}
    forms = {"loss": "{:.1e}", "accuracy": "{:.2%}", "PSNR": "{:.2f} dB"}
    groups: dict[tuple[str, str, str], list[float]] = {}
    for run in found.runs:
        if "test" in run:
            kind = keys[run["run"]["task"]["kind"]]
            groups.setdefault((place_of(run), kind, run["name"]), []).append(run["test"][kind.lower()])
    for place, kind in dict.fromkeys(key[:2] for key in groups):
        means = {key[2]: statistics.mean(values) for key, values in groups.items() if key[0] == place}
        best = (min if kind == "loss" else max)(means, key=lambda name: means[name])
        cards.append(Card(forms[kind].format(means[best]), f"test {kind}, {place}: {title_of(best)}"))
    return cards[:MOST_CARDS]
