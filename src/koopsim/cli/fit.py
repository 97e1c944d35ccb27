"""koopsim fit: a small network that is your picture, sound or shape, and how good it is."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import json_text

USUAL_SECONDS, MORE_SECONDS = 40.0, 2.0  # for a picture, and for each further one of its stack


@dataclass(frozen=True)
class Arguments:
    """Fit a network to each picture: any size, grey or colour, with or without alpha, 8 or 16 bits.

    Pictures of one size are fitted together. A sound (.wav) or a shape (.npy, numbers on a grid of one to three
    dimensions) is fitted by the same model, and beside it the network of Tancik et al.
    """

    pictures: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE ...")]
    """Picture files (PNG, JPEG, WebP, TIFF and the like), or folders of them; or .wav and .npy files."""
    out: Path = Path("fits")
    """Where the results go: a folder for each file, by its name."""
    seconds: float | None = None
    """Stop each stack of pictures of one size after this long; by default 40, and 2 for each picture more.
    A sound or shape has this for each of its two networks; by default 2,000 steps."""
    steps: int | None = None
    """Stop after so many steps."""
    features: int = 256
    """M: how many Fourier features."""
    hidden: int = 128
    """H: the width of the readout. Features and width decide the network's size."""
    bandwidth: float | None = None
    """The length scale of the features in pixels or samples; small is sharp. By default from the picture's size, or
    the signal's spectrum."""
    learning_rate: float | None = None
    """Of Adam at the start, from where it falls to zero along a cosine; by default 0.01, of sounds and shapes 0.003."""
    batch: int | None = None
    """Pixels a step; by default all of a small picture, a random draw of a large one."""
    bytes: int | None = None
    """At most so many bytes a picture: the network's size follows, its weights are rounded and entropy-coded."""
    weights: Literal["float32", "float16", "int8"] = "float32"
    """How the network is written; int8 is entropy-coded. The figures are of what was written."""
    float16: bool = False
    """The same as --weights float16."""
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
    from koopsim.engine.drive import pick_device
    from koopsim.signals import is_signal
    from koopsim.training import Session

    session = Session(pick_device(arguments.device))
    signals = any(is_signal(path) for path in arguments.pictures)
    return (_signals if signals else _pictures)(arguments, session)


def _pictures(arguments: Arguments, session: Any) -> int:
    """Pictures, those of one size together."""
    if arguments.bytes is not None and (arguments.float16 or arguments.weights != "float32"):
        raise KoopsimError("--bytes decides how weights are written; leave --weights and --float16 out.")
    from koopsim.datasets.inputs import picture_files
    from koopsim.engine.drive import Stopped
    from koopsim.fit_folder import Keeping, fit_files, sized, stacks
    from koopsim.fitting import FitSettings
    from koopsim.progress import Progress

    settings = FitSettings(**_given(arguments), precision=arguments.precision, frames=arguments.animation)
    kept = Keeping("float16" if arguments.float16 else arguments.weights, arguments.bytes, arguments.overwrite)
    sized(settings, kept, 3)  # a budget that is too small is said before anything is read
    paths = picture_files(arguments.pictures)
    wanted, results = _folders(paths, arguments), {}
    for stack in stacks(paths, session.device, settings):
        title = paths[stack[0]].name if len(stack) == 1 else f"{len(stack)} pictures"
        usual = arguments.steps is None and arguments.seconds is None
        own = replace(settings, seconds=USUAL_SECONDS + MORE_SECONDS * (len(stack) - 1)) if usual else settings
        try:
            with Progress(title) as progress:
                heard = replace(session, listen=progress)
                found = fit_files([paths[i] for i in stack], [wanted[i] for i in stack], own, heard, kept)
        except Stopped:
            print("koopsim: stopped and saved. Give the same command again to go on.", file=sys.stderr)
            return 130
        results |= dict(zip(stack, found, strict=True))
        for number in () if arguments.json else stack:
            _show(results[number], wanted[number])
    results = [results[number] for number in range(len(paths))]
    if arguments.json:
        print(json_text(results))
    return 0


def _signals(arguments: Arguments, session: Any) -> int:
    """Sounds and shapes, one after the other."""
    from koopsim.progress import Progress
    from koopsim.signals import SignalSettings, fit_signal_file, is_signal

    for path in arguments.pictures:
        if not is_signal(path):
            raise KoopsimError(f"{path} is a picture among sounds and shapes; fit them in two commands.")
        if not path.is_file():
            raise KoopsimError(f"There is no file {path}.")
    if arguments.bytes is not None or arguments.float16 or arguments.weights != "float32":
        raise KoopsimError("--bytes, --weights and --float16 are for pictures; leave them out for sounds and shapes.")
    if arguments.precision != "float32":
        raise KoopsimError("--precision is for pictures; sounds and shapes are fitted in float32, so leave it out.")
    settings, results = SignalSettings(**_given(arguments)), []
    for path, folder in zip(arguments.pictures, _folders(list(arguments.pictures), arguments), strict=True):
        with Progress(path.name) as progress:
            own = replace(session, listen=progress)
            results.append(fit_signal_file(path, folder, settings, own, overwrite=arguments.overwrite))
        if not arguments.json:
            _show_signal(results[-1], folder)
    if arguments.json:
        print(json_text(results))
    return 0


def _given(arguments: Arguments) -> dict[str, Any]:
    """Of what pictures and signals both have, what was said; the rest they choose for themselves."""
    both = ("features", "hidden", "bandwidth", "learning_rate", "steps", "seconds", "batch", "seed")
    return {name: getattr(arguments, name) for name in both if getattr(arguments, name) is not None}


def _show_signal(result: dict[str, Any], folder: Path) -> None:
    shape = " x ".join(f"{n:,}" for n in result["shape"])
    rate = f" at {result['rate']:,} a second" if result["rate"] else ""
    print(f"{result['signal']}  {shape} samples{rate}, {result['channels']} channel{'s' * (result['channels'] > 1)}")
    for name, title in (("sim-rff", "SIM (RFF only)"), ("tancik", "Tancik et al.")):
        own = result[name]
        told = f"{own['psnr']:.2f} dB after {own['steps']:,} steps in {own['seconds']:.1f} s"
        print(f"  {title:<15} {told}, {own['parameters']:,} weights")
    print(f"  network {result['network_bytes']:,} bytes, the file {result['file_bytes']:,}")
    print(f"  in {folder}/: {', '.join(result['files'])}")


def _folders(paths: list[Path], arguments: Arguments) -> list[Path]:
    """A folder for each picture; two pictures of one name get different ones."""
    seen: dict[str, int] = {}
    found = []
    for path in paths:
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
    form = ", coded" if result["weights"] == "coded" else f" in {result['weights']}"
    rows = [("network", result["network_bytes"], f"{result['parameters']:,} weights{form}")]
    if result["jpeg_bytes"] is not None:
        decibels = "" if result["jpeg_psnr"] is None else f": {result['jpeg_psnr']:.2f} dB"
        rows.append(("JPEG", result["jpeg_bytes"], f"as good{decibels}"))
    if (small := result["jpeg_at_equal_bytes"]) is not None:
        rows.append(("JPEG", small["bytes"], f"as small: {_verdict(result['psnr'], small)}"))
    larger = "; the network is larger: --bytes makes it small" if result["network_bytes"] > result["png_bytes"] else ""
    rows.append(("PNG", result["png_bytes"], f"without loss{larger}"))
    for name, size, note in rows:
        bits = 8 * size / result["width"] / result["height"]
        print(f"  {name:<8} {size:>12,} bytes  {bits:7.2f} bits a pixel   {note}")
    print(f"  in {folder}/: {', '.join(result['files'])}")


def _verdict(own: float | None, small: dict[str, Any]) -> str:
    """What JPEG does in no more bytes, and who wins."""
    if small["psnr"] is None:
        return "every pixel exact; JPEG wins" if own is not None else "every pixel exact; a draw"
    how = "" if small["scale"] == 1 else f", of the picture at 1/{small['scale']} of its size"
    if own is None:
        return f"{small['psnr']:.2f} dB{how}; the network is exact"
    ahead = small["psnr"] - own
    who = "JPEG wins" if ahead > 0.05 else "the network wins" if ahead < -0.05 else "a draw"
    return f"{small['psnr']:.2f} dB{how}; {who}" + ("" if abs(ahead) <= 0.05 else f" by {abs(ahead):.2f} dB")
