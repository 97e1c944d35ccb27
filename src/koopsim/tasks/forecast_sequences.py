"""How sequences go on: h steps ahead, with intervals.

    z_{t+k} = z_t + answer_k at step t, k = 1..h;      mean square over the second half of a window of L steps
    radius_k = the ceil((n + 1) c) / n quantile of |error_k| on the middle part      split conformal, Vovk et al. 2005

The beginning of each series is trained on, the part after it calibrates the intervals, the last part tests both. If the
middle part is like what comes after it, an interval holds the truth with probability c; how often it did in the last
part is measured and told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from koopsim.config import Recipe, Run, TaskConfig
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequences import Sequences
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns, SequenceShape, register
from koopsim.tasks.base import Answers, Figures, ModelAnswers, Samples, Split
from koopsim.tasks.rows import content_digest
from koopsim.tasks.sequence_data import OfSequences, SequenceData, SequenceKind, statistics_of
from koopsim.words import Curve, Figure

EVALUATION_BATCH = 256
MOST_WINDOWS = 20_000  # of a part, at even distances


@dataclass(frozen=True)
class ForecastSequencesConfig(SequenceData, TaskConfig):
    """How each sequence goes on."""

    data: str = "oscillator"
    samples: int = 4000
    ahead: int = 16  # h
    context: int = 64  # L, the steps a forecast looks back
    coverage: float = 0.9  # c, of the intervals

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead < 1 or self.context < 2 or not 0 < self.coverage < 1:
            raise KoopsimError(
                f"A forecast of {self.ahead} steps from {self.context} with coverage {self.coverage}; expected at "
                "least 1 step from 2, and a coverage between 0 and 1."
            )


class ForecastSequences(OfSequences):
    """Windows of series on a device: a sample is where one begins."""

    metric, lower_is_better = "rmse", True
    labels = False

    def __init__(self, config: ForecastSequencesConfig, device: torch.device | str = "cpu"):
        self.config = config
        found = config.read("forecast", config.ahead)
        if found.bytes:
            raise KoopsimError(f"{found.path} is text; its next byte is foretold by koopsim train text/sim-single.")
        targets = config.target or found.channels
        lost = [name for name in targets if name not in found.channels]
        if lost:
            raise KoopsimError(f"{found.path} has no column {lost[0]!r} to forecast.")
        cuts = [self._cuts(len(v)) for v in found.values]
        starts = self._starts(found, cuts)
        learnt = [v[: cut[0]] for v, cut in zip(found.values, cuts, strict=True) if cut[0] > 0]
        scale, shift = statistics_of(learnt, plain=False)
        self.takes = SequenceInputs(
            "forecast", found.channels, scale, shift, (), tuple(targets), config.context, config.ahead,
            config.id, config.time, config.text, config.target, config.drop,
        )  # fmt: skip
        flat = np.concatenate(self.takes.scaled(found.values, found.path))
        self.flat = torch.from_numpy(flat).to(device)
        self.aimed = self.flat[:, self.takes.target_places].contiguous()
        self.starts = {name: torch.from_numpy(own).to(device) for name, own in starts.items()}
        self.steps = torch.arange(config.context + config.ahead, device=device)
        self.outputs = self.takes.outputs

    def _cuts(self, length: int) -> tuple[int, int]:
        """Where the middle part and the last part of a series begin."""
        last = length - max(self.config.ahead, round(self.config.test * length))
        return last - max(self.config.ahead, round(self.config.valid * length)), last

    def _starts(self, found: Sequences, cuts: Sequence[tuple[int, int]]) -> dict[str, NDArray[np.int64]]:
        """Of each part the windows whose forecasts lie in it; they may look back into the one before."""
        L, h = self.config.context, self.config.ahead
        rows: dict[str, list[NDArray[Any]]] = {"train": [], "valid": [], "test": []}
        offset = 0
        for length, (first, last) in zip(found.lengths.tolist(), cuts, strict=True):
            for name, low, high in (("train", 0, first), ("valid", first, last), ("test", last, length)):
                begin = max(L, low) - L
                rows[name].append(offset + np.arange(begin, max(begin, high - h - L + 1)))
            offset += length
        starts = {name: np.concatenate(own).astype(np.int64) for name, own in rows.items()}
        lost = [name for name, own in starts.items() if not len(own)]
        if lost:
            raise KoopsimError(
                f"{found.path} has no window of {L} steps and {h} more for the part to {lost[0]} on; its longest "
                f"series has {found.lengths.max()} steps. Give longer ones, or a smaller --task.context or --horizon."
            )
        few = {name: min(len(own), MOST_WINDOWS) for name, own in starts.items()}
        return {name: own[np.linspace(0, len(own) - 1, few[name]).astype(int)] for name, own in starts.items()}

    def split(self, name: str) -> Split:
        if name == "train+valid":
            return self._rows(torch.cat([self.starts["train"], self.starts["valid"]]))
        if name not in self.starts:
            raise KoopsimError(f"A forecast has no split {name!r}; expected one of {', '.join(self.starts)}.")
        return self._rows(self.starts[name])

    @staticmethod
    def _rows(starts: Tensor) -> Split:
        return starts.unsqueeze(1), starts.unsqueeze(1)

    def data(self, run: Run, which: Sequence[int]) -> Samples:
        if run.train_on != "train":
            raise KoopsimError("A forecaster keeps its middle part for the intervals: leave --train-on at train.")
        return Samples(*self.split("train"), self.inputs)

    def inputs(self, x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        """Where windows begin -> what is in them, (n, L, C), or (n, L) of one channel."""
        window = self.flat[x + self.steps[: self.config.context]]
        return window[..., 0] if window.shape[-1] == 1 else window

    def fingerprint(self) -> str:
        return content_digest([self.flat, *self.starts.values()])

    def _after(self, outputs: Tensor, starts: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """(forecast, truth) of steps first..L-1 of windows, each (..., n, steps, h, D)."""
        L, h = self.config.context, self.config.ahead
        own = self.aimed[starts + self.steps]  # (n, L + h, D)
        truth = torch.stack([own[:, first + k : L + k] for k in range(1, h + 1)], dim=2)
        step = outputs[..., first:, :].unflatten(-1, (h, own.shape[-1]))
        return own[:, first:L].unsqueeze(2) + step, truth

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        forecast, truth = self._after(outputs, targets, self.config.context // 2)
        return (forecast - truth).square().mean()

    def errors(self, answers: Answers, split: str) -> tuple[Tensor, Tensor]:
        """(members, n, h, D): forecast minus truth from the last step of each window; and of the last value instead."""
        starts = self.split(split)[0]
        found, naive = [], []
        for some in starts.split(EVALUATION_BATCH):
            outputs = answers(self.inputs(some))[..., -1:, :].double()
            forecast, truth = self._after_last(outputs, some)
            found.append(forecast - truth)
            last = self.aimed[some + self.steps][:, self.config.context - 1].double()
            naive.append(last.unsqueeze(1) - truth)
        return torch.cat(found, dim=1), torch.cat(naive)

    def _after_last(self, outputs: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        L, h = self.config.context, self.config.ahead
        own = self.aimed[starts + self.steps].double()
        step = outputs[..., 0, :].unflatten(-1, (h, own.shape[-1]))
        return own[:, L - 1].unsqueeze(1) + step, own[:, L:]

    def radii(self, errors: Tensor) -> Tensor:
        """(h, D) of (n, h, D): the conformal quantile; of few windows the largest error."""
        n = len(errors)
        rank = min(n, math.ceil((n + 1) * self.config.coverage))
        return errors.abs().sort(dim=0).values[rank - 1]

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """Errors in deviations of the training part; the share of values inside the intervals."""
        errors, naive = self.errors(answers, split)
        calibrating = errors if split == "valid" else self.errors(answers, "valid")[0]
        found = []
        for own, held in zip(errors, calibrating, strict=True):
            radii = self.radii(held)
            found.append(
                {
                    "rmse": float(own.square().mean().sqrt()),
                    "mae": float(own.abs().mean()),
                    "coverage": float((own.abs() <= radii).double().mean()),
                    "radius": float(radii.mean()),
                    "last_value_rmse": float(naive.square().mean().sqrt()),
                }
            )
        return found

    def concluded(self, models: Sequence[nn.Module]) -> dict[str, Any]:
        """The intervals, in the units of the data: a radius for each step ahead and channel."""
        errors, _ = self.errors(ModelAnswers(models), "valid")
        scale = torch.tensor([self.takes.scale[i] for i in self.takes.target_places], device=errors.device)
        radii = self.radii(errors[0]) / scale.double()
        return {"intervals": {"coverage": self.config.coverage, "windows": errors.shape[1], "radii": radii.tolist()}}


@register
class ForecastSequencesKind(SequenceKind):
    config, task, goal = ForecastSequencesConfig, ForecastSequences, "forecast"
    judged = Figure("rmse", "RMSE in deviations", "{:.3f}", "{:.2f}", lower=True)
    shown, curve = ("rmse", "last_value_rmse", "coverage"), Curve("train_loss", "training loss")
    made, less = (SequenceShape(1, 64), 16), {"samples": 450}

    @property
    def title(self) -> str:
        return "Sequences, foretold"

    def settings(self, columns: OwnColumns) -> dict[str, Any]:
        return {} if columns.horizon is None else {"ahead": columns.horizon}
