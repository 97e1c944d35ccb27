"""Tables: foretell a column from the others.

    classes   loss: cross-entropy               score: the share of rows named right
    numbers   loss: squares, in deviations      score: R^2 = 1 - sum (y - f)^2 / sum (y - mean)^2, its mean over targets

What a model sees of a row, fill values, categories and scaling among it, is found on the training rows and saved with
the run (datasets/table_inputs.py). Rows are cut by share, by group or as a column says (datasets/row_splits.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, ModelConfig, Recipe, Run, SIMConfig, TaskConfig
from koopsim.datasets.columns import DataTable
from koopsim.datasets.named_tables import NAMED, load_table
from koopsim.datasets.row_splits import TEST, TRAIN, VALID, Marks, split_by_column, split_rows
from koopsim.datasets.table_inputs import Meaning, TableInputs, Target
from koopsim.datasets.table_learning import learn_inputs, learn_targets
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.implicit.rows import RowDEQConfig, RowMonDEQConfig
from koopsim.kinds import OwnColumns, Preset, TaskKind, model_kind, register
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.spaces import Choice, LogUniform, Parameter, SearchSpace
from koopsim.tasks.base import Answers, Figures, ModelAnswers, Split, Task
from koopsim.tasks.row_losses import OfAnswers, row_loss, squares
from koopsim.tasks.table_look import look_at
from koopsim.words import Figure

FEWEST = 10  # rows that can be cut into three
EVALUATION_BATCH = 8192
FOLDS = 128  # rows of a batch from which multiplying neighbouring matrices first pays


@dataclass(frozen=True)
class TableConfig(TaskConfig):
    """Foretell a column of a table."""

    data: str = "breast-cancer"  # a table of scikit-learn's, or a .csv, .tsv, .parquet, .arrow, .feather or .npz
    target: tuple[str, ...] = ("target",)  # the column; several of numbers
    meaning: Meaning | None = None  # classes or numbers; None: found out
    drop: tuple[str, ...] = ()  # columns to leave out
    group: str | None = None  # rows with the same entry here stay in one split
    split: str | None = None  # this column says train, valid or test
    valid: float = 0.1  # shares of the rows
    test: float = 0.2
    seed: int = 0  # of the splits

    def __post_init__(self) -> None:
        if not self.target:
            raise KoopsimError("No target is named; say which column is to be foretold: --target COLUMN.")
        if not (self.valid > 0 and self.test > 0 and self.valid + self.test < 1):
            raise KoopsimError(
                f"The validation share is {self.valid}, the test's {self.test}; both must be above 0, together below 1."
            )
        if self.group is not None and self.split is not None:
            raise KoopsimError(f"Rows are split by the group {self.group!r} or by the column {self.split!r}; name one.")


class TableTask(Task):
    """A table on a device: what a model sees of its rows, and what it should answer."""

    metric = "score"
    lower_is_better = False

    def __init__(self, config: TableConfig, device: torch.device | str = "cpu"):
        self.config = config
        self.table = table = load_table(config.data, (*config.target, *config.drop))
        if len(table) < FEWEST:
            raise KoopsimError(
                f"{config.data} has {len(table)} rows; expected at least {FEWEST}, to learn and to test."
            )
        table.require((*config.target, *config.drop))
        self.marks = _marks(table, config)
        rows = np.flatnonzero(self.marks == TRAIN)
        targets = learn_targets(table, config.target, config.meaning, rows)
        self.takes = learn_inputs(table.without(_not_inputs(config)), targets, rows)
        self.x = torch.from_numpy(self.takes.encode(table)).to(device)
        self.y = torch.from_numpy(self.takes.encode_targets(table)).to(device)
        self.places = {m: torch.from_numpy(np.flatnonzero(self.marks == m)).to(device) for m in (TRAIN, VALID, TEST)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Of the target; empty where it is a number."""
        return self.takes.targets[0].classes or ()

    def rows(self, name: str) -> Tensor:
        """Which rows of the table a split has."""
        parts = {"train": (TRAIN,), "valid": (VALID,), "train+valid": (TRAIN, VALID), "test": (TEST,)}
        if name not in parts:
            raise KoopsimError(f"A table has no split {name!r}; expected one of {', '.join(parts)}.")
        return torch.cat([self.places[mark] for mark in parts[name]])

    def split(self, name: str) -> Split:
        rows = self.rows(name)
        return self.x[rows], self.y[rows]

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(outputs, targets, smoothing) if self.classes else squares(outputs, targets)

    def member_loss(self, run: Run) -> Callable[..., Tensor]:
        """Neighbouring matrices are multiplied first where a batch has more rows than they."""
        smoothing = run.recipe.label_smoothing
        loss = partial(self.loss, smoothing=smoothing) if smoothing else row_loss(bool(self.classes), weighted=False)
        return OfAnswers(loss, run.recipe.batch_size >= FOLDS)

    def work(self, run: Run) -> int:
        return run.recipe.batch_size * count_parameters(build(run.model))

    def outputs(self, answers: Answers, x: Tensor) -> Tensor:
        """(members, n, outputs), float64: scores of classes, or numbers in deviations."""
        return torch.cat([answers(piece) for piece in x.split(EVALUATION_BATCH)], dim=1).double()

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        x, y = self.split(split)
        return [row_figures(own, y, self.takes.targets) for own in self.outputs(answers, x)]

    def concluded(self, models: Sequence[nn.Module]) -> dict[str, Any]:
        """What the test rows say of the model: confusions or residuals, and what each column is worth."""
        x, y = self.split("test")
        answers = ModelAnswers(models[:1])
        return {
            "look": look_at(
                lambda rows: self.outputs(answers, rows)[0],
                lambda outputs, truth: row_figures(outputs, truth, self.takes.targets)["score"],
                x,
                y,
                self.takes,
            )
        }

    def reported(self, run: Run) -> tuple[str, ...]:
        """Both: the test's figure is shown once, at the end, and nothing is chosen by it."""
        return ("valid", "test") if run.train_on == "train" else super().reported(run)


def row_figures(outputs: Tensor, y: Tensor, targets: Sequence[Target]) -> Figures:
    """Score and loss; of classes the balanced accuracy, of numbers the errors in the first target's own units."""
    if targets[0].classes is not None:
        right = (outputs.argmax(1) == y).double()
        shares = [right[y == c].mean() for c in y.unique()]
        loss = float(F.cross_entropy(outputs, y))
        return {"score": float(right.mean()), "loss": loss, "balanced": float(torch.stack(shares).mean())}
    off = outputs - y.double()
    total = (y.double() - y.double().mean(0)).square().sum(0)
    explained = torch.where(
        total > 0, 1 - off.square().sum(0) / total.clamp_min(1e-300), (off.abs().sum(0) == 0).double()
    )
    unit = targets[0].deviation
    rmse, mae = float(off[:, 0].square().mean().sqrt()) * unit, float(off[:, 0].abs().mean()) * unit
    return {"score": float(explained.mean()), "loss": float(off.square().mean()), "rmse": rmse, "mae": mae}


def table_figures(outputs: Tensor, inputs: TableInputs, table: DataTable) -> Figures:
    """The figures of a model's answers to a table that has the targets' columns."""
    y = torch.from_numpy(inputs.encode_targets(table)).to(outputs.device)
    return row_figures(outputs, y, inputs.targets)


def _not_inputs(config: TableConfig) -> list[str]:
    """OwnColumns that are there and are not to be learnt from: neither those that decide the split."""
    return list(dict.fromkeys([*config.drop, *(c for c in (config.group, config.split) if c is not None)]))


def _marks(table: DataTable, config: TableConfig) -> Marks:
    strata = None
    if config.meaning != "regression" and table[config.target[0]].is_text:
        strata = table[config.target[0]].codes()[0]
    if config.split is not None:
        return split_by_column(table[config.split], table.path, config.valid, config.test, config.seed, strata)
    groups = None
    if config.group is not None:
        groups = table[config.group].codes()[0]
        if (groups < 0).any():
            raise KoopsimError(f"{table.path}: some rows have no {config.group!r}, their group; every row needs one.")
    return split_rows(len(table), config.valid, config.test, config.seed, strata, groups)


# ---------------------------------------------------------------- what the house asks of the task

MODELS: dict[str, ModelConfig] = {
    "sim-single": SIMConfig(MLPConfig(2, 64, 1), lift_dim=64, outputs=1, start="even"),
    "sim-two": SIMConfig(MLPConfig(2, 64, 1), 64, FourierConfig(128, normalise=True), outputs=1, start="even"),
    "sim-rff": SIMConfig(IdentityConfig(2), fourier=FourierConfig(128, 4.0), outputs=1, start="even"),
    "deq": RowDEQConfig(),
    "mondeq": RowMonDEQConfig(outputs=1),
}
RECIPE = Recipe(64, 40, 8e-3, "cosine", weight_decay=2.0, average=0.9)
LARGEST_BATCH = 4096
PATIENCE, ENOUGH = 10, 100  # epochs; training rows from which those held out can judge: as of the estimators


def recipe_for(rows: int, recipe: Recipe = RECIPE) -> Recipe:
    """Larger batches of larger tables."""
    return replace(recipe, batch_size=batch_for(rows))


def batch_for(rows: int) -> int:
    """The power of two nearest to 5 sqrt(rows), from 32 to 4096: more steps an epoch of larger tables, and larger."""
    return min(max(32, 2 ** round(math.log2(5 * math.sqrt(max(1, rows))))), LARGEST_BATCH)


@register
class TableKind(TaskKind):
    config, task = TableConfig, TableTask
    setting, shown = ("data", str), ("score", "loss")
    words = ("target", "goal", "drop", "group", "split")
    judged = Figure("score", "score", "{:.4f}", "{:.3f}", lower=False)

    @property
    def title(self) -> str:
        return "Tables"

    def presets(self) -> dict[str, Preset]:
        """On scikit-learn's breast cancer (classes); a table of one's own fits the model to itself."""
        found = {}
        for slug, model in MODELS.items():
            fitted = model_kind(model).for_rows(model, 30, 2)
            found[f"table/{slug}"] = Preset(Run(fitted, TableConfig(), recipe_for(400)))
        return found

    def smoke(self, name: str, run: Run) -> Run:
        return replace(run, recipe=replace(run.recipe, epochs=8))

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        """All trials of a batch size are one stack: rate, decay and length are a slot's own."""
        epochs, batch = run.recipe.epochs, run.recipe.batch_size
        parameters: dict[str, Parameter] = {
            "recipe.learning_rate": LogUniform(1e-3, 3e-2),
            "recipe.weight_decay": LogUniform(1e-2, 10.0),
        }
        if smoke:
            return SearchSpace(parameters, 8, epochs, max(1, epochs // 4), 2, "loss", "min")
        parameters |= {"recipe.epochs": Choice((10, 20, 40, 80)), "recipe.batch_size": Choice((batch, 2 * batch))}
        return SearchSpace(parameters, 100, 80, 10, 2, "loss", "min")

    def on_own_table(self, run: Run, name: str, data: str, columns: OwnColumns) -> tuple[str, Run]:
        """The model's shape and the size of a batch follow from the table."""
        if columns.goal in ("tag", "forecast"):
            raise KoopsimError(f"--goal {columns.goal} is for sequences; of a table it is classify or regress.")
        meanings: dict[str | None, Meaning] = {"classify": "classification", "regress": "regression"}
        place = data if data in NAMED else str(Path(data).resolve())
        assert isinstance(run.task, TableConfig)
        asked = replace(run.task, data=place, target=tuple(columns.target), meaning=meanings.get(columns.goal))
        said = [word for word in columns.said() if word in ("drop", "group", "split")]
        task = replace(asked, **{word: getattr(columns, word) for word in said})
        found = TableTask(task)
        model = model_kind(run.model).for_rows(run.model, found.takes.width, found.takes.outputs)
        rows = len(found.places[TRAIN])
        recipe = recipe_for(rows, run.recipe)
        if rows >= ENOUGH and recipe.patience is None:
            recipe = replace(recipe, patience=PATIENCE)
        own = folders.plain_name(Path(data).name.partition(".")[0] or "table", "The data")
        task = replace(task, meaning=found.takes.meaning)
        return f"{own}/{name.split('/')[1]}", replace(run, model=model, task=task, recipe=recipe, train_on="train")

    def slug(self, task: dict[str, Any]) -> str:
        return "table"

    def place(self, result: dict[str, Any]) -> str:
        task = result["run"]["task"]
        return f"{', '.join(task['target'])} of {Path(task['data']).name}"
