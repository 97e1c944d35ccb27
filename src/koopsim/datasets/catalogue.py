"""A dataset by name or by path, and what of the named ones is on this machine."""

from dataclasses import dataclass
from pathlib import Path

from koopsim.datasets.cache import data_folder
from koopsim.datasets.images import Images
from koopsim.datasets.official import OFFICIAL
from koopsim.datasets.reading import locate, read_official
from koopsim.errors import KoopsimError, did_you_mean

NAMES = (*OFFICIAL, "digits")


def load(name: str, root: Path | None = None) -> Images:
    """The images of a dataset's name, of a folder of class/name.png, or of an .npz. Nothing is downloaded."""
    if name == "digits":
        from koopsim.datasets.digits import digits

        return digits()
    if name in OFFICIAL:
        return read_official(OFFICIAL[name], data_folder(root) / name)
    path = Path(name).expanduser()
    if path.is_dir():
        from koopsim.datasets.folder import read_folder

        return read_folder(path)
    if path.is_file() and path.suffix.lower() == ".npz":
        from koopsim.datasets.npz import read_npz

        return read_npz(path)
    if path.is_file():
        raise KoopsimError(f"{path} is neither a folder of class/name.png nor an .npz.")
    raise KoopsimError(f"There is no dataset, folder or .npz {name!r}." + did_you_mean(name, NAMES))


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
    for source in OFFICIAL.values():
        folder = data_folder(root) / source.name
        places = locate(source, folder)
        missing = tuple(part.name for part in source.parts if part.name not in places)
        entries.append(
            Entry(
                source.name, source.title, source.count("train"), source.count("test"), source.shape,
                present=not missing,
                missing=missing,
                bytes=sum(place.stat().st_size for place in set(places.values())),
                download_bytes=sum(d.size for d in source.downloads if set(d.parts) & set(missing)),
                folder=folder,
            )
        )  # fmt: skip
    from koopsim.datasets.digits import COUNTS

    title = "scikit-learn's digits, built in"
    return [*entries, Entry("digits", title, COUNTS["train"], COUNTS["test"], (1, 8, 8), True, (), 0, 0, None)]
