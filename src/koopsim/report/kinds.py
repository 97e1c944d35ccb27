"""What the report asks of a kind of task and of a kind of model: an entry each, and no other place that asks.

A result names the kinds of its parts by their configuration's class; here they are found by that name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koopsim.config import (
    ClassificationConfig,
    CopyMemoryConfig,
    DEQConfig,
    FourierNetworkConfig,
    ImageRegressionConfig,
    MonDEQConfig,
    SIMConfig,
)

Result = dict[str, Any]
PAPER_SIZE = 512  # of its pictures
DATASETS = {"cifar10": "CIFAR-10", "svhn": "SVHN", "mnist": "MNIST", "digits": "digits"}  # in the paper's order


@dataclass(frozen=True)
class Figure:
    """What a model is judged by."""

    key: str  # in a result's "test" and "valid"
    title: str
    form: str
    short: str
    lower: bool = False  # is better

    def best(self, values: dict[str, float]) -> str:
        """The name of the best value."""
        return (min if self.lower else max)(values, key=lambda name: values[name])


LOSS = Figure("loss", "loss", "{:.2e}", "{:.1e}", lower=True)
ACCURACY = Figure("accuracy", "accuracy", "{:.2%}", "{:.2%}")
PSNR = Figure("psnr", "PSNR", "{:.2f} dB", "{:.2f} dB")
FIGURES = {figure.key: figure for figure in (PSNR, ACCURACY, LOSS)}


@dataclass(frozen=True)
class CurveKind:
    """What a learning curve shows: an entry of the lines of metrics."""

    key: str
    title: str
    log: bool


@dataclass(frozen=True)
class TaskKind:
    """A kind of task, in words."""

    judged: Figure
    needs: tuple[str, ...]  # figures of the test that its table shows
    setting: tuple[str, type]  # the entry of the task's configuration that names its data
    curve: CurveKind
    place: Callable[[Result], str]  # the data that a run learnt
    preset: Callable[[dict[str, Any]], str]  # the first half of its presets' names, from the task's configuration
    a_picture_each: bool = False  # a network for every picture of a set


def set_of(result: Result) -> str:
    """The name of the set of pictures a result is about, with their size where it is not the paper's."""
    task = result["run"]["task"]
    name, size = str(result.get("set") or Path(task["pictures"]).name), task.get("size", PAPER_SIZE)
    return name if size == PAPER_SIZE else f"{name} at {size}"


def data_title(dataset: str) -> str:
    """A data set's name in words; of a folder or a file, its name."""
    return DATASETS.get(dataset, Path(dataset).name)


def _images_of(result: Result) -> str:
    task = result["run"]["task"]
    return data_title(task["dataset"]) + (f", {task['train']} images" if task.get("train") else "")


_LOSSES = CurveKind("train_loss", "training loss", log=True)
TASKS = {
    config.__name__: kind
    for config, kind in (  # in the paper's order
        (
            CopyMemoryConfig,
            TaskKind(
                LOSS, ("loss", "digits_right"), ("horizon", int), _LOSSES,
                lambda result: f"Copy memory, T = {result['run']['task']['horizon']}", lambda task: "copy",
            ),
        ),
        (
            ClassificationConfig,
            TaskKind(
                ACCURACY, ("accuracy",), ("dataset", str), _LOSSES, _images_of, lambda task: str(task.get("dataset")),
            ),
        ),
        (
            ImageRegressionConfig,
            TaskKind(
                PSNR, ("psnr", "psnr_std"), ("pictures", str),
                CurveKind("train_psnr", "PSNR of training pixels, dB", log=False),
                lambda result: f"Pictures: {set_of(result)}", lambda task: "image", a_picture_each=True,
            ),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class ModelKind:
    """A kind of model, in words."""

    preset: Callable[[dict[str, Any]], str]  # the second half of its presets' names, from its configuration
    implicit: bool = False  # solves for a fixed point: what a SIM is measured against
    limit: bool = False  # has a limit operator U V, whose spectrum can be looked at


MODELS = {
    SIMConfig.__name__: ModelKind(lambda m: "sim-two" if m.get("fourier") else "sim-single", limit=True),
    DEQConfig.__name__: ModelKind(lambda m: "deq", implicit=True),
    MonDEQConfig.__name__: ModelKind(
        lambda m: "mondeq-multi" if len(m["tiers"]) > 1 else "mondeq-single", implicit=True
    ),
    FourierNetworkConfig.__name__: ModelKind(lambda m: "tancik"),
}
OTHER_MODEL = ModelKind(lambda m: str(m.get("kind", "model")).removesuffix("Config").lower())


def task_kind(result: Result) -> TaskKind:
    return TASKS[result["run"]["task"]["kind"]]


def model_kind(result: Result) -> ModelKind:
    return MODELS.get(result["run"]["model"].get("kind", ""), OTHER_MODEL)


def subject_of(run: dict[str, Any]) -> str:
    """The preset's name, told from a configuration: kept trials do not name it."""
    task, model = run["task"], run["model"]
    return f"{TASKS[task['kind']].preset(task)}/{MODELS.get(model['kind'], OTHER_MODEL).preset(model)}"


def is_of(result: Result, task: type) -> bool:
    """Whether a run learnt a task of the kind that `task` configures."""
    return result["run"]["task"].get("kind") == task.__name__
