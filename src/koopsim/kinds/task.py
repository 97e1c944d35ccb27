"""What is asked of a kind of task: presets, what a search varies, the user's data, the paper's table, the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from koopsim.config import Run, TaskConfig
from koopsim.errors import KoopsimError
from koopsim.kinds.given import OwnColumns
from koopsim.kinds.model import model_kind
from koopsim.kinds.preset import Preset, Scale
from koopsim.registry import TASKS
from koopsim.spaces import LogUniform, Parameter, SearchSpace
from koopsim.words import Curve, Figure

if TYPE_CHECKING:
    import torch


class TaskKind:
    """A kind of task."""

    config: ClassVar[type[TaskConfig]]
    task: ClassVar[Any]  # the class: task(config, device), with `metric` and `lower_is_better`
    order: ClassVar[int] = 100  # of tasks in lists; the paper's come first
    from_files: ClassVar[bool] = True  # a configuration can build it; False of data given in Python
    words: ClassVar[tuple[str, ...]] = ()  # the entries of `OwnColumns` that it has a use for
    table: ClassVar[str | None] = None  # of the paper, which its rows make,
    figures: ClassVar[tuple[str, ...]] = ()  # and the figures
    many: ClassVar[bool]  # a network for each of its pictures, not one for all; as the task says
    final_split: ClassVar[Literal["train", "train+valid"]] = "train+valid"  # trained on after a search
    judged: ClassVar[Figure]  # the figure that decides; the task's metric unless told
    shown: ClassVar[tuple[str, ...]] = ()  # the figures of the test split that its table shows; that one unless told
    curve: ClassVar[Curve] = Curve()  # what its learning curves show
    setting: ClassVar[tuple[str, type] | None] = None  # the entry of its configuration that names its data

    def __init_subclass__(cls) -> None:
        cls.many = getattr(getattr(cls, "task", None), "many", False)
        if not hasattr(cls, "judged") and hasattr(cls, "task"):
            name = cls.task.metric
            cls.judged = Figure(name, name.replace("_", " "), "{:.4g}", "{:.3g}", cls.task.lower_is_better)
        if not cls.shown and hasattr(cls, "judged"):
            cls.shown = (cls.judged.key,)

    @property
    def title(self) -> str:
        """The task in words, for those that are not the paper's: the head of its table."""
        return self.config.__name__.removesuffix("Config")

    def build(self, config: Any, device: torch.device | str = "cpu") -> Any:
        """The task, its data on `device`."""
        return self.task(config, device)

    def settled(self, config: Any, free: int) -> tuple[Any, str]:
        """(the configuration with nothing left open, what to say of it) where so many bytes of a device are free."""
        return config, ""

    def presets(self) -> dict[str, Preset]:
        """Runs by name: "copy/sim-single"."""
        return {}

    def smoke(self, name: str, run: Run) -> Run:
        """The run of a preset at a size that ends in seconds on two cores: the same code on less data."""
        return replace(run, recipe=replace(run.recipe, epochs=min(run.recipe.epochs, 4)))

    # ------------------------------------------------ search

    def final(self, run: Run) -> Run:
        """What the best run of a search is trained again by."""
        return replace(run, train_on=self.final_split)

    def space(self, run: Run, smoke: bool) -> SearchSpace:
        """What a search over this run draws from: the task's part, and the model's."""
        space = self.own_space(run, smoke)
        return replace(space, parameters=space.parameters | model_kind(run.model).parameters(run.model))

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        """The task's part."""
        epochs = run.recipe.epochs
        mode = "min" if self.task.lower_is_better else "max"
        parameters: dict[str, Parameter] = {"recipe.learning_rate": LogUniform(1e-4, 0.05)}
        return SearchSpace(parameters, 8 if smoke else 100, epochs, max(1, epochs // 4), 2, self.task.metric, mode)

    def search_base(self, run: Run) -> Run:
        """The run that a search varies: choices are made on the validation split."""
        return replace(run, train_on="train")

    # ------------------------------------------------ the user's data

    def on_own_data(self, run: Run, name: str, data: str, size: tuple[int, int] | None = None) -> tuple[str, Run]:
        """(name, run) with the user's data in place of the preset's, the model's shape following from it.

        size   (width, height) that pictures are to have
        """
        raise KoopsimError(f"--data gives images to classify, which {name} does not: leave the preset out.")

    def on_own_table(self, run: Run, name: str, data: str, columns: OwnColumns) -> tuple[str, Run]:
        """(name, run) on the user's table or sequences, of which `columns` is what was said."""
        raise KoopsimError(f"{name} does not learn from tables or sequences: leave the preset out.")

    def data_sets(self, config: Any) -> set[str]:
        """The named data sets without which it cannot begin."""
        return set()

    # ------------------------------------------------ the paper, as `reproduce` makes it

    def rows(self, scale: Scale) -> dict[str, Scale]:
        """The presets behind its table, in the table's order, each with the scale it is run at."""
        return {}

    def seconds(self, name: str, scale: Scale) -> float | None:
        """What a run of the preset took: at the paper's size on one H200, at the smoke scale on one core."""
        return None

    def repeats(self, scale: Scale) -> int:
        """Seeds of each row."""
        return 1

    def variants(self, run: Run, pictures: Sequence[str], count: int | None) -> list[tuple[str, Run]]:
        """(label, run) of each run behind a row; image regression has one for each set of `pictures`."""
        return [("", run)]

    # ------------------------------------------------ the report

    def slug(self, task: dict[str, Any]) -> str:
        """The first word of its presets' names, from its configuration as it stands in a file: "copy"."""
        return self.config.__name__.removesuffix("Config").lower()

    def place(self, result: dict[str, Any]) -> str:
        """The data that the run of a result learnt, in words. Runs of a place are drawn together."""
        return self.title

    def published(self, name: str) -> Any:
        """What is published of a preset, as its table needs it; None where nothing is."""
        return None


def task_kind(config: TaskConfig) -> TaskKind:
    return TASKS[type(config).__name__]


def task_kinds() -> list[TaskKind]:
    """Every task, the paper's first."""
    return sorted(TASKS.values(), key=lambda kind: kind.order)
