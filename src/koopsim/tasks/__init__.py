"""The three tasks of the paper: data on a device, the loss that trains, the figures that are reported."""

import torch

from koopsim.config import CopyMemoryConfig
from koopsim.tasks.base import Task
from koopsim.tasks.copy_memory import CopyMemory

__all__ = ["CopyMemory", "Task", "build_task"]


def build_task(config: CopyMemoryConfig, device: torch.device | str = "cpu") -> Task:
    """The task of a configuration, its data on `device`."""
    return CopyMemory(config, device)
