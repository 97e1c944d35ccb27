"""What runs are called in tables, charts and pictures, and the colour each model keeps everywhere.

A slot is a place in the page's palette, which has a light and a dark form of each colour; `colour` is for figures.
"""

from collections.abc import Sequence

from koopsim.config import to_dict
from koopsim.kinds import model_kind
from koopsim.presets import PRESETS, run_of
from koopsim.registry import DATASETS
from koopsim.report.kinds import Result, task_kind_of
from koopsim.words import Look

LAST = 1000  # the rank of what the registries do not know


def kind_of(name: str) -> str:
    """The model in a preset's name: "sim-single:best" of "cifar10/sim-single:best"."""
    return name.split("/")[-1]


def looks() -> dict[str, tuple[int, Look]]:
    """(rank among a table's rows, look) of the presets' models, by what `kind_of` gives."""
    found = {}
    for name, preset in PRESETS.items():
        kind = model_kind(preset.model)
        found.setdefault(kind_of(name), (kind.order, kind.look(preset.model)))
        if preset.best:
            found.setdefault(kind_of(f"{name}:best"), (kind.order, kind.look(preset.model, best=True)))
    return found


def look_of(name: str) -> Look:
    """How a model is shown; another one than the presets' by its own name."""
    kind = kind_of(name)
    return looks().get(kind, (LAST, Look(kind)))[1]


def title_of(name: str) -> str:
    """The model of a preset in words."""
    return look_of(name).title


def variant_of(result: Result) -> str:
    """What the paper's model, or the preset, has not, in words that follow its title: rows of our own."""
    model = result["run"]["model"]
    lifted = (model.get("fourier") or {}).get("features", model.get("lift_dim"))
    words = ["without U V" if model.get("rank") == lifted else "V U = I"] if model.get("projector") else []
    words += ["even start"] if model.get("start") == "even" else []
    words += [f"z0 {model['z0']}"] if model.get("z0", "zero") != "zero" else []
    words += ["free scale"] if model.get("scale") == "free" else []
    name, solver, gradient = result["name"], (model.get("forward") or {}).get("method"), model.get("gradient")
    usual = to_dict(run_of(name).model) if name.partition(":")[0] in PRESETS else model
    words += [solver.title()] if solver and solver != (usual.get("forward") or {}).get("method") else []
    words += [f"{gradient} gradient"] if gradient not in (None, usual.get("gradient")) else []
    return "".join(f", {word}" for word in words)


def rank_of(name: str) -> tuple[int, int]:
    """Its place among a table's rows."""
    order, look = looks().get(kind_of(name), (LAST, Look(name)))
    return order, look.slot


def place_of(result: Result) -> str:
    """The data that a run learnt: runs of the same place can be drawn together."""
    return task_kind_of(result).place(result)


def data_rank(dataset: str | None) -> tuple[int, str]:
    """The named data sets in their order, others by name."""
    known = DATASETS.find(str(dataset))
    return (known.order, "") if known else (LAST, str(dataset or ""))


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
        place = (task_kind_of(result).order, data_rank(task.get("dataset")), place_of(result))
        return (*place, look_of(result["name"]).slot, str(seed_of(result)))

    return sorted(results, key=weight)
