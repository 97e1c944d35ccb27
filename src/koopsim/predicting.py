"""What a trained classifier says of pictures: a name and a probability for each, and those of all classes.

p = softmax(model(x)),   x = bytes * scale + shift        as the run that trained it wrote down (datasets/inputs.py)

koopsim.load("runs/flowers").predict(["a.png", "b.jpg"]).csv()          koopsim predict runs/flowers a.png b.jpg
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from koopsim.answering import csv_text, evaluating
from koopsim.datasets.inputs import ImageInputs
from koopsim.errors import KoopsimError
from koopsim.files.masks import require_unmasked

if TYPE_CHECKING:
    from torch import nn

BATCH = 100  # small enough for a CPU's caches

Pictures = Sequence[Path | str | Image.Image] | np.ndarray | Path | str | Image.Image


@dataclass(frozen=True)
class Predictions:
    """A row a picture. `names` are the files, or numbers where no files were given."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: np.ndarray  # (n, classes), float64, rows sum to 1

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> list[str]:
        """The most probable class of each picture."""
        return [self.classes[i] for i in self.probabilities.argmax(1)]

    def rows(self) -> list[dict[str, Any]]:
        """{"picture", "class", "probability", "probabilities": {class: p}} of each picture."""
        return [
            {
                "picture": name,
                "class": self.classes[int(p.argmax())],
                "probability": float(p.max()),
                "probabilities": dict(zip(self.classes, p.tolist(), strict=True)),
            }
            for name, p in zip(self.names, self.probabilities, strict=True)
        ]

    def csv(self) -> str:
        """picture, class, probability, then a column a class."""
        rows = []
        for row in self.rows():
            shares = (f"{p:.6g}" for p in (row["probability"], *row["probabilities"].values()))
            rows.append((row["picture"], row["class"], *shares))
        return csv_text(("picture", "class", "probability", *(f"p({name})" for name in self.classes)), rows)

    def json(self) -> str:
        return json.dumps(self.rows(), indent=2)


def predict(model: nn.Module, pictures: Pictures, inputs: ImageInputs | None = None) -> Predictions:
    """What a classifier says of picture files, Pillow images, or bytes (n, channels, height, width).

    inputs   what the model takes; by default what the run that trained it wrote down, `model.takes`
    """
    import torch

    inputs = inputs or getattr(model, "takes", None)
    if inputs is None:
        raise KoopsimError(
            f"This {type(model).__name__} does not say how pictures become its inputs: it was not trained to name "
            "pictures, or before runs wrote that down. If it names pictures, say what it was trained on: --data, or "
            "model.takes = ImageInputs.of(koopsim.datasets.load_images(...))."
        )
    names, given = _named(pictures)
    first = next(model.parameters())
    found = []
    with evaluating(model), torch.no_grad():
        for start in range(0, len(given), BATCH):
            part = given[start : start + BATCH]
            x = inputs.normalised(part if isinstance(part, np.ndarray) else inputs.read(part))
            logits = model(torch.from_numpy(x).to(first.device, first.dtype))
            found.append(logits.double().softmax(1).cpu().numpy())
    probabilities = np.concatenate(found) if found else np.empty((0, len(inputs.classes)))
    if probabilities.shape[1] != len(inputs.classes):
        raise KoopsimError(f"The model has {probabilities.shape[1]} outputs for {len(inputs.classes)} classes.")
    return Predictions(names, inputs.classes, probabilities)


def _named(pictures: Pictures) -> tuple[tuple[str, ...], Sequence[Any] | np.ndarray]:
    """(a name for each, the pictures): one picture counts as a list of one."""
    if isinstance(pictures, (str, Path, Image.Image)):
        pictures = [pictures]
    if isinstance(pictures, np.ndarray):
        require_unmasked(pictures, "Pictures")
        return tuple(map(str, range(len(pictures)))), pictures
    listed = list(pictures)
    return tuple(str(i) if isinstance(p, Image.Image) else str(p) for i, p in enumerate(listed)), listed
