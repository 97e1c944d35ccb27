"""Tasks, a file each: data on a device, the loss that trains, the figures that are reported."""

import torch

from koopsim.config import TaskConfig
from koopsim.kinds import task_kind
from koopsim.tasks.base import Task
from koopsim.tasks.classification import Classification
from koopsim.tasks.copy_memory import CopyMemory
from koopsim.tasks.image_regression import ImageRegression

__all__ = ["Classification", "CopyMemory", "ImageRegression", "Task", "build_task"]


def build_task(task: TaskConfig, device: torch.device | str = "cpu") -> Task:
    """The task of a configuration, its data on `device`."""
    return task_kind(task).build(task, device)
