"""Image classification: name what is in the picture.                 paper, section 4.2

    loss: cross-entropy      figure: share of test images named right

Images stay on the device as the bytes they were stored as; a batch is normalised per channel when it is taken, with
mean and deviation of the training images. The validation images are a seeded tenth of the official training set.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim import datasets
from koopsim.config import ClassificationConfig, Recipe
from koopsim.errors import KoopsimError
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.tasks.augment import augmented, cut_out
from koopsim.tasks.base import Split

EVALUATION_BATCH = {"cuda": 1000, "cpu": 100}  # on a CPU small enough for its caches


class Classification:
    """The images of a data set on a device, cut into train, valid and test."""

    metric = "accuracy"
    lower_is_better = False

    def __init__(self, config: ClassificationConfig, device: torch.device | str = "cpu"):
        self.config = config
        images = datasets.load(config.dataset)
        self.name, self.classes = images.name, images.classes
        x, y = images.train
        order = np.random.default_rng(config.seed).permutation(len(x))[: config.train]
        if len(order) < 2:
            raise KoopsimError(f"{config.dataset} has {len(x)} training images; two at least are needed.")
        self.valid = min(max(1, round(len(order) * config.valid)), len(order) - 1)
        self.x, self.y = _placed(x[order], y[order], device)
        self.x_test, self.y_test = _placed(images.test[0][: config.test], images.test[1][: config.test], device)
        mean, deviation = channel_statistics(x)
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

    @torch.no_grad()
    def predictions(self, model: nn.Module, split: str) -> tuple[Tensor, float | None]:
        """Logits (n, classes) on a split, and the share of unconverged solves for a model that has a solver."""
        model = copy.deepcopy(model).eval()
        report: Callable[[], dict[str, Tensor]] | None = getattr(model, "diagnostics", None)
        outputs, unconverged = [], 0.0
        x, _ = self.split(split)
        for xs in x.split(EVALUATION_BATCH.get(x.device.type, 1000)):
            outputs.append(model(self.inputs(xs)))
            if report is not None:
                unconverged += float(report()["unconverged"]) * len(xs)
        return torch.cat(outputs).double(), unconverged / len(x) if report is not None else None

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Accuracy as a share, and the loss in nats."""
        logits, unconverged = self.predictions(model, split)
        labels = self.split(split)[1]
        right = (logits.argmax(1) == labels).double().mean()
        figures = {"accuracy": float(right), "loss": float(F.cross_entropy(logits, labels))}
        return figures if unconverged is None else figures | {"unconverged": unconverged}


def _placed(x: np.ndarray, y: np.ndarray, device: torch.device | str) -> Split:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device), torch.from_numpy(y.astype(np.int64)).to(device)


def channel_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each channel of (n, C, H, W) bytes, on the scale 0 to 1.

    Counted by value, so exact, and without a float copy of the set. A channel that never changes gets deviation 1.
    """
    values = np.arange(256) / 255
    counts = np.stack([np.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])])
    mean = counts @ values / counts.sum(1)
    variance = counts @ values**2 / counts.sum(1) - mean**2
    return mean, np.sqrt(np.where(variance > 1e-12, variance, 1.0))
