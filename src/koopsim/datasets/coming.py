"""A published data set that is read while Python still imports PyTorch.

    read_ahead("cifar10")  ->  a thread reads and checks  ->  when_read(source, folder) waits for it, once

Importing PyTorch takes longer than reading, and reading lets go of the interpreter's lock. An error is raised where the
set is asked for, as if it had been read there.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from koopsim.datasets.cache import data_folder
from koopsim.datasets.images import Images
from koopsim.datasets.official import CIFAR10, MNIST, SVHN, Official
from koopsim.datasets.reading import locate, read_official

_COMING: dict[tuple[str, Path], Future[Images]] = {}


def read_ahead(name: str) -> None:
    """Read the published set of this name ahead, where its files are in the data folder."""
    source = {known.name: known for known in (CIFAR10, MNIST, SVHN)}.get(name)
    if source is None:
        return
    folder = data_folder() / name
    if len(locate(source, folder)) == len(source.parts):
        pool = ThreadPoolExecutor(thread_name_prefix="koopsim-reading")
        _COMING[name, folder] = pool.submit(read_official, source, folder)
        pool.shutdown(wait=False)


def when_read(source: Official, folder: Path) -> Images:
    """What was begun, or else read now; a second time it is read again."""
    coming = _COMING.pop((source.name, folder), None)
    return read_official(source, folder) if coming is None else coming.result()
