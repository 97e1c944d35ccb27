"""A fitted picture as a folder: the network, what it draws, and how good it is.

    network.safetensors   reconstruction.png   error.png   convergence.gif   result.json

Figures are of what was written: the network is read again from its file. A fit that was stopped goes on when the same
one is asked for again.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from koopsim.config import to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.fitting import FitSettings, Fitted, fit_pictures
from koopsim.nn import count_parameters
from koopsim.picture_network import draw, load_network, save_network
from koopsim.pictures import codec_sizes, psnr, read_picture, save_png
from koopsim.pictures.figures import error_map, save_animation
from koopsim.pictures.png import write_png
from koopsim.runs import environment, write_json
from koopsim.training import Session

FILES = ("network.safetensors", "reconstruction.png", "error.png", "convergence.gif", "result.json")
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Keeping:
    """How a fit is kept: in half precision or not, over an older one or not."""

    half: bool = False
    overwrite: bool = False


PLAINLY = Keeping()


def fit_file(
    path: Path, folder: Path, settings: FitSettings, session: Session, kept: Keeping = PLAINLY
) -> dict[str, Any]:
    """Fit the picture in a file and leave all that came of it in `folder`; the result."""
    with folders.held(folder):
        if (folder / "result.json").exists() and not kept.overwrite:
            raise KoopsimError(f"{folder} already holds a result; add --overwrite to fit again, or give another --out.")
        folders.claim(folder, "fit", (*FILES, CHECKPOINT), kept.overwrite)
        picture = read_picture(path)
        fitted = fit_pictures([picture], settings, session, folder / CHECKPOINT)[0]
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        return _written(path, picture.pixels, folder, fitted, settings, session, kept.half)


def _written(
    path: Path, pixels: Any, folder: Path, fitted: Fitted, settings: FitSettings, session: Session, half: bool
) -> dict[str, Any]:
    size = save_network(folder / "network.safetensors", fitted.model, fitted.config, fitted.info, half)
    model, info = load_network(folder / "network.safetensors", session.device)
    session.listen({"event": "drawing", "name": info.name, "width": info.width, "height": info.height})
    drawn = draw(model, info, info.width, info.height)
    write_png(folder / "reconstruction.png", info.width, info.height, info.channels, info.bits, [drawn])
    save_png(folder / "error.png", error_map(pixels, drawn))
    if fitted.frames:
        save_animation(fitted.frames, folder / "convergence.gif")
    reached = psnr(pixels, drawn)
    codecs, area = codec_sizes(pixels, reached), info.width * info.height
    measured = asdict(codecs)
    measured["jpeg_psnr"] = None if codecs.jpeg_psnr is None else _figure(codecs.jpeg_psnr)
    result = {
        "picture": str(path), **asdict(info), "psnr": _figure(reached), "exact": math.isinf(reached),
        "parameters": count_parameters(model),
        "network_bytes": size, "network_bits_per_pixel": 8 * size / area, "weights": "float16" if half else "float32",
        "png_bits_per_pixel": 8 * codecs.png_bytes / area,
        "jpeg_bits_per_pixel": None if codecs.jpeg_bytes is None else 8 * codecs.jpeg_bytes / area,
        **measured, "steps": fitted.steps, "seconds": fitted.seconds, "batch": fitted.batch,
        "model": to_dict(fitted.config), "settings": asdict(settings), "device": str(session.device),
        "curve": [{key: _figure(value) for key, value in line.items()} for line in fitted.curve],
        "files": [name for name in FILES if name == "result.json" or (folder / name).exists()],
        "environment": environment(),
    }  # fmt: skip
    write_json(folder / "result.json", result)
    return result


def _figure(value: float) -> float | None:
    """Infinitely many decibels, where nothing differs, are no number in JSON."""
    return value if math.isfinite(value) else None
