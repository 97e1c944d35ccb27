"""The spectra of trained SIMs: the eigenvalues of U V, all of which would be 1 or 0 were it the theory's projector.

    lim A^l phi = U V phi,   V U = I_K in theory                             paper, eq. (7) and (9)

Read from the weights that run directories hold. What would take long is left out, and said.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim import kinds
from koopsim.errors import KoopsimError
from koopsim.files.writing import figure_text, write_png_and_svg
from koopsim.report.charts import Axis, Chart, PointSeries, short
from koopsim.report.kinds import Result, model_kind_of
from koopsim.report.names import kind_of, look_of, place_of, seed_of, title_of
from koopsim.report.tables import Table
from koopsim.runs import RunDirectory

LARGEST = 256  # rows of U V; larger ones take seconds each
SECONDS = 8.0  # of this process, for all spectra of a page


@dataclass(frozen=True)
class RunSpectrum:
    """The limit operator of one run."""

    name: str
    place: str
    seed: int | str
    dim: int
    rank: int
    defect: float  # || V U - I ||_F / sqrt(K)
    eigenvalues: NDArray[np.complex128]  # the K of U V that need not vanish
    singular_values: NDArray[np.float64]
    case: str


def spectra(results: Sequence[Result]) -> tuple[list[RunSpectrum], list[str]]:
    """(the spectra of runs that hold a SIM's weights, what was left out and why)."""
    found, left_out, spent = [], [], 0.0
    seen: set[tuple[str, str]] = set()
    for result in results:
        folder = Path(result["path"]).parent
        if not model_kind_of(result).has_limit or not (folder / "checkpoint.safetensors").exists():
            continue
        key = (result["name"], place_of(result))
        if key in seen:  # one seed of each is enough to see
            continue
        if spent > SECONDS:
            left_out.append(f"{folder}: the {SECONDS:.0f} seconds for spectra were over; koopsim spectrum {folder}")
            continue
        began = time.process_time()
        try:
            found.append(_spectrum(result, folder))
            seen.add(key)
        except (KoopsimError, OSError, ValueError, TypeError, OverflowError) as error:
            left_out.append(f"{folder}: {' '.join(str(error).split())}")
        spent += time.process_time() - began
    return found, left_out


def _spectrum(result: Result, folder: Path) -> RunSpectrum:
    from koopsim.bridge import examine
    from koopsim.training import load_run

    _, run = RunDirectory(folder).read_config()
    dim = kinds.model_kind(run.model).limit_dim(run.model)
    if dim is None:
        raise KoopsimError(f"its configuration is of a {type(run.model).__name__}, its result of a SIM")
    if dim > LARGEST:
        raise KoopsimError(f"U V has {dim} rows, more than {LARGEST}; koopsim spectrum {folder}")
    model = load_run(folder)
    models: list[Any] = list(model) if type(model).__name__ == "ModuleList" else [model]  # pyright: ignore
    seen = examine(models[0])  # of a set of pictures, the first one's network
    values = seen.verdict.eigenvalues
    values = values[np.argsort(-np.abs(values))][: seen.rank]
    return RunSpectrum(
        result["name"], place_of(result), seed_of(result), seen.dim, seen.rank, seen.defect, values,
        seen.singular_values, seen.verdict.case,
    )  # fmt: skip


def spectrum_table(found: Sequence[RunSpectrum]) -> Table | None:
    """One row a run."""
    if not found:
        return None
    rows = [
        [
            s.place, title_of(s.name), s.case, f"{s.dim}", f"{s.rank}", f"{np.abs(s.eigenvalues).max():.3f}",
            f"{np.mean(np.abs(s.eigenvalues - 1) < 0.1):.0%}", f"{s.defect:.2f}", f"{s.singular_values[0]:.2f}",
        ]
        for s in found
    ]  # fmt: skip
    head = ["data", "model", "applied again and again", "N", "K", "max |λ|", "near 1", "defect", "σ max"]
    note = (
        "Of U V, of rank K in N dimensions, of the first seed with weights. Defect: ‖V U − I‖ / √K, 0 for a projector. "
        "Near 1: eigenvalues within 0.1 of it. The paper leaves U and V free, so nothing holds them there; as a "
        "projector, U (V U)⁻¹ V, it has K eigenvalues 1, and projector=True trains that."
    )
    return Table("Spectra of the limit operators", head, rows, note, words=3)


def spectrum_charts(found: Sequence[RunSpectrum]) -> list[Chart]:
    """One complex plane a data set: the eigenvalues of each model, and the unit circle."""
    charts: dict[str, Chart] = {}
    for s in found:
        empty = Chart(s.place, ("Re λ", "Im λ"), (Axis(0),), Axis(1), "dots", plane=True)
        points = [[short(v.real), short(v.imag)] for v in s.eigenvalues]
        series = PointSeries(title_of(s.name), look_of(s.name).slot, points, f"K = {s.rank}, {s.case}")
        charts.setdefault(s.place, empty).series.append(series)
    for chart in charts.values():
        chart.series.append(PointSeries("as projectors", 9, [[1.0, 0.0]], "U (V U)⁻¹ V of each: 1, K times"))
    return list(charts.values())


def spectrum_figure(found: Sequence[RunSpectrum], folder: Path) -> list[Path]:
    """The same planes side by side, as PNG and SVG."""
    if not found:
        return []
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    places = list(dict.fromkeys(s.place for s in found))
    figure = Figure(figsize=(3.6 * len(places), 3.8), layout="constrained")
    for place, axis in zip(places, figure.subplots(1, len(places), squeeze=False)[0], strict=True):
        axis.add_patch(Circle((0, 0), 1, fill=False, color="0.6", linestyle="--"))
        axis.scatter([1], [0], s=60, facecolors="none", edgecolors="0.3", label="as projectors")
        for s in (s for s in found if s.place == place):
            best: dict = {"alpha": 0.8} | ({"marker": "x"} if kind_of(s.name).endswith(":best") else {})
            axis.scatter(s.eigenvalues.real, s.eigenvalues.imag, s=14, label=figure_text(title_of(s.name)), **best)
        axis.set_aspect("equal", "datalim")
        axis.set_title(figure_text(place), fontsize=10)
        axis.set_xlabel("Re λ")
        axis.legend(frameon=False, fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    return write_png_and_svg(folder, "spectra", figure)
