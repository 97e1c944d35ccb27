"""koopsim fit: a small network that is your picture, and how good it is."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import json_text

USUAL_SECONDS = 40.0


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
    from koopsim.engine.drive import Stopped, pick_device
    from koopsim.fit_folder import Keeping, fit_file
    from koopsim.fitting import FitSettings
    from koopsim.pictures import read_picture
    from koopsim.progress import Progress
    from koopsim.training import Session

    device = pick_device(arguments.device)
    seconds = USUAL_SECONDS if arguments.steps is None and arguments.seconds is None else arguments.seconds
    settings = FitSettings(
        arguments.features, arguments.hidden, arguments.bandwidth, arguments.learning_rate, arguments.steps, seconds,
        arguments.batch, arguments.seed, arguments.precision, arguments.animation,
    )  # fmt: skip
    wanted, results = _folders(arguments), []
    for path in arguments.pictures:  # a bad one is said before the first is fitted
        read_picture(path)
    for path, folder in zip(arguments.pictures, wanted, strict=True):
        try:
            with Progress(path.name) as progress:
                session, kept = Session(device, listen=progress), Keeping(arguments.float16, arguments.overwrite)
                results.append(fit_file(path, folder, settings, session, kept))
        except Stopped:
            print("koopsim: stopped and saved. Give the same command again to go on.", file=sys.stderr)
            return 130
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
