"""How sequences become what a model sees, and what its answers mean: found on the training part, saved with the run.

    x = (value - shift) * scale, channel by channel; symbols and bytes as they are; missing values carried forward
    forecast = last value + answer / scale,  an interval of +- radius: the conformal quantile of errors not trained on

A run writes it beside its weights (inputs.json), so that its folder is enough to answer for new sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from koopsim.config import from_dict, to_dict
from koopsim.datasets.sequences import Sequences, carried_forward
from koopsim.errors import KoopsimError
from koopsim.files.shapes import require_different, require_divisor, require_field
from koopsim.kinds import OwnColumns, SequenceShape

Array = NDArray[Any]


@dataclass(frozen=True)
class SequenceInputs:
    """What a model of sequences takes and what it answers."""

    FIELDS: ClassVar = ("channels", "classes")  # what decides how wide inputs are, and how many answers there are
    goal: Literal["classify", "tag", "forecast"]
    channels: tuple[str, ...]
    scale: tuple[float, ...]  # one a channel; () of bytes
    shift: tuple[float, ...]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # the channels that are forecast
    length: int = 1  # the longest sequence of the training part, or the steps a forecast looks back
    ahead: int = 0  # h
    id: str | None = None  # columns, as the training table called them
    time: str | None = None
    text: str | None = None
    target: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = len(self.scale)
        if len(self.shift) != numbers or (numbers and numbers != len(self.channels)) or self.length < 1:
            raise KoopsimError(
                f"Sequences of {len(self.channels)} channels have {numbers} scales and {len(self.shift)} shifts; "
                "expected one of each for every channel."
            )

    @property
    def bytes(self) -> bool:
        return not self.scale

    @property
    def columns(self) -> OwnColumns:
        """What has to be said of a table to read it as the training table was read."""
        goal = self.goal if self.target or self.goal == "forecast" else None
        return OwnColumns(self.target, goal, self.id, self.time, self.text, self.ahead or None, self.drop)

    @property
    def shape(self) -> SequenceShape:
        return SequenceShape(0 if self.bytes else len(self.channels), self.length)

    @property
    def outputs(self) -> int:
        """Of the model, a step."""
        return self.ahead * len(self.targets) if self.goal == "forecast" else len(self.classes)

    @property
    def target_places(self) -> list[int]:
        return [self.channels.index(name) for name in self.targets]

    def scaled(self, values: Sequence[Array], where: str) -> list[Array]:
        """Each sequence as the model sees it, (T, C) float32, or bytes (T,)."""
        if self.bytes:
            return [np.asarray(v, np.uint8) for v in values]
        width = values[0].shape[-1]
        if width != len(self.channels):
            raise KoopsimError(
                f"{where} has {width} channels; the model takes {len(self.channels)}: {', '.join(self.channels)}."
            )
        shift, scale = np.array(self.shift), np.array(self.scale)
        return [((v - shift) * scale).astype(np.float32) for v in carried_forward(values, shift)]

    def arranged(self, found: Sequences) -> Sequences:
        """The same sequences with the channels in the model's order; one that is missing is refused."""
        if self.bytes or found.bytes:
            if self.bytes != found.bytes:
                what = "text" if found.bytes else "numbers"
                raise KoopsimError(f"{found.path} is {what}; the model takes the other.")
            return found
        lost = [name for name in self.channels if name not in found.channels]
        if lost:
            raise KoopsimError(f"{found.path} has no column {lost[0]!r}, which the model takes.")
        places = [found.channels.index(name) for name in self.channels]
        return replace(found, values=[v[:, places] for v in found.values], channels=self.channels)

    def as_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def sample(self) -> Array:
        """Two steps of one sequence as the model sees them, of zeros."""
        if self.bytes:
            return np.zeros((1, 2), np.uint8)
        return np.zeros((1, 2) if len(self.channels) == 1 else (1, 2, len(self.channels)), np.float32)

    @classmethod
    def from_dict(cls, data: Any, where: str) -> SequenceInputs:
        """What a file says, if it can be."""
        found = from_dict(cls, data, where)
        for field in ("channels", "targets", "classes"):
            require_different(getattr(found, field), where, field)
        for value in found.scale:
            require_divisor(value, where, "scale")
        strange = next((name for name in found.targets if name not in found.channels), None)
        require_field(strange is None, where, "targets", f"says {str(strange)[:40]!r}, which is no channel")
        if found.goal == "forecast":
            require_field(bool(found.targets) and bool(found.scale), where, "targets", "names no channel of numbers")
            require_field(found.ahead >= 1, where, "ahead", f"is {found.ahead}; expected at least 1")
        else:
            require_field(bool(found.classes), where, "classes", "names none")
        return found
