"""A picture's network as one file, and the picture drawn from it at any size.

    network.safetensors   weights in float32 or float16; the header says what model and what picture it is
    network.ksp           a few bits a weight (picture_codec.py)

Drawing goes band by band, so that memory does not grow with the picture.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from koopsim.config import SIMConfig, from_dict, to_dict
from koopsim.config.checks import require_sane
from koopsim.errors import KoopsimError
from koopsim.files.opened import MEBI, read_bytes
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.files.writing import write_atomically
from koopsim.models import build
from koopsim.nn.folded import folded
from koopsim.nn.sim import SIM
from koopsim.picture_codec import Coded, arrays_of, decoded_model, packed, unpacked, within
from koopsim.pictures.read import to_pixels

BAND_PIXELS = 16_384
HEADER = "koopsim.picture"
NETWORK, CODED = "network.safetensors", "network.ksp"
MOST_CODED = 256 * MEBI


@dataclass(frozen=True)
class PictureInfo:
    """What a network is a picture of."""

    name: str
    width: int
    height: int
    channels: int
    bits: int

    def __post_init__(self) -> None:
        for name, most in (("width", 2**31 - 1), ("height", 2**31 - 1), ("channels", 4)):
            if not 1 <= getattr(self, name) <= most:
                raise KoopsimError(f"The picture's {name} is {getattr(self, name)}; it lies between 1 and {most}.")
        if self.bits not in (8, 16):
            raise KoopsimError(f"The picture has {self.bits} bits; expected 8 or 16.")

    @property
    def side(self) -> int:
        """The longer side: the unit of the coordinates."""
        return max(self.width, self.height)


def save_network(path: Path, model: nn.Module, config: SIMConfig, info: PictureInfo, half: bool = False) -> int:
    """Write the network, atomically; returns its size in bytes."""
    dtype = torch.float16 if half else torch.float32
    tensors = {name: t.detach().cpu().to(dtype).contiguous() for name, t in model.state_dict().items()}
    if half and not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise KoopsimError("A weight is too large for float16; write the network in float32 (leave --float16 out).")
    return write_tensors(path, tensors, {HEADER: {"model": to_dict(config), "picture": asdict(info)}})


def save_coded(path: Path, model: SIM, config: SIMConfig, info: PictureInfo, budget: int | None = None) -> int:
    """Write the network in a few bits a weight, at most `budget` bytes in all; returns its size in bytes."""
    assert config.fourier is not None
    sizes = config.fourier.features, config.hidden
    coded = Coded(info.name, info.width, info.height, info.channels, info.bits, *sizes, arrays_of(model))
    data = packed(coded) if budget is None else within(coded, budget)
    write_atomically(path, data)
    return len(data)


def _load_coded(path: Path, device: torch.device | str) -> tuple[nn.Module, PictureInfo]:
    coded = unpacked(read_bytes(path, MOST_CODED, "coded network"), str(path))
    model, _ = decoded_model(coded)
    return model.to(device).eval(), PictureInfo(coded.name, coded.width, coded.height, coded.channels, coded.bits)


def load_network(path: Path | str, device: torch.device | str = "cpu") -> tuple[nn.Module, PictureInfo]:
    """The network in a file and what it is a picture of; loading never executes code."""
    path = Path(path)
    if path.is_dir():
        path = path / (CODED if (path / CODED).exists() else NETWORK)
    if path.suffix == ".ksp" and path.exists():
        return _load_coded(path, device)
    try:
        tensors, header = read_tensors(path, "network of 'koopsim fit'")
    except FileNotFoundError:
        raise KoopsimError(f"There is no network {path}; 'koopsim fit PICTURE' makes one.") from None
    said = header.get(HEADER)
    if not isinstance(said, dict) or not {"model", "picture"} <= said.keys():
        raise KoopsimError(f"{path} is not a whole network of 'koopsim fit' (it does not say what it is a picture of).")
    info = from_dict(PictureInfo, said["picture"], f"{path}: picture")
    config = from_dict(SIMConfig, said["model"], f"{path}: model")
    require_sane(config, f"{path}: model.")
    if config.outputs != info.channels:
        raise KoopsimError(f"{path} has {config.outputs} outputs for a picture of {info.channels} channels.")
    model = build(config)
    require_match(model.state_dict(), tensors, path, "network of another model")
    model.load_state_dict({name: t.float() for name, t in tensors.items()})
    return model.to(device).eval(), info


Region = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the picture
WHOLE: Region = (0.0, 0.0, 1.0, 1.0)


@torch.no_grad()
def bands(
    model: nn.Module, info: PictureInfo, width: int, height: int, region: Region = WHOLE, band_pixels: int = BAND_PIXELS
) -> Iterator[NDArray]:
    """The region as `width` x `height` pixels, in bands of whole rows (or parts of a very long row, joined)."""
    first = next(model.parameters())
    left, top, right, bottom = region
    x = (left + (right - left) * torch.arange(width, dtype=torch.float64) / width) * info.width / info.side
    y = (top + (bottom - top) * torch.arange(height, dtype=torch.float64) / height) * info.height / info.side
    x, y = x.to(first), y.to(first)
    rows = max(1, band_pixels // width)
    for start in range(0, height, rows):
        ys = y[start : start + rows]
        points = torch.stack([x.expand(len(ys), -1), ys.unsqueeze(1).expand(-1, width)], dim=-1).reshape(-1, 2)
        parts = [folded(model, part).float().cpu() for part in points.split(band_pixels)]
        values = torch.cat(parts).reshape(len(ys), width, info.channels).numpy()
        if not np.isfinite(values).all():
            raise KoopsimError(f"The network of {info.name} gives no numbers; fit it with a smaller --learning-rate.")
        yield to_pixels(values, 2**info.bits - 1)


def draw(model: nn.Module, info: PictureInfo, width: int, height: int, region: Region = WHOLE) -> NDArray:
    """The region as one array of uint8 or uint16, (height, width, channels)."""
    # Into one array: a list of bands would pin the heap between their large temporaries, and memory would grow.
    whole = np.empty((height, width, info.channels), np.uint8 if info.bits == 8 else np.uint16)
    row = 0
    for band in bands(model, info, width, height, region):
        whole[row : row + len(band)] = band
        row += len(band)
    return whole
