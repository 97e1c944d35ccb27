"""koopsim render: the picture that a network is, at any size."""

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from koopsim.cli import parse
from koopsim.cli.written import require_place
from koopsim.errors import KoopsimError

AT_ONCE = {".jpg": ("JPEG", 65_500), ".jpeg": ("JPEG", 65_500), ".webp": ("WEBP", 16_383)}  # format, longest side
OPTIONS = {"JPEG": {"quality": 95, "subsampling": "4:4:4"}, "WEBP": {"lossless": True}}


@dataclass(frozen=True)
class Arguments:
    """Draw a network of 'koopsim fit' at any resolution; a PNG band by band, so that memory stays small."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="NETWORK")]
    """network.safetensors, or the folder it is in."""
    out: Path = Path("rendered.png")
    """The picture to write: a .png, or of 8 bits a .jpg or .webp."""
    size: str | None = None
    """WIDTHxHEIGHT, or one number for the longer side; by default the size the picture had."""
    region: str = "0,0,1,1"
    """LEFT,TOP,RIGHT,BOTTOM as fractions of the picture."""
    overwrite: bool = False
    """Replace --out where it exists."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    json: bool = False
    """Print what was written as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "render")
    region = read_region(arguments.region)
    require_place(arguments.out, arguments.overwrite)
    from koopsim.engine.drive import pick_device
    from koopsim.picture_network import load_network

    if arguments.out.suffix.lower() not in (".png", *AT_ONCE):
        raise KoopsimError(f"--out is {arguments.out}; give a file that ends in .png, .jpg or .webp.")
    device = pick_device(arguments.device)
    model, info = load_network(arguments.model, device)
    shape = ((region[2] - region[0]) * info.width, (region[3] - region[1]) * info.height)
    width, height = read_size(arguments.size, shape)
    try:
        _write(arguments.out, model, info, width, height, region)
    except OSError as error:
        raise KoopsimError(f"Cannot write {arguments.out}: {error.strerror}.") from error
    if arguments.json:
        written = {"file": str(arguments.out), "width": width, "height": height, "region": list(region)}
        print(json.dumps(written | {"channels": info.channels, "bits": info.bits}, indent=2))
    else:
        print(f"{arguments.out}: {info.name}, {width} x {height}, {info.channels} channels of {info.bits} bits")
    return 0


def _write(out: Path, model: Any, info: Any, width: int, height: int, region: Any) -> None:
    """The picture in the form that the file's ending says."""
    from koopsim.files.memory import require_memory
    from koopsim.picture_network import bands, draw
    from koopsim.pictures.png import write_png
    from koopsim.pictures.read import as_image
    from koopsim.runs import write_atomically

    ending = out.suffix.lower()
    if ending == ".png":
        write_png(out, width, height, info.channels, info.bits, bands(model, info, width, height, region))
        return
    form, longest = AT_ONCE[ending]
    if info.bits != 8 or (form == "JPEG" and info.channels in (2, 4)):
        raise KoopsimError(
            f"{info.name} has {info.channels} channels of {info.bits} bits, which a {ending} cannot hold; give a .png."
        )
    if max(width, height) > longest:
        raise KoopsimError(f"A {ending} has at most {longest:,} pixels a side, not {width} x {height}; give a .png.")
    require_memory(3 * width * height * info.channels, f"A {ending} of {width} x {height} asks for")
    file = io.BytesIO()
    as_image(draw(model, info, width, height, region)).save(file, form, **OPTIONS[form])
    write_atomically(out, file.getvalue())


def read_size(text: str | None, natural: tuple[float, float]) -> tuple[int, int]:
    """'800x600', or '800' for the longer side of a region whose own size is `natural`."""
    if text is None:
        return max(1, round(natural[0])), max(1, round(natural[1]))
    found = re.fullmatch(r"(\d+)(?:[xX](\d+))?", text.strip())
    if not found or int(found[1]) == 0 or (found[2] and int(found[2]) == 0):
        raise KoopsimError(f"--size is {text!r}; expected WIDTHxHEIGHT such as 2048x1024, or one positive number.")
    if found[2]:
        return int(found[1]), int(found[2])
    scale = int(found[1]) / max(natural)
    return max(1, round(natural[0] * scale)), max(1, round(natural[1] * scale))


def read_region(text: str) -> tuple[float, float, float, float]:
    """'0.25,0.25,0.5,0.5' -> four numbers, left before right and top before bottom."""
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise KoopsimError(f"--region is {text!r}; expected LEFT,TOP,RIGHT,BOTTOM such as 0,0,0.5,0.5.") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise KoopsimError(f"--region is {text!r}; fractions lie in [0, 1], left before right and top before bottom.")
    return left, top, right, bottom
