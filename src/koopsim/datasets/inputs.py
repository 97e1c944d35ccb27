"""How pictures become what a classifier was trained on, and what its answers are called.

    x = bytes * scale + shift, channel by channel          (x / 255 - mean) / deviation of the training images

A run writes it down beside its weights (inputs.json), so that the folder alone is enough to name a new picture: the
training pictures may be gone. Pictures of another size are scaled to cover and cropped around the centre, as they are
when a folder is read for training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from koopsim.config import from_dict, to_dict
from koopsim.datasets.folder import ENDINGS, decode, decoded, say_unread
from koopsim.datasets.images import Images
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.table_inputs import TableInputs
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.files.shapes import require_different, require_divisor, require_field
from koopsim.runs import read_run_json, write_json

FILE = "inputs.json"
LARGEST = 8192  # pixels of a side that a classifier may take
STILL = 1e-6  # a deviation so small is a channel's that never changes


@dataclass(frozen=True)
class ImageInputs:
    """What a classifier takes and what it answers."""

    FIELDS: ClassVar = ("shape", "classes")  # what decides how wide inputs are, and how many answers there are
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # channels, height, width
    scale: tuple[float, ...]  # one a channel
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        channels = self.shape[0]
        if channels not in (1, 3) or len(self.scale) != channels or len(self.shift) != channels or min(self.shape) < 1:
            raise KoopsimError(
                f"Inputs of shape {self.shape} have {len(self.scale)} scales and {len(self.shift)} shifts; expected 1 "
                "or 3 channels, and one of each for every channel."
            )

    @classmethod
    def of(cls, images: Images) -> ImageInputs:
        """Those of a classifier trained on these images: each channel of the training images has mean 0, variance 1."""
        deviation = np.where(images.std > STILL, images.std, 1.0)  # a channel that never changes stays as it is
        scale, shift = 1 / (255 * deviation), -images.mean / deviation
        single = (tuple(np.float32(v).astype(float).tolist()) for v in (scale, shift))  # as training has them
        return cls(tuple(images.classes), images.shape, *single)

    @property
    def mean(self) -> tuple[float, ...]:
        """Of the training images, on the scale 0 to 1."""
        return tuple(-b / (255 * a) for a, b in zip(self.scale, self.shift, strict=True))

    @property
    def deviation(self) -> tuple[float, ...]:
        return tuple(1 / (255 * a) for a in self.scale)

    def read(self, pictures: Sequence[Path | str | Image.Image]) -> np.ndarray:
        """(n, channels, height, width) bytes of picture files or Pillow images."""
        channels, height, width = self.shape
        x = np.empty((len(pictures), *self.shape), np.uint8)
        for row, picture in zip(x, pictures, strict=True):
            if isinstance(picture, Image.Image):
                row[:] = decoded(picture, channels, (width, height))
            else:
                row[:] = decode(Path(picture), channels, (width, height))
        return x

    def normalised(self, x: np.ndarray) -> np.ndarray:
        """Bytes (n, channels, height, width) as the model sees them, float32."""
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise KoopsimError(f"Pictures are {x.dtype} of shape {x.shape}; this model takes uint8 (n, {wanted}).")
        scale, shift = (np.array(v, np.float32)[:, None, None] for v in (self.scale, self.shift))
        return x * scale + shift

    def as_dict(self) -> dict[str, Any]:
        return to_dict(self)

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def sample(self) -> np.ndarray:
        """One picture as the model sees it, of zeros."""
        require_memory(64 * math.prod(self.shape), "A picture asks for")
        return np.zeros((1, *self.shape), np.float32)

    @classmethod
    def from_dict(cls, data: Any, where: str) -> ImageInputs:
        """What a file says, if it can be."""
        found = from_dict(cls, data, where)
        require_field(max(found.shape) <= LARGEST, where, "shape", f"has a side of more than {LARGEST:,} pixels")
        require_field(bool(found.classes), where, "classes", "names none")
        require_different(found.classes, where, "classes")
        for value in found.scale:
            require_divisor(value, where, "scale")
        return found


Inputs = ImageInputs | TableInputs | SequenceInputs


def inputs_from_dict(data: Any, where: str) -> Inputs:
    """What a model takes, from JSON: rows, sequences, or pictures, which files from before tables do not name."""
    kinds = {"TableInputs": TableInputs, "SequenceInputs": SequenceInputs}
    kind = str(data.get("kind")) if isinstance(data, dict) else ""
    return kinds.get(kind, ImageInputs).from_dict(data, where)


def write_inputs(folder: Path, inputs: Inputs) -> None:
    """Beside a run's weights."""
    write_json(folder / FILE, inputs.as_dict())


def read_inputs(folder: Path) -> Inputs | None:
    """What a run wrote down; None of one from before this was written, or of another task."""
    file = folder / FILE
    return inputs_from_dict(read_run_json(file), str(file)) if file.exists() else None


def picture_files(paths: Sequence[Path | str]) -> list[Path]:
    """The files named, and all pictures below the folders named, in a fixed order."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            everything = [f for f in path.rglob("*") if not f.name.startswith(".")]
            inside = sorted(f for f in everything if f.suffix.lower() in ENDINGS)
            say_unread(everything, path)
            if not inside:
                raise KoopsimError(f"{path} holds no pictures; expected some of {', '.join(sorted(ENDINGS))}.")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise KoopsimError(f"There is no picture {path}.")
    return found
