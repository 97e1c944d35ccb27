"""From a folder of official files to images: every file whole, in its place and known by its content.

A part is taken from the first of these that is there: the unpacked file, the same in the archive's own folder,
its .gz, the .tar.gz. Files put there by hand are read as they are; none is moved, changed or fetched again.
"""

import hashlib
import warnings
from pathlib import Path

import numpy as np

from koopsim.datasets.download import md5_of
from koopsim.datasets.formats import Decoded, broken, gunzip, read_archive
from koopsim.datasets.images import Images
from koopsim.datasets.official import Official, Unpacked
from koopsim.errors import KoopsimError


def locate(source: Official, folder: Path) -> dict[str, Path]:
    """The file each part is in; a part that is nowhere has no entry."""
    archives = {part: folder / d.name for d in source.downloads if d.name.endswith(".tar.gz") for part in d.parts}
    found = {}
    for part in source.parts:
        places = [folder / part.name, folder / source.subfolder / part.name]
        places += [place.with_name(f"{part.name}.gz") for place in places]
        if part.name in archives:
            places.append(archives[part.name])
        for place in places:
            if place.is_file():
                found[part.name] = place
                break
    return found


def read_official(source: Official, folder: Path) -> Images:
    """All of a dataset, or an error that names the file at fault."""
    places = locate(source, folder)
    if missing := [part.name for part in source.parts if part.name not in places]:
        some = f"{folder} lacks {', '.join(missing)}" if places else f"{source.title} is not in {folder}"
        raise KoopsimError(
            f"{some}. Fetch it with 'koopsim data get {source.name}', put its official files there, "
            "or set KOOPSIM_DATA to where they are."
        )
    unpacked: dict[str, bytes] = {}
    decoded: dict[str, list[Decoded]] = {"train": [], "test": []}
    for part in source.parts:
        place = places[part.name]
        where = place if place.name == part.name else f"{place} ({part.name})"
        try:
            if place.name.endswith(".tar.gz"):
                inside = frozenset(name for name, p in places.items() if p == place)
                unpacked = unpacked or read_archive(place, inside)
                raw = unpacked[part.name]
            else:
                raw = gunzip(place) if place.suffix == ".gz" else place.read_bytes()
        except OSError as error:
            raise KoopsimError(f"{place} cannot be read: {error.strerror or error}.") from error
        content = source.decode(raw, where)
        verify(source, part, content, where, place)
        decoded[part.split].append(content)
    train, test = (_joined(decoded[split]) for split in ("train", "test"))
    return Images(source.name, train, test, source.classes)


def verify(source: Official, part: Unpacked, content: Decoded, where: object, place: Path | None = None) -> None:
    """Refuse a part that is not what its name says. `place`: its file, which may be official by its md5."""
    _verify_form(source, part, content, where)
    images, labels = (None if values is None else fingerprint(values) for values in content)
    if (images, labels) == (part.images, part.labels):
        return
    if place is not None and md5_of(place) in {d.md5 for d in source.downloads if part.name in d.parts}:
        return
    for other in source.parts:
        if other != part and (images, labels) == (other.images, other.labels):
            raise broken(where, f"is mislabelled: it is {other.name} under another name")
    count = max(len(values) for values in content if values is not None)
    if count != part.count:
        raise broken(where, f"has {count:,} records where {part.name} of {source.title} has {part.count:,}")
    if source.all_known or labels != part.labels:
        raise KoopsimError(
            f"{where} is not {part.name} of {source.title}: its content has another checksum. If it is damaged, delete "
            f"it and run 'koopsim data get {source.name}'; if it is data of your own, save it as .npz and name that."
        )
    warnings.warn(
        f"{where} has the labels of {source.title} but pixels of an unknown checksum; it is used as it is.",
        stacklevel=2,
    )


def _verify_form(source: Official, part: Unpacked, content: Decoded, where: object) -> None:
    """Whether there are images, labels or both where there should be, and the images have their size."""
    x, y = content
    if (x is None) != (part.images is None) or (y is None) != (part.labels is None):
        raise broken(where, f"is mislabelled: it does not hold what {part.name} does")
    if x is not None and x.shape[1:] != source.shape:
        raise broken(where, f"holds pictures of (channels, height, width) {x.shape[1:]} where {source.shape} belong")


def fingerprint(values: np.ndarray) -> str:
    """sha256 of the shape and of the values as bytes, in the order (n, channels, height, width)."""
    digest = hashlib.sha256(str(values.shape).encode())
    digest.update(np.ascontiguousarray(values, np.uint8).data)
    return digest.hexdigest()


def _joined(contents: list[Decoded]) -> tuple[np.ndarray, np.ndarray]:
    images = [x for x, _ in contents if x is not None]
    labels = [y for _, y in contents if y is not None]
    x, y = (values[0] if len(values) == 1 else np.concatenate(values) for values in (images, labels))
    return x, y
