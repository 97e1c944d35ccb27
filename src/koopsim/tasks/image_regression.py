"""Image regression: a network that is a picture.                     paper, section 4.3

    (x, y) in [0, 1)^2  ->  (r, g, b),      loss  mean squared error,      PSNR = -10 log10(loss)

Of the pixels of a square picture a quarter trains ([::2, ::2]), a quarter chooses ([::2, 1::2]) and a quarter judges
([1::2, 1::2]). Every picture has a network of its own; the task holds all pictures of a set, so that they can be
trained together.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.config import ImageRegressionConfig, Recipe, Run
from koopsim.errors import KoopsimError
from koopsim.kinds import Preset, Scale, TaskKind, model_kind, register
from koopsim.pictures import PictureSet, picture_set
from koopsim.spaces import Choice, LogUniform, Parameter, SearchSpace
from koopsim.tasks import table3
from koopsim.words import PSNR, Curve

PARTS = {"train": [(0, 0)], "valid": [(0, 1)], "train+valid": [(0, 0), (0, 1)], "test": [(1, 1)]}  # row, column offset
EVALUATION_ROWS = 65_536
PAPER_SIZE = 512


def coordinates(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """(height * width, 2): x, then y, of every pixel, row by row; the longer side is [0, 1), pixels are square."""
    side = max(height, width)
    y, x = torch.meshgrid(
        torch.arange(height, device=device) / side, torch.arange(width, device=device) / side, indexing="ij"
    )
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products in whole float32, whatever the training allows itself: frequencies must not be rounded."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def psnr_of(error: float) -> float:
    """Decibels of a mean squared error on [0, 1]."""
    if not math.isfinite(error):
        return math.nan
    return math.inf if error == 0 else -10 * math.log10(error)


def figures_of(psnrs: dict[str, float]) -> dict[str, float]:
    """Of PSNRs by picture: mean, standard deviation over the pictures, and each picture's own."""
    values = list(psnrs.values())
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"psnr": float(np.mean(values)), "psnr_std": spread} | {f"psnr/{name}": v for name, v in psnrs.items()}


class ImageRegression:
    """The pixels of a set of pictures on a device, cut into train, valid and test."""

    metric = "psnr"
    lower_is_better = False

    def __init__(
        self, config: ImageRegressionConfig, device: torch.device | str = "cpu", given: PictureSet | None = None
    ):
        self.config, self.device = config, torch.device(device)
        found = given or picture_set(config.pictures, config.size, config.count, config.seed, config.only)
        self.names, self.size = found.names, found.values.shape[1]
        self.values = torch.as_tensor(found.values, device=device)  # (P, size, size, 3)
        self.grid = coordinates(self.size, self.size, device).reshape(self.size, self.size, 2)

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Coordinates (n, 2), the same for all pictures, and colours (P, n, 3)."""
        if name not in PARTS:
            raise KoopsimError(f"Image regression has no split {name!r}; expected one of {', '.join(PARTS)}.")
        x = torch.cat([self.grid[r::2, c::2].reshape(-1, 2) for r, c in PARTS[name]])
        y = torch.cat([self.values[:, r::2, c::2].flatten(1, 2) for r, c in PARTS[name]], dim=1)
        return x, y

    def inputs(self, x: Tensor, recipe: Recipe | None = None, draws: Tensor | None = None) -> Tensor:
        return x

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return (outputs - targets).square().mean()

    @torch.no_grad()
    def psnrs(self, models: Iterable[nn.Module], split: str, pictures: Iterable[int] | None = None) -> list[float]:
        """Each model's PSNR on its picture (the p-th model on the p-th one unless told otherwise), not clamped."""
        x, y = self.split(split)
        found = []
        with full_precision():
            for model, p in zip(models, range(len(self.names)) if pictures is None else pictures, strict=False):
                dtype, total = next(model.parameters()).dtype, torch.zeros((), dtype=torch.float64, device=self.device)
                for xs, ys in zip(x.split(EVALUATION_ROWS), y[p].split(EVALUATION_ROWS), strict=True):
                    total += (model(xs.to(dtype)) - ys).double().square().sum()
                found.append(total / y[p].numel())
        return [psnr_of(float(error)) for error in found]

    def figures(self, psnrs: list[float]) -> dict[str, float]:
        """Those of the whole set."""
        return figures_of(dict(zip(self.names, psnrs, strict=True)))

    def evaluate(self, model: Iterable[nn.Module] | nn.Module, split: str) -> dict[str, float]:
        """The figures of one model a picture, given in the pictures' order."""
        models = (
            [model] * len(self.names)
            if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList)
            else model
        )
        return self.figures(self.psnrs(models, split))  # pyright: ignore

    @torch.no_grad()
    def draw(self, model: nn.Module) -> np.ndarray:
        """(size, size, 3): the model's whole picture, not clamped."""
        x = self.grid.reshape(-1, 2).to(next(model.parameters()).dtype)
        with full_precision():
            rows = [model(part).float().cpu() for part in x.split(EVALUATION_ROWS)]
        return torch.cat(rows).reshape(self.size, self.size, -1).numpy()


@register
class ImageRegressionKind(TaskKind):
    """What the house asks of the task; the paper's rows are in table3.py."""

    config, task = ImageRegressionConfig, ImageRegression
    order, table, figures = 3, "table3", ("figure4",)
    many = True
    setting, judged, shown = ("pictures", str), PSNR, ("psnr", "psnr_std")
    curve = Curve("train_psnr", "PSNR of training pixels, dB", log=False)
    final_split = "train"  # as in the paper: the valid pixels are never trained on

    def presets(self) -> dict[str, Preset]:
        return table3.PRESETS

    def smoke(self, name: str, run: Run) -> Run:
        """Small pictures, whose pixels are wide: so are the features. A hundred steps: a short memory."""
        own = _config(run)
        task = replace(own, size=64, steps_an_epoch=20)
        model = model_kind(run.model).coarser(run.model, own.size / task.size)
        recipe = replace(run.recipe, epochs=5, average=min(run.recipe.average, 0.9))
        return replace(run, model=model, task=task, recipe=recipe)

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        sizes = Choice((32, 64) if smoke else (32, 64, 128, 256, 512))
        parameters: dict[str, Parameter] = {"recipe.learning_rate": LogUniform(1e-4, 0.05)}
        parameters |= model_kind(run.model).sizes(run.model, sizes)
        shape = {"trials": 6, "max_t": 5, "grace": 1} if smoke else {"trials": 200, "max_t": 100, "grace": 5}
        return SearchSpace(parameters, **shape, metric="psnr", mode="max")

    def search_base(self, run: Run) -> Run:
        """2,000 steps on all pixels, cut into a hundred pieces: the paper's 100 iterations."""
        task = _config(run)
        if task.steps_an_epoch == 100:
            epochs = run.recipe.epochs * 100 // 20
            run = replace(run, task=replace(task, steps_an_epoch=20), recipe=replace(run.recipe, epochs=epochs))
        return super().search_base(run)

    def rows(self, scale: Scale) -> dict[str, Scale]:
        return dict.fromkeys(table3.PRESETS, scale)

    def seconds(self, name: str, scale: Scale) -> float | None:
        return None if scale == "paper" else table3.SMOKE_SECONDS.get(name)

    def variants(self, run: Run, pictures: Sequence[str], count: int | None) -> list[tuple[str, Run]]:
        task = replace(_config(run), count=count)
        return [(f"-{Path(name).name}", replace(run, task=replace(task, pictures=name))) for name in pictures]

    def slug(self, task: dict[str, Any]) -> str:
        return "image"

    def place(self, result: dict[str, Any]) -> str:
        return f"Pictures: {set_of(result)}"

    def published(self, name: str) -> dict[str, str] | None:
        return table3.PUBLISHED.get(name)


def _config(run: Run) -> ImageRegressionConfig:
    assert isinstance(run.task, ImageRegressionConfig)
    return run.task


def set_of(result: dict[str, Any]) -> str:
    """The name of the set of pictures a result is about, with their size where it is not the paper's."""
    task = result["run"]["task"]
    name, size = str(result.get("set") or Path(task["pictures"]).name), task.get("size", PAPER_SIZE)
    return name if size == PAPER_SIZE else f"{name} at {size}"
