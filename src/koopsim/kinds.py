"""What the rest of the house asks of a model, a lift, a task or a data set: one class each, to be subclassed.

    @register
    class EchoKind(TaskKind):
        config, task = EchoConfig, Echo
        def presets(self): ...

An entry stands beside the code it speaks for, in nn/, implicit/, tasks/, datasets/ or in a plugin (registry.py). Only
what has no default must be given; each default is what suits a plain feedforward model on plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from koopsim.config import LiftConfig, ModelConfig, Recipe, Run, TaskConfig
from koopsim.errors import KoopsimError
from koopsim.registry import DATASETS, LIFTS, MODELS, TASKS
from koopsim.spaces import LogUniform, Parameter, SearchSpace
from koopsim.words import Curve, Figure, Look

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Scale = Literal["paper", "smoke"]
Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class Preset:
    """A run by name. `best` is a freer recipe for the same model: augmentation, averaging, any schedule."""

    run: Run
    paper_parameters: int | None = None
    best: Recipe | None = None

    @property
    def model(self) -> ModelConfig:
        return self.run.model


Goal = Literal["classify", "regress", "tag", "forecast"]


@dataclass(frozen=True)
class OwnColumns:
    """What a person says of their own table or sequences; whatever is not said is found out."""

    target: tuple[str, ...] = ()
    """The column to be told, or the columns to be forecast."""
    goal: Goal | None = None
    """A label a row or sequence, a number, a label a step, or how it goes on."""
    id: str | None = None
    """The column that says which sequence a row belongs to."""
    time: str | None = None
    """The column that says when."""
    text: str | None = None
    """The column whose words are a sequence of bytes, a row each."""
    horizon: int | None = None
    """How many steps ahead to forecast."""
    drop: tuple[str, ...] = ()
    """OwnColumns to be left out."""
    group: str | None = None
    """Rows with the same word here are never in two splits."""
    split: str | None = None
    """The column that says train, valid or test."""

    def said(self) -> tuple[str, ...]:
        """The entries that were given."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


@dataclass(frozen=True)
class SequenceShape:
    """What a model of sequences is given: so many channels (0: bytes), at most so many steps at a time."""

    channels: int
    length: int


class ModelKind:
    """A kind of model."""

    config: ClassVar[type[ModelConfig]]
    stackable: ClassVar[bool] = False  # knows torch.vmap: the trials of a search can train as one batched model
    has_solver: ClassVar[bool] = False  # its forward iterates until it has converged: what a SIM is measured against
    has_limit: ClassVar[bool] = False  # it has a limit operator U V, whose spectrum can be looked at
    can_take_over: ClassVar[bool] = False  # nothing but weights and buffers tells a new one from a trained one
    from_files: ClassVar[bool] = True  # a file can build it; False of modules in somebody's own code
    order: ClassVar[int] = 100  # of models in tables; the paper's come first

    def build(self, config: Any) -> nn.Module:
        """The untrained module."""
        raise NotImplementedError

    def presets(self) -> dict[str, Preset]:
        """Runs by name, besides those that its tasks have for it."""
        return {}

    # ------------------------------------------------ how it is called

    def slug(self, config: Any) -> str:
        """Its word in a preset's name, after the task's: "sim-two"."""
        return self.config.__name__.removesuffix("Config").lower()

    def title(self, config: Any) -> str:
        """Its name in tables and charts."""
        return self.config.__name__.removesuffix("Config")

    def look(self, config: Any, best: bool = False) -> Look:
        """How it is shown; `best`: trained by a recipe of our own."""
        return Look(self.title(config) + (" best" if best else ""))

    def limit_dim(self, config: Any) -> int | None:
        """N, the rows of its limit operator, where it has one."""
        return None

    # ------------------------------------------------ how it fits what it is given

    def for_images(self, config: Any, shape: Shape, outputs: int) -> ModelConfig:
        """The same model for images of this shape, with so many classes."""
        raise KoopsimError(f"{self.title(config)} does not look at images.")

    def for_rows(self, config: Any, inputs: int, outputs: int) -> ModelConfig:
        """The same model for rows of so many numbers, with so many answers."""
        raise KoopsimError(f"{self.title(config)} does not take rows of a table.")

    def for_sequences(self, config: Any, shape: SequenceShape, outputs: int) -> ModelConfig:
        """The same model for such sequences, with so many outputs a step."""
        raise KoopsimError(f"{self.title(config)} does not read sequences.")

    def coarser(self, config: Any, factor: float) -> ModelConfig:
        """The same model where its inputs lie `factor` times closer together in what they mean: small pictures."""
        return config

    def smoke(self, run: Run) -> Run:
        """What the model changes of a run that is to end in seconds, after the task has made it small."""
        return run

    def example(self, config: Any, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, dict[int, str]]:
        """An input to trace the model with, of so many samples (sequences: so long), and its free axes by name."""
        raise KoopsimError(f"{self.title(config)} has no example input: its kind says nothing of what it takes.")

    # ------------------------------------------------ what a search varies

    def parameters(self, config: Any) -> dict[str, Parameter]:
        """What a search varies besides the recipe, by path."""
        return {}

    def sizes(self, config: Any, values: Parameter) -> dict[str, Parameter]:
        """Those widths that the paper searches over in image regression, each drawn from `values`."""
        return {}

    def common(self, config: Any) -> ModelConfig:
        """The model with all that may differ between the members of a stack (but weights) set to one value."""
        return config

    def with_bandwidth(self, config: Any, bandwidth: float) -> ModelConfig:
        """The model with this bandwidth of its Fourier features."""
        raise KoopsimError("This model has no bandwidth: it has no Fourier features. Take a two-tier preset.")

    # ------------------------------------------------ image regression

    def bytes_a_point(self, config: Any, short: int, full: int) -> int:
        """Memory that training takes for each point; `short` and `full`: bytes of a product's and of other numbers."""
        raise KoopsimError(f"{self.title(config)} does not take points; image regression needs a SIM.")

    def learns_phases(self, config: Any) -> bool:
        """Whether what it learns ends in a sine: three digits of a phase of hundreds of radians are not enough."""
        return False


class LiftKind:
    """A kind of lift mu."""

    config: ClassVar[type[LiftConfig]]
    widths: ClassVar[tuple[str, ...]] = ()  # entries of the configuration that a search over sizes varies

    def build(self, config: Any, dim: int) -> nn.Module:
        """The untrained module, ending in `dim` features."""
        raise NotImplementedError

    def example(self, config: Any, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, dict[int, str]]:
        """An input of the lift, as `ModelKind.example`."""
        raise KoopsimError(f"{self.config.__name__} has no example input: its kind says nothing of what it takes.")

    def for_sequences(self, config: Any, shape: SequenceShape) -> LiftConfig:
        """The same lift for such sequences."""
        raise KoopsimError(f"{self.config.__name__} does not read sequences.")

    def for_images(self, config: Any, shape: Shape) -> LiftConfig:
        """The same lift for images of this shape."""
        raise KoopsimError(f"{self.config.__name__} does not look at images.")

    def for_rows(self, config: Any, inputs: int) -> LiftConfig:
        """The same lift for rows of so many numbers."""
        raise KoopsimError(f"{self.config.__name__} does not take rows of a table; an MLP does.")

    def bytes_a_point(self, config: Any, features: int, full: int) -> int:
        """As `ModelKind.bytes_a_point`: the lift's share, with so many Fourier features behind it."""
        raise KoopsimError(f"{self.config.__name__} does not lift points; image regression needs an MLP.")


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

    def on_own_data(
        self, run: Run, name: str, data: str, size: tuple[int, int] | None = None
    ) -> tuple[str, Run]:
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


class DatasetKind:
    """A data set of labelled images, by name."""

    name: str
    title: str  # in `koopsim data list`
    label: str  # in tables
    shape: Shape
    counts: dict[str, int]  # of images in "train" and "test"
    order: int = 100  # in lists

    def load(self, root: Path | None = None) -> Any:
        """The `Images` of it, from the data folder `root` where it keeps files. Nothing is downloaded."""
        raise NotImplementedError

    def fetch(self, root: Path | None, listen: Callable[[dict[str, Any]], None], patience: Any) -> Any:
        """Bring what is missing into the data folder and check all of it: a `Fetched`. None: there is nothing to do."""
        return None

    def on_disk(self, root: Path | None) -> tuple[tuple[str, ...], int, int, Path] | None:
        """(missing files, bytes there, bytes `fetch` would bring, its folder). None: it needs no files."""
        return None


Kind = TypeVar("Kind")


def register(kind: Kind) -> Kind:
    """Make a kind known: a subclass of one of the above (as a decorator), or an instance of `DatasetKind`."""
    entry: Any = kind() if isinstance(kind, type) else kind
    match entry:
        case ModelKind():
            MODELS.add(entry.config.__name__, entry)
        case LiftKind():
            LIFTS.add(entry.config.__name__, entry)
        case TaskKind():
            TASKS.add(entry.config.__name__, entry)
        case DatasetKind():
            DATASETS.add(entry.name, entry)
        case _:
            raise KoopsimError(
                f"{entry!r} cannot be registered; expected a subclass of ModelKind, LiftKind, TaskKind or DatasetKind."
            )
    return kind


def model_kind(config: ModelConfig) -> ModelKind:
    """What is known of a model's configuration."""
    return MODELS[type(config).__name__]


def lift_kind(config: LiftConfig) -> LiftKind:
    return LIFTS[type(config).__name__]


def task_kind(config: TaskConfig) -> TaskKind:
    return TASKS[type(config).__name__]


def task_kinds() -> list[TaskKind]:
    """Every task, the paper's first."""
    return sorted(TASKS.values(), key=lambda kind: kind.order)
