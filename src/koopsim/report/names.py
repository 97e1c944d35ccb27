"""What runs are called in tables, charts and pictures, and the colour each model keeps everywhere.

A slot is a place in the page's palette, which has a light and a dark form of each colour; `colour` is for figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from koopsim.report.kinds import DATASETS, TASKS, Result, task_kind


@dataclass(frozen=True)
class Look:
    """A model of the presets, in words and in colour."""

    title: str
    slot: int
    colour: str


LOOKS = {  # in the order of the paper's tables
    "deq": Look("DEQ", 1, "#6b7280"),
    "mondeq-single": Look("monDEQ (single)", 1, "#6b7280"),
    "mondeq-multi": Look("monDEQ (multi)", 2, "#111827"),
    "mondeq-connected": Look("monDEQ (connected)", 3, "#a16207"),
    "sim-single": Look("SIM (single)", 4, "#2563eb"),
    "sim-two": Look("SIM (two)", 5, "#dc2626"),
    "sim-single:best": Look("SIM (single) best", 6, "#60a5fa"),
    "sim-two:best": Look("SIM (two) best", 7, "#f87171"),
    "sim-rff": Look("SIM (RFF only)", 8, "#059669"),
    "sim-rff:best": Look("SIM (RFF only) best", 9, "#34d399"),
    "tancik": Look("Tancik et al.", 1, "#6b7280"),
}
OTHERS = 9  # the slot of any other model


def kind_of(name: str) -> str:
    """The model in a preset's name: "sim-single:best" of "cifar10/sim-single:best"."""
    return name.split("/")[-1]


def look_of(name: str) -> Look:
    """How a model is shown; another one than the presets' by its own name."""
    kind = kind_of(name)
    return LOOKS.get(kind) or Look(kind, OTHERS, "#7c3aed")


def title_of(name: str) -> str:
    """The model of a preset in words."""
    return look_of(name).title


def rank_of(name: str) -> int:
    """Its place among a table's rows."""
    kind = kind_of(name)
    return list(LOOKS).index(kind) if kind in LOOKS else len(LOOKS)


def place_of(result: Result) -> str:
    """The data that a run learnt: runs of the same place can be drawn together."""
    return task_kind(result).place(result)


def data_rank(dataset: str | None) -> tuple[int, str]:
    """The paper's data sets first, others by name."""
    known = list(DATASETS)
    return (known.index(dataset), "") if dataset in known else (len(known), str(dataset or ""))


def seed_of(result: Result) -> int | str:
    return result["run"].get("seed", "?")


def machine_of(result: Result) -> str:
    """The GPU, or the processor where there was none."""
    where = result["environment"]
    return str(
        (str(result.get("device", "")) != "cpu" and where.get("gpu")) or where.get("cpu") or "an unknown machine"
    )


def in_order(results: Sequence[Result]) -> list[Result]:
    """Runs in the order of the paper: copy memory, its image sets, other sets, pictures; then by model and seed."""

    def weight(result: Result) -> tuple:
        task = result["run"]["task"]
        place = (list(TASKS).index(task["kind"]), data_rank(task.get("dataset")), place_of(result))
        return (*place, look_of(result["name"]).slot, str(seed_of(result)))

    return sorted(results, key=weight)
