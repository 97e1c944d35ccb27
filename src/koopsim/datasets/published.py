"""MNIST, CIFAR-10 and SVHN by name: read from the data folder, fetched into it."""

from pathlib import Path

from koopsim.datasets.cache import DownloadListener, data_folder, silence
from koopsim.datasets.coming import when_read
from koopsim.datasets.download import Patience
from koopsim.datasets.fetching import Fetched, fetch
from koopsim.datasets.images import Images
from koopsim.datasets.official import CIFAR10, MNIST, SVHN, Official
from koopsim.datasets.reading import locate
from koopsim.kinds import DatasetKind, register


class OfficialKind(DatasetKind):
    """What the house asks of a published data set."""

    def __init__(self, source: Official, label: str, order: int):
        self.source, self.label, self.order = source, label, order
        self.name, self.title, self.shape = source.name, source.title, source.shape
        self.counts = {split: source.count(split) for split in ("train", "test")}

    def load(self, root: Path | None = None) -> Images:
        return when_read(self.source, data_folder(root) / self.name)

    def fetch(self, root: Path | None, listen: DownloadListener = silence, patience: Patience | None = None) -> Fetched:
        return fetch(self.source, data_folder(root) / self.name, listen, patience)

    def on_disk(self, root: Path | None) -> tuple[tuple[str, ...], int, int, Path]:
        folder = data_folder(root) / self.name
        places = locate(self.source, folder)
        missing = tuple(part.name for part in self.source.parts if part.name not in places)
        there = sum(place.stat().st_size for place in set(places.values()))
        to_come = sum(d.size for d in self.source.downloads if set(d.parts) & set(missing))
        return missing, there, to_come, folder


for _source, _label, _order in ((CIFAR10, "CIFAR-10", 1), (SVHN, "SVHN", 2), (MNIST, "MNIST", 3)):
    register(OfficialKind(_source, _label, _order))
