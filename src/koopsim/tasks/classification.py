"""Image classification: name what is in the picture.                 paper, section 5.2

    loss: cross-entropy      figure: share of test images named right

Images stay on the device as the bytes they were stored as; a batch is normalised per channel when it is taken, with
mean and deviation of the training images. The validation images are a seeded tenth of the official training set.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim import datasets
from koopsim.config import ClassificationConfig, Recipe, Run
from koopsim.datasets.blocks import in_memory, streamable
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.kinds import Preset, Scale, TaskKind, model_kind, register
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.registry import DATASETS
from koopsim.spaces import Choice, LogUniform, Parameter, SearchSpace
from koopsim.tasks import table2
from koopsim.tasks.augment import augmented, cut_out
from koopsim.tasks.base import Answers, Figures, Split, Task
from koopsim.words import ACCURACY

STILL = 1e-12  # a variance up to this is a channel that never changes
EVALUATION_BATCH = {"cuda": 1000, "cpu": 100}  # on a CPU small enough for its caches


class Classification(Task):
    """The images of a data set on a device, cut into train, valid and test."""

    metric = "accuracy"
    lower_is_better = False

    def __init__(self, config: ClassificationConfig, device: torch.device | str = "cpu"):
        self.config = config
        images = datasets.load_images(config.dataset, size=config.size)
        self.name, self.classes = images.name, images.classes
        x, y = images.train
        order = np.random.default_rng(config.seed).permutation(len(x))[: config.train]
        if len(order) < 2:
            raise KoopsimError(f"{config.dataset} has {len(x)} training images; two at least are needed.")
        self.valid = min(max(1, round(len(order) * config.valid)), len(order) - 1)
        self.x, self.y = _placed(x[order], y[order], device)
        self.x_test, self.y_test = _placed(images.test[0][: config.test], images.test[1][: config.test], device)
        mean, deviation = channel_statistics(self.x if len(order) == len(x) else x)
        # (x / 255 - mean) / deviation as one product and one sum: the images are passed over in every step.
        self.scale = torch.tensor(1 / (255 * deviation), dtype=torch.float32, device=device)[:, None, None]
        self.shift = torch.tensor(-mean / deviation, dtype=torch.float32, device=device)[:, None, None]

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return tuple(self.x.shape[1:])  # pyright: ignore[reportReturnType]

    def split(self, name: str) -> Split:
        """The raw bytes (n, C, H, W) and labels (n,) of a split."""
        if name == "test":
            return self.x_test, self.y_test
        parts = {"train": slice(self.valid, None), "valid": slice(self.valid), "train+valid": slice(None)}
        if name not in parts:
            raise KoopsimError(f"{self.name} has no split {name!r}; expected one of {', '.join([*parts, 'test'])}.")
        return self.x[parts[name]], self.y[parts[name]]

    def inputs(self, x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        """Bytes -> normalised images, in training with the recipe's augmentation."""
        if recipe is not None and draws is not None:
            x = augmented(x, draws, recipe)
        x = (x * self.scale).add_(self.shift)
        if recipe is not None and draws is not None and recipe.cutout:
            x = cut_out(x, draws, recipe.cutout)
        return x

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(outputs, targets, smoothing)

    def reported(self, run: Run) -> tuple[str, ...]:
        """Of one's own pictures both: the test's figure is shown once, at the end, and nothing is chosen by it."""
        own = self.config.dataset not in DATASETS
        return ("valid", "test") if own and run.train_on == "train" else super().reported(run)

    def predictions(self, answers: Answers, split: str) -> Tensor:
        """Logits (members, n, classes) on a split."""
        x, _ = self.split(split)
        pieces = x.split(EVALUATION_BATCH.get(x.device.type, 1000))
        return torch.cat([answers(self.inputs(xs)) for xs in pieces], dim=1).double()

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """Accuracy as a share, and the loss in nats."""
        labels, found = self.split(split)[1], []
        for logits in self.predictions(answers, split):
            right = (logits.argmax(1) == labels).double().mean()
            found.append({"accuracy": float(right), "loss": float(F.cross_entropy(logits, labels))})
        return found


def _placed(x: np.ndarray, y: np.ndarray, device: torch.device | str) -> Split:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device), torch.from_numpy(y.astype(np.int64)).to(device)


def channel_statistics(x: np.ndarray | Tensor, constant: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each channel of (n, C, H, W) bytes, on the scale 0 to 1, counted where they are.

    Counted by value, so exact, and without a float copy of the set. A channel that never changes gets deviation 1, or
    what is said to be the deviation of one.
    """
    values = np.arange(256) / 255
    planes = [x[:, c] for c in range(x.shape[1])]
    there = (p if isinstance(p, Tensor) else torch.from_numpy(np.ascontiguousarray(p)) for p in planes)
    counts = np.stack([torch.bincount(plane.reshape(-1), minlength=256).cpu().numpy() for plane in there])
    mean = counts @ values / counts.sum(1)
    variance = counts @ values**2 / counts.sum(1) - mean**2
    return mean, np.sqrt(np.where(variance > STILL, variance, constant))


@register
class ClassificationKind(TaskKind):
    """What the house asks of the task; the paper's rows are in table2.py."""

    config, task = ClassificationConfig, Classification
    order, table = 2, "table2"
    setting, judged, shown = ("dataset", str), ACCURACY, ("accuracy",)

    def build(self, config: ClassificationConfig, device: torch.device | str = "cpu") -> Classification:
        if config.stream != "yes":
            return Classification(config, device)
        from koopsim.tasks.streamed_classification import StreamedClassification

        return StreamedClassification(config, device)

    def settled(self, config: ClassificationConfig, free: int) -> tuple[ClassificationConfig, str]:
        """Pictures of one's own that are larger than half of what is free are streamed."""
        if config.stream != "auto" or config.dataset in DATASETS:
            return config, ""
        images = streamable(config.dataset, config.size, config.unreadable == "skip")
        if images is None or (images.loads and images.bytes <= free // 2):
            return config, ""
        needed, there = (f"{count / 2**30:.1f} GiB" for count in (images.bytes, free))
        told = f"{images.name} is streamed: {len(images.train):,} pictures of {needed}, and {there} are free."
        return replace(config, stream="yes"), told

    def presets(self) -> dict[str, Preset]:
        return table2.PRESETS

    def smoke(self, name: str, run: Run) -> Run:
        """The same kind of model on scikit-learn's digits: few steps, so larger ones."""
        small = table2.PRESETS.get(f"digits/{name.split('/')[-1]}")
        model = small.model if small else model_kind(run.model).for_images(run.model, (1, 8, 8), 10)
        recipe = replace(run.recipe, batch_size=32, epochs=4, warm_up=10, shift=min(run.recipe.shift, 1))
        recipe = replace(recipe, learning_rate=max(recipe.learning_rate, 5e-3), average=min(run.recipe.average, 0.9))
        return Run(model, ClassificationConfig("digits", train=600), recipe)

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        parameters: dict[str, Parameter] = {
            "recipe.batch_size": Choice((32, 64) if smoke else (64, 128, 256, 512)),
            "recipe.epochs": Choice((4, 8) if smoke else (20, 40, 60, 80)),
            "recipe.learning_rate": LogUniform(1e-4, 0.05),
            "recipe.schedule": Choice(("onecycle", "step", "constant")),
            "recipe.step_size": Choice((1, 2, 4) if smoke else tuple(range(5, 55, 5))),
        }
        shape = {"trials": 8, "max_t": 8, "grace": 2} if smoke else {"trials": 200, "max_t": 80, "grace": 5}
        return SearchSpace(parameters, **shape, metric="accuracy", mode="max")

    def on_own_data(
        self, run: Run, name: str, data: str, size: tuple[int, int] | None = None
    ) -> tuple[str, Run]:
        """Of one's own pictures a share is held out, so that progress shows what is right among those not learnt."""
        images = streamable(data, size, skip=True) or in_memory(datasets.load_images(data, size=size))
        model = model_kind(run.model).for_images(run.model, images.train.shape, len(images.classes))
        task = ClassificationConfig(str(Path(data).resolve()) if Path(data).exists() else data, size=size)
        batch = min(run.recipe.batch_size, max(8, len(images.train) // 20))
        recipe = replace(run.recipe, batch_size=batch)
        here = Path(data).resolve().name.removesuffix(".npz")  # not the whole path: nothing is written beside the data
        own = folders.plain_name(here, "The data")
        learnt = run.train_on if data in DATASETS else "train"
        run = replace(run, model=model, task=task, recipe=recipe, train_on=learnt)
        return f"{own}/{name.split('/')[1]}", run

    def data_sets(self, config: ClassificationConfig) -> set[str]:
        return {config.dataset} if config.dataset in DATASETS else set()

    def rows(self, scale: Scale) -> dict[str, Scale]:
        """Three data sets, or the digits, which are small as they are."""
        sets = table2.SETS if scale == "paper" else ("digits",)
        return {f"{data}/{kind}": "paper" for data in sets for kind in table2.ROWS}

    def seconds(self, name: str, scale: Scale) -> float | None:
        return (table2.SECONDS if scale == "paper" else table2.SMOKE_SECONDS).get(name)

    def repeats(self, scale: Scale) -> int:
        return 3 if scale == "paper" else 1

    def slug(self, task: dict[str, Any]) -> str:
        return str(task.get("dataset"))

    def place(self, result: dict[str, Any]) -> str:
        task = result["run"]["task"]
        return data_title(task["dataset"]) + (f", {task['train']} images" if task.get("train") else "")

    def published(self, name: str) -> str | None:
        return table2.PUBLISHED.get(name)


def data_title(dataset: str) -> str:
    """A data set's name in words; of a folder or a file, its name."""
    known = DATASETS.find(dataset)
    return known.label if known else Path(dataset).name
