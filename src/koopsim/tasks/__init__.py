"""The tasks of the paper: data on a device, the loss that trains, the figures that are reported."""

import torch

from koopsim import config
from koopsim.tasks.base import Task
from koopsim.tasks.classification import Classification
from koopsim.tasks.copy_memory import CopyMemory
from koopsim.tasks.image_regression import ImageRegression

__all__ = ["Classification", "CopyMemory", "ImageRegression", "Task", "build_task"]


def build_task(task: config.Task, device: torch.device | str = "cpu") -> Task:
    """The task of a configuration, its data on `device`."""
    match task:
        case config.CopyMemoryConfig():
            return CopyMemory(task, device)
        case config.ClassificationConfig():
            return Classification(task, device)
        case config.ImageRegressionConfig():
            return ImageRegression(task, device)
