"""Sequences of one's own, as tasks: how they are read, scaled and split, and what the house asks of every such task.

    x = (value - mean) / deviation, channel by channel, over the training part;  symbols and bytes as they are
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from koopsim.config import FourierConfig, ModelConfig, Recipe, Run, SIMConfig, SolverConfig, TCNConfig
from koopsim.datasets.row_splits import completed
from koopsim.datasets.sequence_files import read_sequences
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequences import Sequences
from koopsim.datasets.systems import SYSTEMS
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.implicit.sequence import SequenceDEQConfig
from koopsim.kinds import Goal, OwnColumns, Preset, SequenceShape, TaskKind, model_kind
from koopsim.nn.recurrent import GRUConfig
from koopsim.spaces import Choice, LogUniform, Parameter, SearchSpace
from koopsim.tasks.base import Task

STILL = 1e-12  # of the largest value: so small a deviation is of a channel that never changes
NEAR = 1e-3  # of a deviation: a shift so near to the mean is as good as it


@dataclass(frozen=True)
class SequenceData:
    """Which sequences, and how they are read and split."""

    data: str = ""  # a file or folder, or one of those made from a seed (datasets/systems.py)
    target: tuple[str, ...] = ()
    id: str | None = None
    time: str | None = None
    text: str | None = None
    drop: tuple[str, ...] = ()
    samples: int = 1000  # sequences or steps of what is made from a seed
    valid: float = 0.15
    test: float = 0.2
    seed: int = 0  # of the split, and of what is made

    def __post_init__(self) -> None:
        if not (0 < self.valid < 1 and 0 < self.test < 1 and self.valid + self.test < 1):
            raise KoopsimError(f"The shares are valid {self.valid}, test {self.test}; expected less than 1 together.")
        if self.samples < 10:
            raise KoopsimError(f"{self.samples} samples are too few; ask for at least 10.")

    def read(self, goal: Goal, ahead: int | None = None) -> Sequences:
        """The sequences themselves."""
        if self.data in SYSTEMS:
            return SYSTEMS[self.data](self.samples, np.random.default_rng(self.seed))
        columns = OwnColumns(self.target, goal, self.id, self.time, self.text, ahead, self.drop)
        found = read_sequences(self.data, columns)
        if found.splits is None:
            return found
        if goal == "forecast":
            warnings.warn(
                f"{self.data} says what is for training and what for testing, which a forecast does not ask: of every "
                "series the beginning is learnt and the end is tested on.",
                stacklevel=2,
            )
            return found
        strata = found.labels if goal == "classify" else None
        return replace(found, splits=completed(found.splits, found.path, self.valid, self.test, self.seed, strata))


class OfSequences(Task):
    """What tasks of sequences share."""

    config: Any
    takes: SequenceInputs

    def reported(self, run: Run) -> tuple[str, ...]:
        return ("valid", "test") if run.train_on == "train" else ("test",)


def statistics_of(values: Sequence[NDArray[Any]], plain: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(scale, shift) of each channel over all steps of these sequences; symbols and bytes are left as they are."""
    if values[0].dtype == np.uint8:
        return (), ()
    width = values[0].shape[1]
    if plain:
        return (1.0,) * width, (0.0,) * width
    rows = np.concatenate([v.astype(np.float64) for v in values])
    if np.isnan(rows).all(0).any():
        raise KoopsimError("A channel has no values at all in the training part; leave it out with --drop.")
    mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    moves = deviation > STILL * np.nanmax(np.abs(rows), axis=0)
    scale = np.divide(1.0, deviation, out=np.ones(width), where=moves)
    single = _short(scale, scale), _short(mean, 1 / scale)
    return cast(Any, tuple(tuple(v.tolist()) for v in single))


def _short(values: NDArray[Any], unit: NDArray[Any]) -> NDArray[Any]:
    """Each as the float32 next to it, unless that is further away than such a unit can bear: of 1e8 + sin t it is."""
    with np.errstate(over="ignore"):
        short = values.astype(np.float32).astype(float)
        return np.where(np.abs(short - values) <= NEAR * unit, short, values)


def bare(x: NDArray[Any]) -> NDArray[Any]:
    """One channel is the bare sequence, as the TCN takes it."""
    return x[..., 0] if x.ndim == 3 and x.shape[2] == 1 else x


TCN_LIFT, SOLVER = TCNConfig(levels=4, channels=24, kernel=5), SolverConfig("anderson", 30, 1e-3)
MODELS: dict[str, ModelConfig] = {
    "sim-single": SIMConfig(TCN_LIFT, lift_dim=32, start="even"),
    "sim-two": SIMConfig(TCN_LIFT, lift_dim=32, fourier=FourierConfig(64, 1.0), start="even"),
    "deq": SequenceDEQConfig(4, 8, 32, 64, forward=SOLVER, backward=SOLVER),
    "gru": GRUConfig(hidden=64),
}


class SequenceKind(TaskKind):
    """What the kinds of such tasks share; a kind says its goal, and the shape of the data its presets learn."""

    goal: ClassVar[Goal]
    made: ClassVar[tuple[SequenceShape, int]]  # of the presets' own data: its shape, and the outputs a step
    less: ClassVar[dict[str, Any]]  # of the task at the smoke scale
    setting = ("data", str)
    final_split = "train"  # the middle part stays for choices and intervals
    words = ("target", "goal", "id", "time", "text", "horizon", "drop")

    def presets(self) -> dict[str, Preset]:
        recipe = Recipe(32, 30, 3e-3, "cosine", clip_norm=1.0, patience=5)  # noisy series are learnt by heart soon
        found = {}
        for name, model in MODELS.items():
            fitted = model_kind(model).for_sequences(model, *self.made)
            found[f"{self.goal}/{name}"] = Preset(Run(fitted, self.config(), recipe, train_on="train"))
        return found

    def smoke(self, name: str, run: Run) -> Run:
        task = replace(run.task, **self.less)
        return replace(run, task=task, recipe=replace(run.recipe, epochs=3, learning_rate=5e-3))

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        parameters: dict[str, Parameter] = {"recipe.learning_rate": LogUniform(3e-4, 0.03)}
        parameters |= {} if smoke else {"recipe.batch_size": Choice((16, 32, 64))}
        epochs = run.recipe.epochs
        shape = {"trials": 4, "max_t": 2, "grace": 1} if smoke else {"trials": 50, "max_t": epochs, "grace": 3}
        return SearchSpace(parameters, **shape, metric=self.judged.key, mode="min" if self.judged.lower else "max")

    def on_own_table(self, run: Run, name: str, data: str, columns: OwnColumns) -> tuple[str, Run]:
        path = str(Path(data).resolve()) if Path(data).exists() else data
        said = [word for word in columns.said() if word in ("target", "id", "time", "text", "drop")]
        own: dict[str, Any] = {"data": path} | {word: getattr(columns, word) for word in said} | self.settings(columns)
        task = replace(run.task, **own)
        takes: SequenceInputs = self.task(task).takes
        model = model_kind(run.model).for_sequences(run.model, takes.shape, takes.outputs)
        here = folders.plain_name(Path(data).resolve().stem, "The data")
        return f"{here}/{name.split('/')[-1]}", replace(run, model=model, task=task, train_on="train")

    def settings(self, columns: OwnColumns) -> dict[str, Any]:
        """What the columns say of the task besides how the data is read."""
        if columns.horizon is not None:
            raise KoopsimError("--horizon is how far to forecast; there is a label to be told here. Leave it out.")
        return {}

    def slug(self, task: dict[str, Any]) -> str:
        return self.goal

    def place(self, result: dict[str, Any]) -> str:
        return Path(result["run"]["task"]["data"]).name
