"""The paper's tasks: what is to be learnt, from which data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from koopsim.config.checks import positive, positive_or_none, require, require_each
from koopsim.config.kinds_of import TaskConfig


@dataclass(frozen=True)
class CopyMemoryConfig(TaskConfig):
    """Remember ten digits over T blanks."""

    horizon: int = 500  # T
    train: int = 4500
    valid: int = 500
    test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.horizon >= 1, lambda: f"The horizon T is {self.horizon}; it must be at least 1.")
        must = "The number of {} sequences is {}; it must be at least 1."
        require_each(self, ("train", "valid", "test"), positive, must)


@dataclass(frozen=True)
class ClassificationConfig(TaskConfig):
    """Name what is in the picture."""

    convolves: ClassVar[bool] = True
    gains_by_bf16: ClassVar[bool] = True
    dataset: str = "cifar10"  # a name of `koopsim data list`, a folder of class/name.png, or an .npz
    valid: float = 0.1  # the share of the training images that choices are made on
    seed: int = 0  # of the split
    train: int | None = None  # use only so many images of train+valid, and of test: for quick looks
    test: int | None = None
    size: tuple[int, int] | None = None  # width, height: pictures are scaled to cover it and cropped around the centre
    stream: Literal["auto", "yes", "no"] = "auto"  # leave pictures where they are; auto: where they would not fit
    workers: int = 0  # processes that read and decode what is streamed; 0: a thread
    unreadable: Literal["stop", "skip"] = "stop"  # what is streamed and cannot be read: an end, or left out and counted

    def __post_init__(self) -> None:
        require(0 < self.valid < 1, lambda: f"The validation share is {self.valid}; it lies between 0 and 1.")
        small = self.size is not None and min(self.size) < 4
        require(not small, lambda: f"The pictures' size is {self.size}; each side has at least 4 pixels.")
        require(0 <= self.workers <= 1024, lambda: f"workers is {self.workers}; it lies between 0 and 1024.")
        must = "The number of {} images is {}; it must be at least 2."
        require_each(self, ("train", "test"), lambda count: count is None or count >= 2, must)


@dataclass(frozen=True)
class ImageRegressionConfig(TaskConfig):
    """Be the picture: from a pixel's place to its colour, one network a picture."""

    precisions: ClassVar[tuple[str, ...]] = (*TaskConfig.precisions, "fp16")
    gains_by_bf16: ClassVar[bool] = True
    pictures: str = "photographs"  # two photographs of scikit-learn; "text" made here; "kodak"; a folder; an .npz
    size: int = 512  # pictures are cropped to a square of so many pixels
    count: int | None = None  # use only the first so many
    only: str | None = None  # use only the picture of this name
    seed: int = 0  # of the text pictures
    steps_an_epoch: int = 100  # the batch is full, so a line of metrics every so many steps
    at_once: int | None = None  # pictures trained together; None is as many as memory allows

    def __post_init__(self) -> None:
        require(
            self.size >= 4 and self.size % 2 == 0,
            lambda: f"The picture size is {self.size}; it must be even and at least 4.",
        )
        require_each(self, ("count", "at_once"), positive_or_none, "{} is {}; it must be at least 1.")
        require(self.steps_an_epoch >= 1, lambda: f"steps_an_epoch is {self.steps_an_epoch}; it must be at least 1.")
