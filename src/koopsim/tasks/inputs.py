"""What a task's models take, written down for whoever uses one without the task's data."""

from pathlib import Path

from koopsim.datasets.inputs import ImageInputs, Inputs, write_inputs
from koopsim.tasks.base import Task
from koopsim.tasks.classification import Classification
from koopsim.tasks.sequence_data import OfSequences
from koopsim.tasks.table import TableTask


def inputs_of(task: Task) -> Inputs | None:
    """How pictures, rows or sequences become the inputs of a model of this task; None of tasks that have neither."""
    if isinstance(task, TableTask | OfSequences):
        return task.takes
    if not isinstance(task, Classification):
        return None
    scale, shift = (tuple(t.double().flatten().tolist()) for t in (task.scale, task.shift))
    return ImageInputs(tuple(task.classes), task.image, scale, shift)


def note_inputs(folder: Path, task: Task) -> None:
    """Write it beside a run's weights, before the first step: the folder alone is then enough to use them."""
    found = inputs_of(task)
    if found is not None:
        write_inputs(folder, found)
