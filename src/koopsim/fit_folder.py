"""A fitted picture as a folder: the network, what it draws, and how good it is.

    network.safetensors (or network.ksp)   reconstruction.png   error.png   convergence.gif   result.json

Figures are of what was written: the network is read again from its file. A fit that was stopped goes on when the same
one is asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from koopsim.config import to_dict
from koopsim.engine.memory import fitting_groups
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.fitting import DEFAULTS, FitSettings, Fitted, fit_pictures
from koopsim.nn import SIM, count_parameters
from koopsim.picture_codec import size_for
from koopsim.picture_network import CODED, NETWORK, draw, load_network, save_coded, save_network
from koopsim.pictures import codec_sizes, jpeg_within, psnr, read_picture, save_png
from koopsim.pictures.figures import error_map, save_animation
from koopsim.pictures.png import write_png
from koopsim.points import default_batch
from koopsim.runs import environment, write_json
from koopsim.training import Session

FILES = (NETWORK, CODED, "reconstruction.png", "error.png", "convergence.gif", "result.json")
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Keeping:
    """How a fit is kept.

    weights   float32, float16, or int8, which is entropy-coded;   budget: at most so many bytes, int8 or coarser
    """

    weights: Literal["float32", "float16", "int8"] = "float32"
    budget: int | None = None
    overwrite: bool = False

    @property
    def coded(self) -> bool:
        return self.weights == "int8" or self.budget is not None


PLAINLY = Keeping()


def fit_files(
    paths: Sequence[Path], into: Sequence[Path], settings: FitSettings, session: Session, kept: Keeping = PLAINLY
) -> list[dict[str, Any]]:
    """Fit pictures of one size and kind, all at once, and leave all that came of each in its folder; their results.

    They are one part of the engine with a member a picture, and share a checkpoint in the first one's folder.
    """
    with ExitStack() as held:
        for folder in into:
            held.enter_context(folders.held(folder))
            if (folder / "result.json").exists() and not kept.overwrite:
                raise KoopsimError(
                    f"{folder} already holds a result; add --overwrite to fit again, or give another --out."
                )
            folders.claim(folder, "fit", (*FILES, CHECKPOINT), kept.overwrite)
        pictures = [read_picture(path) for path in paths]
        settings = sized(settings, kept, pictures[0].channels)
        fitted = fit_pictures(pictures, settings, session, into[0] / CHECKPOINT)
        results = []
        for path, picture, folder, own in zip(paths, pictures, into, fitted, strict=True):
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            about = {"picture": str(path), "settings": asdict(settings)}
            results.append(_written(picture.pixels, folder, own, session, about, kept))
        return results


def sized(settings: FitSettings, kept: Keeping, channels: int) -> FitSettings:
    """The settings of a network that fits the budget, where there is one and the size was left open."""
    if not kept.coded:
        return settings
    if kept.budget is None or (settings.features, settings.hidden) != (DEFAULTS.features, DEFAULTS.hidden):
        return replace(settings, coded=True)
    features, hidden = size_for(kept.budget, channels)
    return replace(settings, features=features, hidden=hidden, coded=True)


def stacks(paths: Sequence[Path], device: torch.device, settings: FitSettings) -> list[list[int]]:
    """Which pictures are fitted together: those of one size and kind, as many as memory allows."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, path in enumerate(paths):  # a bad one is said before the first is fitted
        pixels = read_picture(path).pixels
        alike.setdefault((pixels.shape, pixels.dtype), []).append(number)
    found = []
    for (shape, _), numbers in alike.items():
        batch = settings.batch or default_batch(shape[0] * shape[1], device)
        each = 8 * shape[0] * shape[1] * shape[2] + 4 * batch * (3 * settings.features + 8 * settings.hidden)
        found += [[numbers[i] for i in group] for group in fitting_groups(len(numbers), each, device)]
    return found


def _written(
    pixels: Any, folder: Path, fitted: Fitted, session: Session, about: dict[str, Any], kept: Keeping
) -> dict[str, Any]:
    """The files of a fit, and its result, which says what it is `about` too."""
    file = folder / (CODED if kept.coded else NETWORK)
    if kept.coded:
        size = save_coded(file, cast(SIM, fitted.model), fitted.config, fitted.info, kept.budget)
    else:
        size = save_network(file, fitted.model, fitted.config, fitted.info, kept.weights == "float16")
    model, info = load_network(file, session.device)
    session.listen({"event": "drawing", "name": info.name, "width": info.width, "height": info.height})
    drawn = draw(model, info, info.width, info.height)
    write_png(folder / "reconstruction.png", info.width, info.height, info.channels, info.bits, [drawn])
    save_png(folder / "error.png", error_map(pixels, drawn))
    if fitted.frames:
        save_animation(fitted.frames, folder / "convergence.gif")
    reached = psnr(pixels, drawn)
    codecs, area = codec_sizes(pixels, reached), info.width * info.height
    small = jpeg_within(pixels, size)
    equal = None if small is None else asdict(small) | {"psnr": _figure(small.psnr)}
    measured = asdict(codecs) | {"jpeg_at_equal_bytes": equal}
    measured["jpeg_psnr"] = None if codecs.jpeg_psnr is None else _figure(codecs.jpeg_psnr)
    result = {
        **about, **asdict(info), "psnr": _figure(reached), "exact": math.isinf(reached),
        "parameters": count_parameters(fitted.model), "budget": kept.budget,
        "network_bytes": size, "network_bits_per_pixel": 8 * size / area,
        "weights": kept.weights if kept.budget is None else "coded",
        "png_bits_per_pixel": 8 * codecs.png_bytes / area,
        "jpeg_bits_per_pixel": None if codecs.jpeg_bytes is None else 8 * codecs.jpeg_bytes / area,
        **measured, "steps": fitted.steps, "seconds": fitted.seconds, "batch": fitted.batch,
        "model": to_dict(fitted.config), "device": str(session.device),
        "curve": [{key: _figure(value) for key, value in line.items()} for line in fitted.curve],
        "files": [name for name in FILES if name == "result.json" or (folder / name).exists()],
        "environment": environment(),
    }  # fmt: skip
    write_json(folder / "result.json", result)
    return result


def _figure(value: float) -> float | None:
    """Infinitely many decibels, where nothing differs, are no number in JSON."""
    return value if math.isfinite(value) else None
