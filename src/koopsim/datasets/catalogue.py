"""A dataset by name or by path, and what of the named ones is on this machine."""

from dataclasses import dataclass
from pathlib import Path

from koopsim.datasets.images import Images
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.registry import DATASETS


def load_images(name: str, root: Path | None = None, size: tuple[int, int] | None = None) -> Images:
    """The images of a dataset's name, of a folder of class/name.png, or of an .npz. Nothing is downloaded.

    size   (width, height) that they are scaled to cover, and cropped to around the centre; None: as they are
    """
    known = DATASETS.find(name)
    if known is not None:
        return known.load(root).resized(size)
    path = Path(name).expanduser()
    if path.is_dir():
        from koopsim.datasets.folder import read_folder

        return read_folder(path, size)
    if path.is_file() and path.suffix.lower() == ".npz":
        from koopsim.datasets.npz import read_images

        return read_images(path).resized(size)
    if path.is_file():
        raise KoopsimError(f"{path} is neither a folder of class/name.png nor an .npz.")
    raise KoopsimError(f"There is no dataset, folder or .npz {name!r}." + did_you_mean(name, DATASETS))


@dataclass(frozen=True)
class Entry:
    """One line of `koopsim data list`."""

    name: str
    title: str
    train: int
    test: int
    shape: tuple[int, int, int]
    present: bool
    missing: tuple[str, ...]  # files; their content is checked when they are read, not here
    bytes: int  # on disk
    download_bytes: int  # what `get` would fetch to have all of it
    folder: Path | None


def inventory(root: Path | None = None) -> list[Entry]:
    """Every named dataset, and whether its files are in the data folder."""
    entries = []
    for kind in sorted(DATASETS.values(), key=lambda kind: kind.order):
        missing, bytes, download_bytes, folder = kind.on_disk(root) or ((), 0, 0, None)
        counts = kind.counts["train"], kind.counts["test"]
        entries.append(
            Entry(kind.name, kind.title, *counts, kind.shape, not missing, missing, bytes, download_bytes, folder)
        )
    return entries
