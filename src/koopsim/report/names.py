"""What runs are called in tables, charts and pictures, and the colour each kind of model keeps everywhere.

A colour is a slot of the page's palette, which has a light and a dark form of each.
"""

from collections.abc import Sequence
from pathlib import Path

from koopsim.report.classification import DATASETS, MODELS
from koopsim.report.collect import Result
from koopsim.report.copy_memory import TITLES
from koopsim.report.pictures import NAMES, set_of

SLOTS = {
    "deq": 1, "mondeq-single": 1, "mondeq-multi": 2, "mondeq-connected": 3, "sim-single": 4, "sim-two": 5,
    "sim-single:best": 6, "sim-two:best": 7, "sim-rff": 8, "tancik": 1,
}  # fmt: skip
OTHERS = 9


def kind_of(name: str) -> str:
    """The model in a preset's name: "sim-single:best" of "cifar10/sim-single:best"."""
    return name.split("/")[-1]


def title_of(name: str) -> str:
    """The model of a preset in words."""
    return TITLES.get(name) or NAMES.get(name) or MODELS.get(kind_of(name), kind_of(name))


def slot_of(name: str) -> int:
    """Its colour's place in the page's palette."""
    return SLOTS.get(kind_of(name), OTHERS)


def place_of(result: Result) -> str:
    """The data that a run learnt: runs of the same place can be drawn together."""
    task = result["run"]["task"]
    match task["kind"]:
        case "CopyMemoryConfig":
            return f"Copy memory, T = {task['horizon']}"
        case "ClassificationConfig":
            few = f", {task['train']} images" if task.get("train") else ""
            return DATASETS.get(task["dataset"], Path(task["dataset"]).name) + few
        case _:
            return f"Pictures: {set_of(result)}"


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
    tasks, sets = ("CopyMemoryConfig", "ClassificationConfig", "ImageRegressionConfig"), list(DATASETS)

    def weight(result: Result) -> tuple:
        task = result["run"]["task"]
        data = task.get("dataset")
        known = sets.index(data) if data in sets else len(sets)
        return tasks.index(task["kind"]), known, place_of(result), slot_of(result["name"]), str(seed_of(result))

    return sorted(results, key=weight)
