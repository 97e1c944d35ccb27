"""From findings to a folder: tables in four forms, figures as PNG and SVG, and the page that shows it all."""

from dataclasses import dataclass, replace
from pathlib import Path

from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.report.classification import classification_table, learning_curves
from koopsim.report.collect import Findings
from koopsim.report.compare import SideBySide, comparisons
from koopsim.report.copy_memory import copy_memory_table, figure4
from koopsim.report.names import in_order
from koopsim.report.other_tasks import other_tables
from koopsim.report.pictures import image_table
from koopsim.report.repeat import runs_table
from koopsim.report.search_views import search_table
from koopsim.report.sections import Content
from koopsim.report.spectra import spectra, spectrum_figure, spectrum_table
from koopsim.report.speed import ratios, speed_figure, speed_table
from koopsim.report.table_views import table_figure
from koopsim.report.tables import Table
from koopsim.runs import write_atomically

PAGE = "index.html"
TITLE = b"<title>koopsim: report</title>"  # what a report from before there were markers is known by
TABLES = ("table1", "table2", "table3", "speed", "spectra", "searches", "runs")
DRAWN = ("figure1", "figure2", "figure3", "figure4", "figure5", "classification", "speed", "spectra", "tables")
REPORT_FILES = (
    PAGE, *(f"{name}.{form}" for name in TABLES for form in ("md", "csv", "tex")),
    *(f"{name}.{form}" for name in DRAWN for form in ("png", "svg")),
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What was written, the tables by file name, and what could not be shown."""

    files: list[Path]
    tables: dict[str, Table]
    left_out: list[str]


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
    tables = {name: table for name, table in given.items() if table is not None} | other_tables(found.runs)
    return Content(found, faster, planes, pairs, tables, [*found.skipped, *no_spectra, *no_pictures])


@folders.known_before_markers
def _report_before_markers(folder: Path) -> tuple[str, ...]:
    """A page with our title is a report's, though its folder has no marker."""
    try:
        with (folder / PAGE).open("rb") as file:
            return REPORT_FILES if TITLE in file.read(2000) else ()
    except OSError:
        return ()


def build_report(found: Findings, out: Path, overwrite: bool = False) -> Report:
    """Write the report of `found` into the folder `out`: index.html first. `overwrite`: whatever has its names."""
    content = compose(found)
    texts = {PAGE: content.page()}
    for name, table in content.tables.items():
        texts |= {f"{name}.md": table.markdown(), f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
    with folders.held(out):
        folders.claim(out, "report", {*REPORT_FILES, *texts}, overwrite)
        return _written(content, texts, out)


def _written(content: Content, texts: dict[str, str], out: Path) -> Report:
    try:
        for name, text in texts.items():
            write_atomically(out / name, (text.rstrip("\n") + "\n").encode())
        runs = content.found.runs
        figures = figure4(runs, out) + learning_curves(runs, out) + speed_figure(content.faster, out)
        figures += spectrum_figure(content.planes, out) + _figure5(content.pairs, out) + table_figure(runs, out)
    except OSError as error:
        raise KoopsimError(f"Cannot write into {out}: {error.strerror}.") from error
    return Report([*(out / name for name in texts), *figures], content.tables, content.left_out)


def _figure5(pairs: list[SideBySide], out: Path) -> list[Path]:
    """Figure 5: truth and models side by side, of the pictures that all models drew."""
    from koopsim.pictures.figures import figure5

    most = max((len(pair.models) for pair in pairs), default=0)
    full = [pair for pair in pairs if len(pair.models) == most and list(pair.models) == list(pairs[0].models)]
    if not full:
        return []
    rows = [{"truth": pair.truth, **{title: values for title, (values, _) in pair.models.items()}} for pair in full[:4]]
    psnrs = [{t: p for t, (_, p) in pair.models.items() if p is not None} for pair in full[:4]]
    return [figure5(rows, out / f"figure5.{form}", psnrs) for form in ("png", "svg")]
