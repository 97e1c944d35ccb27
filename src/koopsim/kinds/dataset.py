"""What is asked of a data set of labelled images, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from koopsim.kinds.given import Shape


class DatasetKind:
    """A data set of labelled images, by name."""

    name: str
    title: str  # in `koopsim data list`
    label: str  # in tables
    shape: Shape
    counts: dict[str, int]  # of images in "train" and "test"
    order: int = 100  # in lists

    def load(self, root: Path | None = None) -> Any:
        """The `Images` of it, from the data folder `root` where it keeps files. Nothing is downloaded."""
        raise NotImplementedError

    def fetch(self, root: Path | None, listen: Callable[[dict[str, Any]], None], patience: Any) -> Any:
        """Bring what is missing into the data folder and check all of it: a `Fetched`. None: there is nothing to do."""
        return None

    def on_disk(self, root: Path | None) -> tuple[tuple[str, ...], int, int, Path] | None:
        """(missing files, bytes there, bytes `fetch` would bring, its folder). None: it needs no files."""
        return None
