"""Training speed: how many times faster a SIM trains than the DEQ or the monDEQ beside it.

    ratio = seconds an epoch of the implicit model / seconds an epoch of the SIM

Only runs on the same data and the same machine are compared, each by its fastest seed, for others may have shared the
device. An epoch is the same work on the data for both; batch and precision stand beside it, for a larger batch and
fewer bits are quicker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from koopsim.files.writing import write_png_and_svg
from koopsim.report.bars import Bar, Bars
from koopsim.report.collect import seconds_an_epoch
from koopsim.report.kinds import Result, model_kind_of
from koopsim.report.names import kind_of, look_of, machine_of, place_of, title_of
from koopsim.report.tables import Table


@dataclass(frozen=True)
class Ratio:
    """A SIM against an implicit model on the same data."""

    place: str
    sim: str  # preset's names
    other: str
    sim_seconds: float  # an epoch
    other_seconds: float
    sim_setting: str  # batch and precision
    other_setting: str

    @property
    def times(self) -> float:
        return self.other_seconds / self.sim_seconds


def ratios(results: Sequence[Result]) -> list[Ratio]:
    """Every SIM against every DEQ and monDEQ that learnt the same data on the same machine."""
    groups: dict[tuple, list[Result]] = {}
    for result in results:
        if result["train_seconds"] > 0 and ":" not in result["name"]:  # the paper's recipes: another is another work
            where = (place_of(result), machine_of(result), str(result["run"].get("train_on")))
            groups.setdefault((where, result["name"], model_kind_of(result)), []).append(result)
    found = []
    for (where, sim, kind), own in groups.items():
        for (there, other, other_kind), theirs in groups.items():
            if kind.has_limit and other_kind.has_solver and where == there:
                pace, slow = seconds_an_epoch(own), seconds_an_epoch(theirs)
                found.append(Ratio(where[0], sim, other, pace, slow, _setting(own), _setting(theirs)))
    return found


def _setting(group: list[Result]) -> str:
    batches = "/".join(sorted({str(r["run"]["recipe"]["batch_size"]) for r in group}))
    return f"{batches} in {'/'.join(sorted({str(r['run'].get('precision', 'float32')) for r in group}))}"


def speed_table(found: Sequence[Ratio]) -> Table | None:
    """One row a pair."""
    if not found:
        return None
    rows = [
        [
            r.place, title_of(r.sim), title_of(r.other), f"{r.times:.1f}×", f"{r.sim_seconds:.2f}",
            f"{r.other_seconds:.2f}", r.sim_setting, r.other_setting,
        ]
        for r in found
    ]  # fmt: skip
    head = ["data", "model", "against", "faster", "s/epoch", "other's", "batch", "other's batch"]
    note = (
        "Seconds an epoch, of the fastest seed, on the same data and machine, each by its own recipe. "
        "The paper says ten times for copy memory."
    )
    return Table("Training speed", head, rows, note, words=3)


def speed_bars(found: Sequence[Ratio]) -> Bars:
    """The ratios as bars of the page."""
    bars = [
        Bar(
            f"{r.place}: {title_of(r.sim)} against {title_of(r.other)}", r.times, f"{r.times:.1f}×",
            f"{r.sim_seconds:.2f} s an epoch (batch {r.sim_setting}) against {r.other_seconds:.2f} s (batch "
            f"{r.other_setting})", look_of(r.sim).slot,
        )
        for r in found
    ]  # fmt: skip
    return Bars("Times faster, per epoch", bars)


def speed_figure(found: Sequence[Ratio], folder: Path) -> list[Path]:
    """The ratios as bars, as PNG and SVG."""
    if not found:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.9 + 0.42 * len(found)), layout="constrained")
    axis = figure.add_subplot()
    labels = [f"{r.place}: {title_of(r.sim)} against {title_of(r.other)}" for r in found]
    colours = ["#2563eb" if kind_of(r.sim).startswith("sim-single") else "#dc2626" for r in found]
    bars = axis.barh(labels, [r.times for r in found], color=colours, height=0.65)
    axis.bar_label(bars, [f"{r.times:.1f}×" for r in found], padding=3, fontsize=9)
    axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axis.invert_yaxis()
    axis.set_xlabel("times faster, per epoch")
    axis.spines[["top", "right"]].set_visible(False)
    return write_png_and_svg(folder, "speed", figure)
