"""A run by name, and how large it is to be."""

from dataclasses import dataclass
from typing import Literal

from koopsim.config import ModelConfig, Recipe, Run

Scale = Literal["paper", "smoke"]


@dataclass(frozen=True)
class Preset:
    """A run by name. `best` is a freer recipe for the same model: augmentation, averaging, any schedule."""

    run: Run
    paper_parameters: int | None = None
    best: Recipe | None = None

    @property
    def model(self) -> ModelConfig:
        return self.run.model
