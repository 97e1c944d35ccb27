"""koopsim fit: a small network that is your picture, and how good it is."""

import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import json_text

FILES = ("network.safetensors", "reconstruction.png", "error.png", "convergence.gif", "result.json")
USUAL_SECONDS = 40.0
MANY_PIXELS = 4_000_000  # drawing so many takes long enough to say so


@dataclass(frozen=True)
class Arguments:
    """Fit a network to each picture: any size, grey or colour, with or without alpha, 8 or 16 bits."""

    pictures: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Picture files: PNG, JPEG, WebP, TIFF and the like."""
    out: Path = Path("fits")
    """Where the results go: a folder for each picture, by its name."""
    seconds: float | None = None
    """Stop after this long for each picture; 40 unless --steps is given."""
    steps: int | None = None
    """Stop after so many steps."""
    features: int = 256
    """M: how many Fourier features."""
    hidden: int = 128
    """H: the width of the readout. Features and width decide the network's size."""
    bandwidth: float | None = None
    """The length scale of the features in pixels; small is sharp. By default from the picture's size."""
    learning_rate: float = 1e-2
    """Of Adam at the start; it falls to zero along a cosine."""
    batch: int | None = None
    """Pixels a step; by default all of a small picture, a random draw of a large one."""
    float16: bool = False
    """Write the network in half precision: half the bytes, and the figures are of what was written."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of the matrix products while training."""
    animation: bool = True
    """Also write convergence.gif."""
    seed: int = 0
    """Of the random features and weights."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    overwrite: bool = False
    """Fit again where there is a result already."""
    json: bool = False
    """Print the results as a list in JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "fit")
    if not arguments.pictures:
        raise KoopsimError("Name at least one picture: koopsim fit photo.jpg.")
    from koopsim.pictures import read_picture
    from koopsim.train import pick_device
    from koopsim.train.fit import FitSettings

    device = pick_device(arguments.device)
    seconds = USUAL_SECONDS if arguments.steps is None and arguments.seconds is None else arguments.seconds
    settings = FitSettings(
        arguments.features, arguments.hidden, arguments.bandwidth, arguments.learning_rate, arguments.steps, seconds,
        arguments.batch, arguments.seed, arguments.precision, arguments.animation,
    )  # fmt: skip
    wanted = _folders(arguments)
    for path in arguments.pictures:  # a bad one is said before the first is fitted
        read_picture(path)
    results = []
    for path, folder in zip(arguments.pictures, wanted, strict=True):
        with folders.held(folder):
            folders.claim(folder, "fit", FILES, arguments.overwrite)
            results.append(_fit(path, folder, settings, arguments.float16, device))
        if not arguments.json:
            _show(results[-1], folder)
    if arguments.json:
        print(json_text(results))
    return 0


def _folders(arguments: Arguments) -> list[Path]:
    """A folder for each picture; two pictures of one name get different ones."""
    seen: dict[str, int] = {}
    found = []
    for path in arguments.pictures:
        seen[path.stem] = seen.get(path.stem, 0) + 1
        number = seen[path.stem]
        name = folders.plain_name(path.stem, f"The picture {path}")
        folder = folders.inside(arguments.out, name if number == 1 else f"{name}-{number}", f"The picture {path}")
        if (folder / "result.json").exists() and not arguments.overwrite:
            raise KoopsimError(f"{folder} already holds a result; add --overwrite to fit again, or give another --out.")
        found.append(folder)
    return found


def _fit(path: Path, folder: Path, settings: Any, half: bool, device: Any) -> dict[str, Any]:
    from koopsim.config import to_dict
    from koopsim.nn import count_parameters
    from koopsim.pictures import codec_sizes, psnr, read_picture, save_png
    from koopsim.pictures.figures import error_map, save_animation
    from koopsim.pictures.png import write_png
    from koopsim.runs import environment, write_json
    from koopsim.train.fit import fit
    from koopsim.train.network_file import draw, load_network, save_network

    picture = read_picture(path)
    with FitProgress(picture.name) as progress:
        fitted = fit(picture, settings, device, progress)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    size = save_network(folder / "network.safetensors", fitted.model, fitted.config, fitted.info, half)
    model, info = load_network(folder / "network.safetensors", device)  # the figures are of what was written
    if info.width * info.height > MANY_PIXELS:
        print(f"{info.name}  drawing {info.width} x {info.height}", file=sys.stderr)
    drawn = draw(model, info, info.width, info.height)
    write_png(folder / "reconstruction.png", info.width, info.height, info.channels, info.bits, [drawn])
    save_png(folder / "error.png", error_map(picture.pixels, drawn))
    if fitted.frames:
        save_animation(fitted.frames, folder / "convergence.gif")
    reached = psnr(picture.pixels, drawn)
    codecs = codec_sizes(picture.pixels, reached)
    measured = asdict(codecs)
    measured["jpeg_psnr"] = None if codecs.jpeg_psnr is None else _figure(codecs.jpeg_psnr)
    pixels = info.width * info.height
    result = {
        "picture": str(path), **asdict(info), "psnr": _figure(reached), "exact": math.isinf(reached),
        "parameters": count_parameters(model),
        "network_bytes": size, "network_bits_per_pixel": 8 * size / pixels, "weights": "float16" if half else "float32",
        "png_bits_per_pixel": 8 * codecs.png_bytes / pixels,
        "jpeg_bits_per_pixel": None if codecs.jpeg_bytes is None else 8 * codecs.jpeg_bytes / pixels,
        **measured, "steps": fitted.steps, "seconds": fitted.seconds, "batch": fitted.batch,
        "model": to_dict(fitted.config), "settings": asdict(settings), "device": str(device),
        "curve": [{key: _figure(value) for key, value in line.items()} for line in fitted.curve],
        "files": [name for name in FILES if name == "result.json" or (folder / name).exists()],
        "environment": environment(),
    }  # fmt: skip
    write_json(folder / "result.json", result)
    return result


def _figure(value: float) -> float | None:
    """Infinitely many decibels, where nothing differs, are no number in JSON."""
    return value if math.isfinite(value) else None


def _show(result: dict[str, Any], folder: Path) -> None:
    kind = f"{result['channels']} channels of {result['bits']} bits"
    print(f"{result['picture']}  {result['width']} x {result['height']}, {kind}")
    reached = "every pixel exact" if result["exact"] else f"{result['psnr']:.2f} dB"
    print(f"  {reached} after {result['steps']:,} steps in {result['seconds']:.1f} s")
    rows = [("network", result["network_bytes"], f"{result['parameters']:,} weights in {result['weights']}")]
    if result["jpeg_bytes"] is not None:
        decibels = "" if result["jpeg_psnr"] is None else f": {result['jpeg_psnr']:.2f} dB"
        rows.append(("JPEG", result["jpeg_bytes"], f"as good{decibels}"))
    rows.append(("PNG", result["png_bytes"], "without loss"))
    for name, size, note in rows:
        bits = 8 * size / result["width"] / result["height"]
        print(f"  {name:<8} {size:>12,} bytes  {bits:7.2f} bits a pixel   {note}")
    print(f"  in {folder}/: {', '.join(result['files'])}")


class FitProgress:
    """A bar with the PSNR of the pixels last seen; plain lines where there is no terminal."""

    def __init__(self, name: str):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.console, self.name, self.last_line = Console(stderr=True), name, time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        self.bar = Progress(
            *columns, TextColumn("{task.fields[figures]}"), console=self.console, disable=not self.console.is_terminal
        )
        self.task = self.bar.add_task(name, total=1.0, figures="")

    def __enter__(self) -> "FitProgress":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        figures = f"{event['psnr']:.2f} dB  step {event['step']:,}"
        self.bar.update(self.task, completed=event["fraction"], figures=figures)
        if not self.console.is_terminal and (time.monotonic() - self.last_line > 5 or event["fraction"] >= 1):
            self.last_line = time.monotonic()
            print(f"{self.name}  {event['fraction']:4.0%}  {figures}", file=sys.stderr)
