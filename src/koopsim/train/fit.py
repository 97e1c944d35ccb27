"""One picture, one network: the RFF-only model fitted to all pixels of a picture of any size.

    z = nu( U V psi(x) ),    psi as narrow as a few pixels,    Adam with a cosine to the end of the steps or the time

A picture of few pixels is one full batch; a large one is seen in random batches of pixels, so that memory does not
grow with it. The pixels stay as they are in the file (uint8 or uint16) and become numbers a batch at a time.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from koopsim.config import FourierConfig, IdentityConfig, Recipe, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.nn.folded import folded
from koopsim.pictures import Picture
from koopsim.tasks.image_regression import psnr_of
from koopsim.train.network_file import PictureInfo, draw
from koopsim.train.population import Population
from koopsim.train.schedule import adam_table

CHUNK_SECONDS = 0.25
FRAMES, FRAME_SIDE, FRAME_SHARE = 24, 144, 0.1  # how many, how large, and how much of the time they may take
LONGEST_RUN = 200_000  # steps a schedule has room for where only the time is limited


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

    def __post_init__(self) -> None:
        if self.features < 2 or self.features % 2:
            raise KoopsimError(f"The number of features is {self.features}; it must be even and at least 2.")
        for name in ("hidden", "learning_rate", "bandwidth", "steps", "seconds", "batch"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise KoopsimError(f"{name} is {value}; it must be positive.")


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


def default_bandwidth(info: PictureInfo) -> float:
    """In pixels. A few hundred frequencies are spread over the picture: a large one gets them no denser."""
    return max(5.0, info.side / 100)


def default_batch(pixels: int, device: torch.device) -> int:
    """Pixels a step: all of them where that is quick."""
    most = 262_144 if device.type == "cuda" else 4_096
    return min(pixels, most)


def fit(
    picture: Picture,
    settings: FitSettings = DEFAULTS,
    device: torch.device | str = "cpu",
    listen: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Fitted:
    """Fit a network to a picture; `listen` hears the fraction done and the PSNR of the pixels last seen."""
    device = torch.device(device)
    bits = 8 * picture.pixels.dtype.itemsize
    info = PictureInfo(picture.name, picture.width, picture.height, picture.channels, bits)
    pixels = picture.width * picture.height
    batch = min(settings.batch or default_batch(pixels, device), pixels)
    bandwidth = (settings.bandwidth or default_bandwidth(info)) / info.side
    psi = FourierConfig(settings.features, bandwidth)
    config = SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, hidden=settings.hidden, outputs=info.channels)
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("highest" if settings.precision == "float32" else "high")
    model = build(config).to(device)
    steps = settings.steps or (LONGEST_RUN if settings.seconds else 1000)
    recipe = Recipe(epochs=steps, learning_rate=settings.learning_rate)
    table = torch.as_tensor(adam_table(recipe, 1), dtype=torch.float32, device=device)
    dtype = torch.bfloat16 if settings.precision == "bf16" else None
    population = Population(
        [model],
        lambda model, x, y: (folded(model, x, dtype=dtype) - y).square().mean(),
        _pixels(picture, info, batch, device),
        table.unsqueeze(0).clone(),
        shared=(True, True),
        capture=device.type == "cuda",
    )
    population.warm_up()
    return _run(population, Fitted(model, config, info, batch=batch), settings, steps, table[:, 0], listen)


def _pixels(picture: Picture, info: PictureInfo, batch: int, device: torch.device) -> Callable[[Tensor], Any]:
    """The batches: all pixels every time, or a new random draw."""
    flat = picture.pixels.reshape(-1, info.channels)
    flat = flat if flat.flags.writeable else flat.copy()  # torch wants to own what it holds
    values = torch.as_tensor(flat if info.bits == 8 else flat.astype(np.int32), device=device)  # few ops know uint16

    def points(rows: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([rows % info.width, rows // info.width], dim=1).float() / info.side
        return x, values.index_select(0, rows).to(torch.float32) / picture.white

    if batch == len(values):
        whole = points(torch.arange(batch, device=device))
        return lambda steps: whole
    return lambda steps: points(torch.randint(len(values), (batch,), device=device))


def _run(
    population: Population,
    fitted: Fitted,
    settings: FitSettings,
    steps: int,
    rates: Tensor,
    listen: Callable[[dict[str, Any]], None],
) -> Fitted:
    """Steps in chunks the host can follow; each chunk's learning rates follow from how far steps and time have come."""
    began, paused, step, chunk = time.perf_counter(), 0.0, 0, 1
    done, due = 0.0, 0.0
    while step < steps and done < 1:
        chunk = min(chunk, steps - step)
        ends = min(1.0, done + (done / step * chunk if step else 0.0))  # where this chunk will have come to
        if settings.seconds is None:  # by steps alone, whatever the chunks: the same seed, the same bits
            fractions = torch.arange(step, step + chunk, device=rates.device, dtype=torch.float64) / steps
        else:
            fractions = torch.linspace(done, ends, chunk, device=rates.device)
        factors = (1 + torch.cos(math.pi * fractions)) / 2
        population.schedules[0, step : step + chunk, 0] = rates[step : step + chunk] * factors.to(rates.dtype)
        mark = time.perf_counter()
        population.run(chunk)
        losses = population.losses[0, step : step + chunk].double().cpu()  # waits for the device
        spent = time.perf_counter() - mark
        step += chunk
        if not bool(losses.isfinite().all() & population.stack.flat.isfinite().all().cpu()):
            raise KoopsimError(
                f"The loss of {fitted.info.name} is not a number at step {step} with learning rate "
                f"{settings.learning_rate:g}; try a smaller --learning-rate."
            )
        elapsed = time.perf_counter() - began - paused
        done = max(step / steps, (time.perf_counter() - began) / settings.seconds if settings.seconds else 0.0)
        psnr = psnr_of(float(losses.mean()))
        fitted.curve.append({"step": step, "seconds": elapsed, "psnr": psnr})
        listen({"fraction": min(done, 1.0), "step": step, "psnr": psnr, "seconds": elapsed})
        if settings.frames and ((done >= due and paused <= FRAME_SHARE * elapsed) or done >= 1 or step == steps):
            mark = time.perf_counter()
            fitted.frames.append(_frame(population, fitted))
            due = done + 1 / FRAMES
            paused += time.perf_counter() - mark
        chunk = max(1, min(2 * chunk, round(chunk * CHUNK_SECONDS / max(spent, 1e-6))))
    _take(population, fitted.model)
    fitted.steps, fitted.seconds = step, time.perf_counter() - began - paused
    return fitted


def _take(population: Population, model: nn.Module) -> None:
    model.load_state_dict(population.stack.member(0))
    model.eval()


def _frame(population: Population, fitted: Fitted) -> NDArray:
    """The picture so far, small, as (height, width, 3) in [0, 1]; what is transparent shows white."""
    _take(population, fitted.model)
    info = fitted.info
    scale = min(1.0, FRAME_SIDE / info.side)
    width, height = max(1, round(info.width * scale)), max(1, round(info.height * scale))
    values = draw(fitted.model, info, width, height).astype(np.float32) / (2**info.bits - 1)
    colour = values[:, :, : 3 if info.channels > 2 else 1]
    if info.channels in (2, 4):
        alpha = values[:, :, -1:]
        colour = colour * alpha + 1 - alpha
    return np.broadcast_to(colour, (height, width, 3))
