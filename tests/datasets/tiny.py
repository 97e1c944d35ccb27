"""Datasets of a few random pictures in the official formats, with their own checksums."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.io import savemat

from koopsim.datasets.formats import write_cifar
from koopsim.datasets.official import CIFAR10, MNIST, SVHN, Download, Official
from koopsim.datasets.reading import fingerprint

COUNTS = {"train": 20, "test": 12}


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mat(x: np.ndarray, y: np.ndarray, compressed: bool = True) -> bytes:
    """x (n, 3, 32, 32), digits y in 0..9, as SVHN writes them."""
    buffer = io.BytesIO()
    labels = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
    savemat(buffer, {"X": x.transpose(2, 3, 1, 0), "y": labels}, do_compression=compressed)
    return buffer.getvalue()


def tar_gz(files: dict[str, bytes], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def pictures(source: Official, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(count, dtype=np.int64) % 10
    return random.integers(0, 256, (count, *source.shape), dtype=np.uint8), random.permutation(y)


def tiny_mnist() -> tuple[Official, dict[str, bytes], dict[str, bytes]]:
    """The set, its unpacked files, and the files that a mirror offers."""
    files, parts = {}, []
    for seed, (split, prefix) in enumerate((("train", "train"), ("test", "t10k"))):
        x, y = pictures(MNIST, COUNTS[split], seed)
        files[f"{prefix}-images-idx3-ubyte"] = idx(x[:, 0])
        files[f"{prefix}-labels-idx1-ubyte"] = idx(y.astype(np.uint8))
        old = {part.name: part for part in MNIST.parts}
        parts.append(replace(old[f"{prefix}-images-idx3-ubyte"], count=len(x), images=fingerprint(x)))
        parts.append(replace(old[f"{prefix}-labels-idx1-ubyte"], count=len(y), labels=fingerprint(y)))
    offered = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
    downloads = tuple(Download(n, md5(d), len(d), (n.removesuffix(".gz"),)) for n, d in offered.items())
    return replace(MNIST, parts=tuple(parts), downloads=downloads, mirrors=(), package=None), files, offered


def tiny_cifar() -> tuple[Official, dict[str, bytes], dict[str, bytes]]:
    files, parts = {}, []
    for seed, part in enumerate(CIFAR10.parts):
        x, y = pictures(CIFAR10, COUNTS["test"], 10 + seed)
        files[part.name] = write_cifar(x, y)
        parts.append(replace(part, count=len(x), images=fingerprint(x), labels=fingerprint(y)))
    offered = {"cifar-10-binary.tar.gz": tar_gz(files | {"readme.html": b"hello"}, "cifar-10-batches-bin")}
    downloads = tuple(Download(n, md5(d), len(d), tuple(files)) for n, d in offered.items())
    return replace(CIFAR10, parts=tuple(parts), downloads=downloads, mirrors=(), package=None), files, offered


def tiny_svhn() -> tuple[Official, dict[str, bytes], dict[str, bytes]]:
    files, parts = {}, []
    for seed, part in enumerate(SVHN.parts):
        x, y = pictures(SVHN, COUNTS[part.split], 20 + seed)
        files[part.name] = mat(x, y)
        parts.append(replace(part, count=len(x), images=fingerprint(x), labels=fingerprint(y)))
    downloads = tuple(Download(n, md5(d), len(d), (n,)) for n, d in files.items())
    return replace(SVHN, parts=tuple(parts), downloads=downloads, mirrors=()), files, files


TINY = {"mnist": tiny_mnist, "cifar10": tiny_cifar, "svhn": tiny_svhn}


def place(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
