"""What the rest of the house asks of a model, a lift, a task or a data set: one class each, to be subclassed.

    @register
    class EchoKind(TaskKind):
        config, task = EchoConfig, Echo
        def presets(self): ...

An entry stands beside the code it speaks for, in nn/, implicit/, tasks/, datasets/ or in a plugin (registry.py). Only
what has no default must be given; each default is what suits a plain feedforward model on plain data.

model.py  ModelKind, LiftKind    task.py  TaskKind    dataset.py  DatasetKind
preset.py  a run by name         given.py  shapes, and what a person says of their own table
"""

from typing import Any, TypeVar

from koopsim.errors import KoopsimError
from koopsim.kinds.dataset import DatasetKind
from koopsim.kinds.given import Goal, OwnColumns, SequenceShape, Shape
from koopsim.kinds.model import LiftKind, ModelKind, lift_kind, model_kind
from koopsim.kinds.preset import Preset, Scale
from koopsim.kinds.task import TaskKind, task_kind, task_kinds
from koopsim.registry import DATASETS, LIFTS, MODELS, TASKS

__all__ = [
    "DatasetKind", "Goal", "LiftKind", "ModelKind", "OwnColumns", "Preset", "Scale", "SequenceShape", "Shape",
    "TaskKind", "lift_kind", "model_kind", "register", "task_kind", "task_kinds",
]  # fmt: skip

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
