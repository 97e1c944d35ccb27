"""Sounds and shapes as networks: the RFF-only SIM fitted to samples on a grid of one to three dimensions.

    t -> amplitudes,    (x, y, z) -> occupancy:    z = nu( U V psi(x) )                paper, section 3.5

As with pictures (fitting.py), but for the coordinates; beside it, fitted alike, the network of Tancik et al. The
bandwidth comes from the signal: of the Gaussian that its frequencies are drawn from, the deviation is that of the
signal's own spectrum, sigma^2 = mean over axes of sum |F|^2 f^2 / sum |F|^2, and b = 1 / (2 pi sigma).
"""

from __future__ import annotations

import copy
import io
import math
import struct
import time
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from koopsim.config import FourierConfig, FourierNetworkConfig, IdentityConfig, ModelConfig, Recipe, SIMConfig, to_dict
from koopsim.engine.part import Part
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.arrays import read_npy
from koopsim.files.opened import MEBI, read_bytes
from koopsim.files.tensors import write_tensors
from koopsim.files.writing import write_atomically
from koopsim.fitting import FitSettings
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.nn.folded import folded
from koopsim.points import Batch, Draw, default_batch, drawing, no_number, part_of_points
from koopsim.runs import environment, write_json
from koopsim.tasks.image_regression import psnr_of
from koopsim.training import Session

SOUNDS, ARRAYS = (".wav",), (".npy",)
MOST_SOUND = 4096 * MEBI
WAV_ERRORS = (ValueError, OSError, EOFError, KeyError, TypeError, ArithmeticError, struct.error, UnboundLocalError)
HEADER = "koopsim.signal"
LARGEST = float(np.finfo(np.float32).max)  # a reconstruction is written in float32
PIECE = 65_536  # points that are drawn at once
TRIED, SOME = 20, 50  # steps whose pace is measured, steps between two reports


@dataclass(frozen=True)
class Signal:
    """Samples on a grid, (n_1, ..., n_d, channels) in [0, 1]; `low` and `high` are what 0 and 1 were."""

    name: str
    values: NDArray[np.float32]
    low: float
    high: float
    rate: int | None = None  # of a sound, samples a second

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape[:-1]


@dataclass(frozen=True)
class SignalSettings:
    """How a signal is fitted; a bandwidth of None comes from its spectrum, in samples otherwise."""

    features: int = 256  # M
    hidden: int = 128  # H
    bandwidth: float | None = None
    learning_rate: float = 3e-3  # of both networks
    steps: int | None = None  # 2,000 where no time is given either
    seconds: float | None = None
    batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        of_a_picture = {field.name: getattr(self, field.name) for field in fields(self)}
        FitSettings(**of_a_picture)  # what cannot be of a picture's fit cannot be here


def is_signal(path: Path) -> bool:
    """Whether `koopsim fit` takes a file for a sound or a shape."""
    return path.suffix.lower() in (*SOUNDS, *ARRAYS)


def read_signal(path: Path) -> Signal:
    """A .wav of any number of channels, or a .npy of one to three dimensions."""
    sound = path.suffix.lower() in SOUNDS
    rate, samples = _sound(path) if sound else (None, _grid(path))
    samples = samples.astype(np.float64)
    if samples.size == 0 or min(samples.shape[:-1]) < 2:
        raise KoopsimError(f"{path} has samples of shape {samples.shape[:-1]}; expected at least 2 along each axis.")
    if not np.isfinite(samples).all():
        raise KoopsimError(f"{path} has values that are no numbers; fill or cut them first.")
    low, high = float(samples.min()), float(samples.max())
    if max(-low, high) > LARGEST:
        raise KoopsimError(f"{path} goes from {low:g} to {high:g}; single precision ends at {LARGEST:.1e}: scale it.")
    if low == high:
        raise KoopsimError(f"{path} is {low:g} everywhere; there is nothing to fit.")
    return Signal(path.stem, ((samples - low) / (high - low)).astype(np.float32), low, high, rate)


def _sound(path: Path) -> tuple[int, NDArray]:
    """Samples a second, and the samples, (n, channels)."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks of somebody's own
            rate, samples = wavfile.read(io.BytesIO(read_bytes(path, MOST_SOUND, ".wav")))
    except WAV_ERRORS as error:
        raise KoopsimError(f"{path} is not a whole .wav file: {str(error).splitlines()[0]}.") from error
    if not samples.size:
        raise KoopsimError(f"{path} is a sound of no samples; there is nothing to fit.")
    return rate, samples.reshape(len(samples), -1)


def _grid(path: Path) -> NDArray:
    """Numbers on a grid, with an axis of one channel."""
    samples = read_npy(path)
    if samples.ndim not in (1, 2, 3) or samples.dtype.kind not in "biuf":
        raise KoopsimError(
            f"{path} has {samples.dtype} of shape {samples.shape}; expected real numbers on a grid of one to three "
            "dimensions, such as the occupancy of a shape."
        )
    return samples[..., None]


def spectral_bandwidth(signal: Signal) -> float:
    """b in units of the longest side: as wide as the Gaussian whose spectrum is as wide as the signal's."""
    axes = tuple(range(len(signal.shape)))
    values = signal.values.astype(np.float64) - signal.values.mean(axis=axes, dtype=np.float64)
    power = (np.abs(np.fft.fftn(values, axes=axes)) ** 2).sum(-1)
    squares = []
    for axis, n in enumerate(signal.shape):
        f = np.fft.fftfreq(n) * max(signal.shape)  # cycles a unit of the coordinates
        others = tuple(a for a in axes if a != axis)
        along = power.sum(axis=others)
        squares.append((along * f**2).sum() / along.sum())
    return 1 / (2 * math.pi * math.sqrt(np.mean(squares)))


def networks(signal: Signal, settings: SignalSettings) -> dict[str, ModelConfig]:
    """The SIM, and the network of Tancik et al. with the same features and widths."""
    d, side = len(signal.shape), max(signal.shape)
    b = spectral_bandwidth(signal) if settings.bandwidth is None else settings.bandwidth / side
    outputs, psi = signal.values.shape[-1], FourierConfig(settings.features, b)
    sim = SIMConfig(IdentityConfig(d), lift_dim=d, fourier=psi, hidden=settings.hidden, outputs=outputs, start="even")
    sigma = 1 / (2 * math.pi * b)
    return {"sim-rff": sim, "tancik": FourierNetworkConfig(d, settings.features, sigma, settings.hidden, 3, outputs)}


def fit_signal(
    signal: Signal, config: ModelConfig, settings: SignalSettings, session: Session
) -> tuple[nn.Module, dict[str, Any]]:
    """A network that is this signal, and how it came about."""
    torch.manual_seed(settings.seed)
    model = build(config).to(session.device)
    draw, batch = _drawing(signal, settings, session.device)
    steps = settings.steps or 2000
    if settings.seconds is not None:
        steps = min(steps if settings.steps else 10**6, _affordable(model, draw, settings))
    part = _part(model, draw, settings, steps)
    part.warm_up()
    began, curve = time.perf_counter(), []
    part.begin_epoch()
    for first in range(0, steps, SOME):
        last = min(first + SOME, steps)
        part.advance(first, last)
        loss = float(part.members.losses[0, first:last].double().mean())
        if not math.isfinite(loss):
            raise no_number(signal.name, last, settings.learning_rate)
        curve.append({"step": last, "seconds": time.perf_counter() - began, "psnr": psnr_of(loss)})
        session.listen({"event": "fit", "fraction": last / steps, **curve[-1]})
    part.finish_epoch()
    model = part.members.model(0).eval()
    error = float(np.square(sampled(model, signal.shape) - signal.values, dtype=np.float64).mean())
    seconds = time.perf_counter() - began
    found = {"psnr": psnr_of(error), "parameters": count_parameters(model), "steps": steps, "seconds": seconds}
    return model, found | {"batch": batch, "model": to_dict(config), "curve": curve}


def _part(model: nn.Module, draw: Draw, settings: SignalSettings, steps: int) -> Part:
    recipe = Recipe(epochs=1, learning_rate=settings.learning_rate, schedule="cosine")
    return part_of_points([model], draw, recipe, steps)


def _affordable(model: nn.Module, draw: Any, settings: SignalSettings) -> int:
    """How many steps the given seconds buy, by the pace of a few on a copy."""
    torch.manual_seed(settings.seed)
    tried = _part(copy.deepcopy(model), draw, settings, TRIED)
    tried.warm_up()
    tried.begin_epoch()
    tried.advance(0, 2)
    float(tried.members.losses[0, 1])  # waits for the device
    began = time.perf_counter()
    tried.advance(2, TRIED)
    float(tried.members.losses[0, TRIED - 1])
    pace = (time.perf_counter() - began) / (TRIED - 2)
    torch.manual_seed(settings.seed)
    assert settings.seconds is not None
    return max(1, int(settings.seconds / pace))


def _drawing(signal: Signal, settings: SignalSettings, device: torch.device) -> tuple[Draw, int]:
    """Batches of samples, and how many there are in one."""
    values = torch.as_tensor(signal.values.reshape(-1, signal.values.shape[-1]), device=device)
    batch = min(settings.batch or default_batch(len(values), device), len(values))

    def points(rows: Tensor) -> Batch:
        return places_of(rows, signal.shape), values.index_select(0, rows).unsqueeze(0)

    return drawing(points, len(values), batch, device), batch


def places_of(rows: Tensor, shape: tuple[int, ...], side: int | None = None) -> Tensor:
    """Places of samples by their number, (n, d), the longest side being [0, 1)."""
    axes = torch.unravel_index(rows, shape)
    return torch.stack([axis.float() for axis in axes], dim=1) / (side or max(shape))


@torch.no_grad()
def sampled(model: nn.Module, shape: tuple[int, ...], finer: int = 1) -> NDArray[np.float32]:
    """The signal as the network has it on a grid of this shape, `finer` times as many samples along each axis."""
    grid = tuple(n * finer for n in shape)
    device = next(model.parameters()).device
    rows = torch.arange(math.prod(grid), device=device)
    side = max(grid)
    parts = [folded(model, places_of(piece, grid, side)).float().cpu() for piece in rows.split(PIECE)]
    return torch.cat(parts).reshape(*grid, -1).numpy()


def fit_signal_file(
    path: Path, folder: Path, settings: SignalSettings, session: Session, overwrite: bool = False
) -> dict[str, Any]:
    """Fit the signal in a file and leave network, reconstruction and result in `folder`; the result."""
    signal = read_signal(path)
    made = f"reconstruction{path.suffix.lower()}"
    files = ("network.safetensors", made, "result.json")
    with folders.held(folder):
        folders.claim(folder, "fit", files, overwrite)
        found: dict[str, Any] = {}
        for name, config in networks(signal, settings).items():
            model, found[name] = fit_signal(signal, config, settings, session)
            if name == "sim-rff":
                tensors = {key: t.detach().cpu().contiguous() for key, t in model.state_dict().items()}
                info = {"name": signal.name, "shape": list(signal.shape), "low": signal.low, "high": signal.high}
                header = {"model": to_dict(config), "signal": info | {"rate": signal.rate}}
                size = write_tensors(folder / files[0], tensors, {HEADER: header})
                _write(folder / made, signal, sampled(model, signal.shape))
        result = {
            "signal": str(path), "shape": list(signal.shape), "channels": int(signal.values.shape[-1]),
            "rate": signal.rate, "network_bytes": size, "file_bytes": path.stat().st_size, **found,
            "settings": asdict(settings), "device": str(session.device), "files": list(files),
            "environment": environment(),
        }  # fmt: skip
        write_json(folder / "result.json", result)
    return result


def _write(path: Path, signal: Signal, values: NDArray[np.float32]) -> None:
    """The reconstruction in the signal's own units, a .wav of floats or a .npy."""
    own = (signal.low + (signal.high - signal.low) * values.astype(np.float64)).astype(np.float32)
    data = io.BytesIO()
    if signal.rate is None:
        np.save(data, own[..., 0], allow_pickle=False)
    else:
        from scipy.io import wavfile

        loudest = max(abs(signal.low), abs(signal.high))  # floats of a .wav are in [-1, 1]
        wavfile.write(data, signal.rate, own / loudest)
    write_atomically(path, data.getvalue())
