"""From a configuration to a trained model: the step, its capture, the loop, and where a run stands."""

from koopsim.train.loop import Stopped, load, pick_device, prepare, train
from koopsim.train.step import Trainer

__all__ = ["Stopped", "Trainer", "load", "pick_device", "prepare", "train"]
