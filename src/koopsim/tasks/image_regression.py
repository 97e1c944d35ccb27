"""Image regression: a network that is a picture.                     paper, section 5.3

    (x, y) in [0, 1)^2  ->  (r, g, b),      loss  mean squared error,      PSNR = -10 log10(loss)

Of the pixels of a square picture a quarter trains ([::2, ::2]), a quarter chooses ([::2, 1::2]) and a quarter judges
([1::2, 1::2]). Every picture has a network of its own; the task holds all pictures of a set, so that they can be
trained together.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.config import ImageRegressionConfig, ModelConfig, Run
from koopsim.errors import KoopsimError
from koopsim.kinds import Preset, Scale, TaskKind, model_kind, register
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.nn.folded import fixed_features, folded, has_fixed_features, one_pass, squared_error
from koopsim.pictures import PictureSet, picture_set
from koopsim.spaces import Choice, LogUniform, Parameter, SearchSpace
from koopsim.tasks import table3
from koopsim.tasks.base import Answers, Figures, ModelAnswers, Task, Whole
from koopsim.words import PSNR, Curve

FEW_STEPS = 20  # between looks: fewer are for searches alone
PARTS = {"train": [(0, 0)], "valid": [(0, 1)], "train+valid": [(0, 0), (0, 1)], "test": [(1, 1)]}  # row, column offset
EVALUATION_ROWS = 65_536
SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 2.0**14  # a mean over 196,608 colours has gradients of 1e-7, which float16 would round to nothing
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


class ImageRegression(Task):
    """The pixels of a set of pictures on a device, cut into train, valid and test."""

    metric = "psnr"
    lower_is_better = False
    many = True
    by_itself = False  # a picture alone is a stack of one
    fast_alone = ()

    def __init__(
        self, config: ImageRegressionConfig, device: torch.device | str = "cpu", given: PictureSet | None = None
    ):
        self.config, self.device, self.at_once = config, torch.device(device), config.at_once
        found = given or picture_set(config.pictures, config.size, config.count, config.seed, config.only)
        self.pictures, self.size = found.names, found.values.shape[1]
        self.values = torch.as_tensor(found.values, device=device)  # (P, size, size, 3)
        self.grid = coordinates(self.size, self.size, device).reshape(self.size, self.size, 2)

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Coordinates (n, 2), the same for all pictures, and colours (P, n, 3)."""
        if name not in PARTS:
            raise KoopsimError(f"Image regression has no split {name!r}; expected one of {', '.join(PARTS)}.")
        x = torch.cat([self.grid[r::2, c::2].reshape(-1, 2) for r, c in PARTS[name]])
        y = torch.cat([self.values[:, r::2, c::2].flatten(1, 2) for r, c in PARTS[name]], dim=1)
        return x, y

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return (outputs - targets).square().mean()

    # ------------------------------------------------------------ a network a picture

    @property
    def names(self) -> Sequence[str]:
        return self.pictures

    def seeds(self, run: Run) -> list[int]:
        return [run.seed * 1_000_003 + p for p in range(len(self.pictures))]

    def data(self, run: Run, which: Sequence[int]) -> Whole:
        """All pixels of each picture's split; features that nothing learnt comes before are computed once."""
        x, y = self.split(run.train_on)
        kind, short = torch.float64 if run.precision == "float64" else torch.float32, SHORT.get(run.precision)
        x = x.to(kind)

        def features(model: nn.Module) -> Tensor | None:
            with torch.no_grad(), full_precision():
                return fixed_features(model, x, short)

        return Whole(x, y[list(which)].to(kind), self.config.steps_an_epoch, features)

    def epoch_steps(self, run: Run) -> int:
        return self.config.steps_an_epoch

    def member_loss(self, run: Run) -> Callable[..., Tensor]:
        """Products of weights are folded (nn/folded.py); a batch is features where `data` has them, else points."""
        short = SHORT.get(run.precision)
        own = getattr(self.loss, "__func__", None) is not ImageRegression.loss  # of somebody's task

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            given = has_fixed_features(model)
            if given and not own and one_pass(model, x, y, short):
                return squared_error(model, x, y)
            return self.loss(folded(model, x, given, short), y)

        return loss

    def autocast(self, run: Run) -> torch.dtype | None:
        return None

    def products(self, run: Run) -> str:
        rough = run.precision in SHORT and not model_kind(run.model).learns_phases(run.model)
        return "high" if rough or run.precision == "tf32" else "highest"

    def loss_scale(self, run: Run) -> float:
        return LOSS_SCALE if run.precision == "fp16" else 1.0

    def bytes_of(self, run: Run) -> int:
        return network_bytes(run.model, len(self.split(run.train_on)[0]), run.precision)

    # ------------------------------------------------------------ figures

    def reported(self, run: Run) -> tuple[str, ...]:
        """The paper trains on a quarter of the pixels and never on the one that chooses."""
        return ("valid", "test")

    @torch.no_grad()
    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """Each member's PSNR on its picture, not clamped."""
        x, y = self.split(split)
        y = y[list(which)]
        rows = max(4_096, EVALUATION_ROWS // answers.members)
        total = torch.zeros(answers.members, dtype=torch.float64, device=self.device)
        with full_precision():
            for xs, ys in zip(x.split(rows), y.split(rows, dim=1), strict=True):
                total += (answers(xs) - ys).double().square().sum((1, 2))
        return [{"psnr": psnr_of(error)} for error in (total / y[0].numel()).tolist()]

    def psnrs(self, models: Iterable[nn.Module], split: str, which: Sequence[int] | None = None) -> list[float]:
        """Each model's PSNR on its picture: the p-th model on the p-th one unless told otherwise."""
        answers = ModelAnswers(models)
        which = range(answers.members) if which is None else which
        return [figures["psnr"] for figures in self.judge(answers, split, which)]

    def gathered(self, figures: Sequence[Figures], which: Sequence[int]) -> Figures:
        return figures_of({self.pictures[p]: own["psnr"] for p, own in zip(which, figures, strict=True)})

    def line(self, losses: Tensor, figures: Figures | None) -> dict[str, float]:
        last = losses[:, -1].double().tolist()
        found = {"train_loss": float(np.mean(last)), "train_psnr": float(np.mean([psnr_of(v) for v in last]))}
        return found if figures is None else found | {"valid_psnr": figures["psnr"]}

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
    order, table, figures = 3, "table3", ("figure5",)
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

    def final(self, run: Run) -> Run:
        """The same steps, looked at every hundred where a trial was after every few: a look takes longer than one."""
        task, recipe = _config(run), run.recipe
        steps = task.steps_an_epoch * recipe.epochs
        if task.steps_an_epoch < FEW_STEPS and steps % 100 == 0 and recipe.schedule in ("constant", "cosine"):
            run = replace(run, task=replace(task, steps_an_epoch=100), recipe=replace(recipe, epochs=steps // 100))
        return super().final(run)

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
        return f"Pictures: {pictures_of(result)}"

    def published(self, name: str) -> dict[str, str] | None:
        return table3.PUBLISHED.get(name)


def _config(run: Run) -> ImageRegressionConfig:
    assert isinstance(run.task, ImageRegressionConfig)
    return run.task


def pictures_of(result: dict[str, Any]) -> str:
    """The name of the set of pictures a result is about, with their size where it is not the paper's."""
    task = result["run"]["task"]
    name, size = str(result.get("set") or Path(task["pictures"]).name), task.get("size", PAPER_SIZE)
    return name if size == PAPER_SIZE else f"{name} at {size}"


def network_bytes(model: ModelConfig, pixels: int, precision: str = "float32") -> int:
    """About how much memory a member needs while it trains: activations kept for the gradient, and Adam."""
    short = 2 if precision in SHORT else 8 if precision == "float64" else 4
    full = 8 if precision == "float64" else 4
    with torch.random.fork_rng(devices=[]):  # not on the meta device, where arithmetic imports torch's compiler
        parameters = count_parameters(build(model))
    return pixels * model_kind(model).bytes_a_point(model, short, full) + 8 * full * parameters
