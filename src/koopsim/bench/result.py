"""What a benchmark found: comparisons, curves, and what was left out and why."""

from dataclasses import dataclass, field
from typing import Any

from koopsim.bench.limit import Floor
from koopsim.bench.machine import Machine
from koopsim.bench.timing import Timing


@dataclass(frozen=True)
class Side:
    """One side of a comparison: who, how long, and how far from the floor."""

    name: str
    timing: Timing
    floor: Floor | None = None
    note: str = ""
    reached: dict[str, float] = field(default_factory=dict)  # residuals and evaluations of a solver's answers

    @property
    def above_floor(self) -> float | None:
        """Measured time over the floor."""
        return None if self.floor is None else self.timing.seconds / self.floor.seconds

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "seconds": self.timing.seconds, "spread": self.timing.spread}
        found |= {"turns": self.timing.turns, "peak_bytes": self.timing.peak_bytes, "note": self.note}
        if self.floor is not None:
            found |= {"floor_arithmetic_seconds": self.floor.arithmetic, "floor_bytes_seconds": self.floor.memory}
            found |= {"floor_bound": self.floor.bound, "above_floor": self.above_floor}
        return found | ({"reached": self.reached} if self.reached else {})


@dataclass(frozen=True)
class Comparison:
    """Ours against another on the same work."""

    row: str
    work: str
    ours: Side
    other: Side

    @property
    def ratio(self) -> float:
        """How many times longer the other takes."""
        return self.other.timing.seconds / self.ours.timing.seconds

    def as_dict(self) -> dict[str, Any]:
        sides = {"ours": self.ours.as_dict(), "other": self.other.as_dict()}
        return {"row": self.row, "work": self.work, "ratio": self.ratio, **sides}


@dataclass(frozen=True)
class GrowthCurve:
    """How seconds grow along an axis; a second line is what it is compared with."""

    axis: str  # "T"
    what: str
    points: tuple[int, ...]
    seconds: dict[str, tuple[float | None, ...]]  # by line; None: did not fit, or was left out for its length
    floors: tuple[float, ...] = ()  # of the first line

    def as_dict(self) -> dict[str, Any]:
        return {"axis": self.axis, "what": self.what, "points": list(self.points), "seconds": self.seconds} | {
            "floors": list(self.floors)
        }


@dataclass
class BenchFindings:
    """All of a run of `koopsim bench`."""

    machine: Machine
    precision: str
    comparisons: list[Comparison] = field(default_factory=list)
    curves: list[GrowthCurve] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # what: why
    seconds: dict[str, float] = field(default_factory=dict)  # by row

    def as_dict(self) -> dict[str, Any]:
        machine = {"name": self.machine.name, "flops": self.machine.flops, "bandwidth": self.machine.bandwidth}
        machine |= {"limits": self.machine.source, "threads": self.machine.threads}
        return {
            "machine": machine,
            "precision": self.precision,
            "comparisons": [c.as_dict() for c in self.comparisons],
            "curves": [c.as_dict() for c in self.curves],
            "skipped": self.skipped,
            "row_seconds": self.seconds,
            "environment": self.machine.environment,
        }


WRITTEN = {
    "precision": str, "machine": {"name": str}, "comparisons": [{"row": str}], "curves": list, "skipped": dict,
    "row_seconds": dict,
}  # what `merged` takes out of a bench.json  # fmt: skip


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What two calls of `koopsim bench` wrote, as one: rows that the second measured take the place of the first's.

    Calls on different machines or in different precisions are not put together: the second stands alone.
    """
    if (old["precision"], old["machine"]["name"]) != (new["precision"], new["machine"]["name"]):
        return new
    again = new["row_seconds"]
    kept = [c for c in old["comparisons"] if c["row"] not in again]
    return new | {
        "comparisons": kept + new["comparisons"],
        "curves": new["curves"] or old["curves"],
        "skipped": {row: why for row, why in old["skipped"].items() if row not in again} | new["skipped"],
        "row_seconds": old["row_seconds"] | again,
    }
