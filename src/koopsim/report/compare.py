"""Pictures of image regression beside the truth, small enough to stand inside the page.

Pixels are the test pixels, [1::2, 1::2], which no model was trained or chosen on: a picture of half the size. They are
drawn from a run's weights, or taken from PNGs that were kept beside a result as images/SET-PICTURE-MODEL.png. The truth
comes from the set of pictures, or from images/SET-PICTURE-truth.png where the set does not travel with the results.
"""

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from koopsim.config import ImageRegressionConfig, Run, from_dict
from koopsim.errors import KoopsimError
from koopsim.pictures import PictureSet, picture_set
from koopsim.report.kinds import Result
from koopsim.report.names import kind_of, title_of
from koopsim.report.pictures import image_runs
from koopsim.tasks.image_regression import pictures_of

PICTURES = 3  # of a set
SMALL = 256  # pictures up to this wide are shown whole
BYTES = 1_400_000  # for all pictures of a page, as data URIs
SECONDS = 8.0  # of this process, for drawing

Pixels = NDArray[np.float32]  # (height, width, 3) in [0, 1]
Truths = dict[ImageRegressionConfig, PictureSet]


@dataclass
class SideBySide:
    """A picture, and what each model made of it, with its PSNR where it is known."""

    pictures: str
    name: str
    truth: Pixels
    models: dict[str, tuple[Pixels, float | None]] = field(default_factory=dict)


def comparisons(results: Sequence[Result]) -> tuple[list[SideBySide], list[str]]:
    """(pictures with at least one model's drawing, what was left out and why)."""
    found: dict[tuple[str, str], SideBySide] = {}
    truths: Truths = {}
    left_out, began = [], time.process_time()
    for result in image_runs(results):
        try:
            if time.process_time() - began > SECONDS:
                raise KoopsimError(f"the {SECONDS:.0f} seconds for drawing were over")
            _add(result, found, truths)
        except (KoopsimError, OSError, ValueError, TypeError, OverflowError) as error:
            left_out.append(f"{result['path']}: no pictures, {' '.join(str(error).split())}")
    return [c for c in found.values() if c.models], left_out


def _add(result: Result, found: dict[tuple[str, str], SideBySide], truths: Truths) -> None:
    """Put what a run drew beside the truth; sets of pictures that were read are kept in `truths`."""
    path = Path(result["path"])
    weights = path.name == "result.json" and (path.parent / "checkpoint.safetensors").exists()
    names = [str(name) for name in result.get("pictures", [])]
    kept = {
        name: path.parent / "images" / f"{_plain_set(result)}-{name}-{kind_of(result['name'])}.png" for name in names
    }
    kept = {name: file for name, file in kept.items() if file.exists()}
    if not weights and not kept:
        return  # a result without weights or drawings is a number, and no fault
    run = from_dict(Run, result["run"], str(path))
    assert isinstance(run.task, ImageRegressionConfig)  # `image_runs` has looked
    drawn = {name: _pixels(file) for name, file in kept.items()} if kept else _drawn(path.parent, run, names)
    for name, values in list(drawn.items())[:PICTURES]:
        key = (pictures_of(result), name)
        if key not in found:
            found[key] = SideBySide(*key, shown_pixels(_truth(kept.get(name), name, run.task, truths)))
        psnr = result["test"].get(f"psnr/{name}")
        found[key].models[title_of(result["name"])] = (shown_pixels(values) if kept else values, psnr)


def _truth(kept: Path | None, name: str, task: ImageRegressionConfig, truths: Truths) -> Pixels:
    """The picture itself: images/SET-PICTURE-truth.png where it was kept beside a drawing, else from its set."""
    file = kept and kept.with_name(f"{kept.stem.split(f'-{name}-')[0]}-{name}-truth.png")
    if file and file.exists():
        return _pixels(file)
    if task not in truths:
        truths[task] = picture_set(task.pictures, task.size, task.count, task.seed)
    return truths[task].values[truths[task].names.index(name)]


def _plain_set(result: Result) -> str:
    return str(result.get("set") or Path(result["run"]["task"]["pictures"]).name)


def _pixels(file: Path) -> Pixels:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float32) / np.float32(255)


def _drawn(folder: Path, run: Run, names: Sequence[str]) -> dict[str, Pixels]:
    """The first pictures from the weights of a run, at the pixels that are shown."""
    import torch

    from koopsim.tasks.image_regression import coordinates, full_precision
    from koopsim.training import load_run

    assert isinstance(run.task, ImageRegressionConfig)
    models, size = load_run(folder), run.task.size
    grid = shown_pixels(coordinates(size, size).reshape(size, size, 2).numpy())
    x = torch.from_numpy(np.ascontiguousarray(grid)).reshape(-1, 2)
    found = {}
    with torch.no_grad(), full_precision():
        for name, model in list(zip(names, models, strict=False))[:PICTURES]:  # pyright: ignore
            rows = [model(part.to(next(model.parameters()).dtype)).float() for part in x.split(16_384)]
            found[name] = torch.cat(rows).reshape(*grid.shape[:2], -1).numpy()
    return found


@dataclass(frozen=True)
class DrawnModel:
    """A model's drawing inside the page."""

    title: str
    shown: str  # the title with its PSNR
    drawing: str  # a data URI


@dataclass(frozen=True)
class Slider:
    """A comparison inside the page: the truth, and the models, the best one first."""

    name: str
    truth: str  # a data URI
    models: Sequence[DrawnModel]


def sliders(comparisons: Sequence[SideBySide]) -> tuple[list[Slider], int]:
    """(the pictures that there is room for, how many there was none for)."""
    found, room = [], BYTES
    for comparison in comparisons:
        slider = _slider(comparison)
        room -= len(slider.truth) + sum(len(model.drawing) for model in slider.models)
        if room < 0:
            break
        found.append(slider)
    return found, len(comparisons) - len(found)


def _slider(comparison: SideBySide) -> Slider:
    models = []
    for title, (values, psnr) in sorted(comparison.models.items(), key=lambda m: -(m[1][1] or 0)):
        shown = f"{title}, {psnr:.1f} dB" if isinstance(psnr, (int, float)) else title
        models.append(DrawnModel(title, shown, data_uri(values)))
    return Slider(f"{comparison.pictures}: {comparison.name}", data_uri(comparison.truth), models)


def shown_pixels(values: NDArray) -> NDArray:
    """The test pixels of a picture; of a small one, all."""
    return values if values.shape[0] <= SMALL else values[1::2, 1::2]


def data_uri(values: Pixels) -> str:
    """A picture inside the page: PNG where that is small, else a JPEG of high quality."""
    image = Image.fromarray(np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8))
    files = {}
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 92, "subsampling": 0})):
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        files[kind] = buffer.getvalue()
    kind = "png" if len(files["png"]) <= 1.5 * len(files["jpeg"]) else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(files[kind]).decode()}"
