"""`eval --other-data`: pictures that a run was not trained on, judged as `predict` would name them.

    new class "dog"  ->  the run's class "dog", wherever either stands in its list; a strange name is refused
    new pictures     ->  the run's size, channels, mean and deviation, as inputs.json says

Such an evaluation is no look at the run's test split, which none of it was: looks.jsonl does not count it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from koopsim.config import Recipe
from koopsim.datasets.inputs import ImageInputs
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.runs import RunDirectory
from koopsim.tasks import Classification, Task, build_task
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.tasks.streamed_classification import StreamedClassification


def is_other(directory: RunDirectory, task: Task) -> bool:
    """Whether the task's data is not what the run was trained on; a run that does not say cannot vouch for it."""
    try:
        directory.check_data(fingerprint_of(task))
    except KoopsimError:
        return True
    return not (directory.path / "data.json").exists()


def as_trained(task: Task, takes: Any, what: str) -> Task:
    """The task with its pictures and classes as the run `what` takes them; tasks without pictures as they are."""
    if not isinstance(task, Classification):
        return task
    if not isinstance(takes, ImageInputs):
        raise KoopsimError(
            f"{what} does not say which classes it names, so other pictures cannot be held against it: it is from "
            "before runs wrote that down. Train it again."
        )
    strange = [name for name in task.classes if name not in takes.classes]
    if strange:
        known = ", ".join(takes.classes[:10]) + (", ..." if len(takes.classes) > 10 else "")
        meant = did_you_mean(strange[0], takes.classes)
        raise KoopsimError(
            f"{task.config.dataset} has the class {strange[0]!r}, which {what} was never shown: it names {known}."
            + (meant if " Did you" in meant else "")  # else it lists them once more
            + " Give the class the name that the run knows, or leave it out."
        )
    channels, height, width = takes.shape
    if task.image[1:] != (height, width):
        built = build_task(replace(task.config, size=(width, height)), task.scale.device)
        assert isinstance(built, Classification)
        task = built
    _rename(task, np.array([takes.classes.index(name) for name in task.classes]))
    task.classes = takes.classes
    scale, shift = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (takes.scale, takes.shift))
    if (task.image[0], channels) == (3, 1):
        task.inputs = _of_colours(task.inputs)
    task.scale, task.shift = scale.to(task.scale.device), shift.to(task.shift.device)  # one channel is shown as three
    return task


def _of_colours(inputs: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same for pictures in colour, which a model of grey ones is shown in grey."""

    def of_grey(x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        return inputs(grey(x), recipe, draws)

    return of_grey


def _rename(task: Classification, place: np.ndarray) -> None:
    """Labels become numbers of the run's classes."""
    if isinstance(task, StreamedClassification):
        for source in (task.source, task.tested):
            source.labels = place[source.labels]
        return
    to = torch.from_numpy(place).to(task.y.device)
    task.y, task.y_test = to[task.y], to[task.y_test]


def grey(x: Tensor) -> Tensor:
    """(n, 3, H, W) bytes -> (n, 1, H, W), by the weights and the rounding of Pillow's convert("L")."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=x.device)[:, None, None]
    return (((x.int() * weights).sum(1, keepdim=True) + 0x8000) >> 16).to(torch.uint8)
