"""Pictures as networks: the RFF-only model fitted to all pixels of pictures of any size.

    z = nu( U V psi(x) ),    psi as narrow as a few pixels,    Adam with a cosine to the end of the steps or the time

A picture of few pixels is one full batch; a large one is seen in random batches of pixels, so that memory does not
grow with it. The pixels stay as they are in the file (uint8 or uint16) and become numbers a batch at a time. Pictures
of one shape are members of one part. By steps the same seed gives the same bits; by time the rates follow the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from koopsim.config import MOST, SEEDS, FourierConfig, IdentityConfig, Recipe, SIMConfig
from koopsim.engine.as_it_was import torch_as_it_was
from koopsim.engine.checkpoint import read_checkpoint, restore_random, write_checkpoint
from koopsim.engine.drive import Course, Steps, drive, pick_device
from koopsim.engine.part import Part
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.picture_codec import on_grid
from koopsim.picture_network import PictureInfo, draw
from koopsim.pictures import Picture, read_picture
from koopsim.points import Batch, Draw, default_batch, drawing, no_number, part_of_points
from koopsim.progress import Progress
from koopsim.tasks.image_regression import psnr_of
from koopsim.training import Session, unheard

FRAMES, FRAME_SIDE, FRAME_SHARE = 24, 144, 0.1  # how many, how large, and how much of the time they may take
LONGEST_RUN = 200_000  # steps a schedule has room for where only the time is limited
USUAL_STEPS = 1000


@dataclass(frozen=True)
class FitSettings:
    """How a picture is fitted; None is chosen from the picture and the device."""

    features: int = 256  # M
    hidden: int = 128  # H
    bandwidth: float | None = None  # in pixels
    learning_rate: float = 1e-2
    steps: int | None = None  # 1,000 where no time is given either
    seconds: float | None = None
    batch: int | None = None  # pixels a step
    seed: int = 0
    precision: str = "float32"  # float32, tf32, bf16
    frames: bool = True  # keep pictures of the way for an animation
    coded: bool = False  # to be written in a few bits a weight: the frequencies lie on a grid from the start

    def __post_init__(self) -> None:
        if not isinstance(self.features, Integral) or self.features < 2 or self.features % 2:
            raise KoopsimError(f"The number of features is {self.features}; it must be even and at least 2.")
        for name in ("hidden", "learning_rate", "bandwidth", "steps", "seconds", "batch"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and 0 < value < math.inf):  # pyright: ignore[reportOperatorIssue]
                raise KoopsimError(f"{name} is {value!r}; it must be positive.")
        for name in ("features", "hidden", "steps", "batch"):
            value = getattr(self, name)
            if value is not None and value > MOST:
                raise KoopsimError(f"{name} is {value}; it goes to {MOST} at most.")
        if not 0 <= self.seed < SEEDS:
            raise KoopsimError(f"The seed is {self.seed}; it lies between 0 and {SEEDS - 1}.")


DEFAULTS = FitSettings()


@dataclass
class Fitted:
    """A trained network and how it came about."""

    model: nn.Module
    config: SIMConfig
    info: PictureInfo
    steps: int = 0
    seconds: float = 0.0
    batch: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    frames: list[NDArray] = field(default_factory=list)


def default_bandwidth(info: PictureInfo, features: int = 256) -> float:
    """In pixels. A few hundred frequencies are spread over the picture: a large one gets them no denser.

    Fewer than that cannot have fine detail too, and are spent on the coarse.
    """
    return max(5.0, info.side / 100 * max(1.0, 256 / features) ** 0.7)


def fit(
    picture: Picture | Path | str,
    settings: FitSettings = DEFAULTS,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> Fitted:
    """A network that is this picture; `koopsim fit` does the same for files and writes what came of it."""
    if not isinstance(picture, (Picture, Path, str)):
        raise KoopsimError(f"This is {type(picture).__name__}; expected a picture's file, or koopsim.pictures.Picture.")
    picture = picture if isinstance(picture, Picture) else read_picture(Path(picture))
    with Progress(picture.name) if progress else nullcontext(unheard) as listen:
        return fit_pictures([picture], settings, Session(pick_device(device), listen=listen))[0]


@torch_as_it_was()
def fit_pictures(
    pictures: Sequence[Picture], settings: FitSettings, session: Session, file: Path | None = None
) -> list[Fitted]:
    """A network for each picture, all of one shape; the listener hears the fraction done and the PSNR last seen.

    `file`: a checkpoint to be kept while it lasts, and to go on from where there is one of the same fit.
    """
    fitting = Fitting(pictures, settings, session, file)
    fitting.resume()
    drive(fitting)
    if file is not None:
        file.unlink(missing_ok=True)
    return fitting.fitted


class Fitting(Course):
    """Pictures of one shape on their way to being networks."""

    def __init__(self, pictures: Sequence[Picture], settings: FitSettings, session: Session, file: Path | None = None):
        self.settings, self.session, self.device, self.file = settings, session, session.device, file
        infos = [PictureInfo(p.name, p.width, p.height, p.channels, 8 * p.pixels.dtype.itemsize) for p in pictures]
        info = infos[0]
        for other in infos:
            if replace(other, name=info.name) != info:
                raise KoopsimError(f"{other.name} is not of the size and kind of {info.name}: fit them one by one.")
        pixels = info.width * info.height
        self.batch = min(settings.batch or default_batch(pixels, self.device), pixels)
        usual = default_bandwidth(info, settings.features) if settings.coded else default_bandwidth(info)
        bandwidth = (settings.bandwidth or usual) / info.side
        psi = FourierConfig(settings.features, bandwidth)
        config = SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, hidden=settings.hidden, outputs=info.channels)
        self.steps = settings.steps or (LONGEST_RUN if settings.seconds else USUAL_STEPS)
        torch.set_float32_matmul_precision("highest" if settings.precision == "float32" else "high")
        models = []
        for _ in pictures:
            torch.manual_seed(settings.seed)
            models.append(build(config).to(self.device))
            if settings.coded:
                on_grid(models[-1])
        self.fitted = [Fitted(model, config, info, batch=self.batch) for model, info in zip(models, infos, strict=True)]
        by_steps = settings.seconds is None
        recipe = Recipe(epochs=1, learning_rate=settings.learning_rate, schedule="cosine" if by_steps else "constant")
        short = torch.bfloat16 if settings.precision == "bf16" else None
        self.part = part_of_points(models, self._pixels(pictures, info), recipe, self.steps, short)
        self.rates = self.part.members.schedules[0, :, 0].clone()
        self.began, self.paused, self.spent, self.due = time.perf_counter(), 0.0, 0.0, 0.0
        self.whole = False

    def _pixels(self, pictures: Sequence[Picture], info: PictureInfo) -> Draw:
        """The batches: all pixels every time, or a new random draw; the same places of every picture."""
        flat = [p.pixels.reshape(1, -1, info.channels) for p in pictures]
        kinds = [pixels if info.bits == 8 else pixels.astype(np.int32) for pixels in flat]  # few ops know uint16
        whole = kinds[0] if len(kinds) == 1 else np.concatenate(kinds)  # a large one is not copied
        whole = whole if whole.flags.writeable else whole.copy()  # torch wants to own what it holds
        values, white = torch.as_tensor(whole, device=self.device), pictures[0].white

        def points(rows: Tensor) -> Batch:
            x = torch.stack([rows % info.width, rows // info.width], dim=1).float() / info.side
            return x, values.index_select(1, rows).to(torch.float32) / white

        return drawing(points, values.shape[1], self.batch, self.device)

    # ------------------------------------------------------------ turns

    def turn(self) -> Part | None:
        if self.whole:
            return None
        if self.position == 0:
            self.part.warm_up()
            self.began = time.perf_counter()
        return self.part

    @property
    def elapsed(self) -> float:
        """Seconds of this fit, without the time for pictures of the way."""
        return self.spent + time.perf_counter() - self.began - self.paused

    def done(self, step: int) -> float:
        """The share that is behind us, by steps or by time, whichever is more."""
        by_time = (self.elapsed + self.paused) / self.settings.seconds if self.settings.seconds else 0.0
        return min(1.0, max(step / self.steps, by_time))

    def before(self, steps: Steps, first: int, last: int) -> None:
        """By time: these steps' learning rates follow from how far the clock will have come."""
        if self.settings.seconds is None:
            return
        done = self.done(first)
        ends = min(1.0, done + (done / first * (last - first) if first else 0.0))
        fractions = torch.linspace(done, ends, last - first, device=self.device, dtype=self.rates.dtype)
        self.part.members.schedules[:, first:last, 0] = (
            self.rates[first:last] * (1 + torch.cos(math.pi * fractions)) / 2
        )

    def after(self, steps: Steps, first: int, last: int, seconds: float) -> None:
        members = self.part.members
        losses = members.losses[:, first:last].double().cpu()
        good = losses.isfinite().all(1) & members.flat.isfinite().all(1).cpu()
        if not bool(good.all()):
            name = self.fitted[int((~good).nonzero()[0])].info.name
            raise no_number(name, last, self.settings.learning_rate)
        done, elapsed = self.done(last), self.elapsed
        for fitted, own in zip(self.fitted, losses.mean(1).tolist(), strict=True):
            fitted.curve.append({"step": last, "seconds": elapsed, "psnr": psnr_of(own)})
        mean = float(np.mean([fitted.curve[-1]["psnr"] for fitted in self.fitted]))
        self.session.listen({"event": "fit", "fraction": done, "step": last, "psnr": mean, "seconds": elapsed})
        self._frame_when_due(done, elapsed)
        if done >= 1:
            self.part.feed.epoch_steps = last  # the time is up

    def over(self, steps: Steps) -> None:
        self.whole, seconds = True, self.elapsed
        for row, fitted in enumerate(self.fitted):
            fitted.model = self.part.members.model(row).eval()
            fitted.steps, fitted.seconds = self.part.epoch_steps, seconds

    def _frame_when_due(self, done: float, elapsed: float) -> None:
        if self.settings.frames and ((done >= self.due and self.paused <= FRAME_SHARE * elapsed) or done >= 1):
            mark = time.perf_counter()
            for row, fitted in enumerate(self.fitted):
                fitted.frames.append(_frame(self.part.members.model(row).eval(), fitted.info))
            self.due = done + 1 / FRAMES
            self.paused += time.perf_counter() - mark

    # ------------------------------------------------------------ where it stands

    def _asked(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "pictures": [asdict(fitted.info) for fitted in self.fitted]}

    def save(self) -> None:
        if self.file is None or self.whole:
            return
        far = {"step": self.position, "seconds": self.elapsed, "curves": [fitted.curve for fitted in self.fitted]}
        frames = [np.stack(f.frames) for f in self.fitted if f.frames]
        pictures = {"frames": torch.as_tensor(np.stack(frames))} if frames else {}
        write_checkpoint(self.file, {0: self.part.state() | pictures}, {"fit": self._asked() | far})

    def resume(self) -> None:
        """Go on from the file, where it is of the same pictures and settings; else begin."""
        if self.file is None or not self.file.exists():
            return
        parts, header, rest = read_checkpoint(self.file)
        said, state = header.get("fit"), parts.get(0, {})
        if not isinstance(said, dict) or any(said.get(k) != v for k, v in self._asked().items()):
            return
        frames = state.pop("frames", None)
        self.part.load(state, [0] * len(self.fitted))
        self.position, self.spent = int(said["step"]), float(said["seconds"])
        for row, fitted in enumerate(self.fitted):
            fitted.curve = list(said["curves"][row])
            fitted.frames = [] if frames is None else list(frames[row].numpy())
        self.due = self.done(self.position) + 1 / FRAMES
        restore_random(rest)


def _frame(model: nn.Module, info: PictureInfo) -> NDArray:
    """The picture so far, small, as (height, width, 3) in [0, 1]; what is transparent shows white."""
    scale = min(1.0, FRAME_SIDE / info.side)
    width, height = max(1, round(info.width * scale)), max(1, round(info.height * scale))
    values = draw(model, info, width, height).astype(np.float32) / (2**info.bits - 1)
    colour = values[:, :, : 3 if info.channels > 2 else 1]
    if info.channels in (2, 4):
        alpha = values[:, :, -1:]
        colour = colour * alpha + 1 - alpha
    return np.broadcast_to(colour, (height, width, 3))
