"""Official formats at their ends: the last byte that is missing or too many, the last label that is one."""

import gzip
import struct

import numpy as np
import pytest
from tiny import mat, tar_gz

from koopsim.datasets import formats
from koopsim.datasets.formats import check_labels, gunzip, read_archive, read_cifar, read_idx, read_svhn, write_cifar
from koopsim.errors import KoopsimError

HEAD = b"\0\0\x08"


def picture_idx(*sizes, count=None):
    return HEAD + b"\x03" + struct.pack(">3I", *sizes) + bytes(int(np.prod(sizes)) if count is None else count)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (HEAD, "is not an idx file"), (b"", "is not an idx file"), (HEAD + b"\x02" + bytes(20), "is not an idx file"),
        (b"\0\0\x09\x01\0\0\0\0", "is not an idx file"), (HEAD + b"\x01\0\0\0", "ends inside its header"),
        (HEAD + b"\x03" + bytes(11), "ends inside its header"), (HEAD + b"\x01", "ends inside its header"),
        (picture_idx(2, 3, 4, count=23), "is truncated: 39 bytes where its header promises 40"),
        (picture_idx(2, 3, 4, count=25), "is too long: 41 bytes where its header promises 40"),
        (HEAD + b"\x01\0\0\0\x02\x05\x0a", "has a label 10, and labels go from 0 to 9"),
    ],
)  # fmt: skip
def test_idx_files_that_are_none(raw, why):
    with pytest.raises(KoopsimError, match=f"^f .*{why}"):
        read_idx(raw, "f")


def test_the_smallest_idx_files():
    assert read_idx(HEAD + b"\x01" + bytes(4), "f")[1].tolist() == []
    assert read_idx(HEAD + b"\x01\0\0\0\x02\x00\x09", "f")[1].tolist() == [0, 9]
    x, y = read_idx(picture_idx(2, 3, 4), "f")
    assert (x.shape, y) == ((2, 1, 3, 4), None)
    assert x.flags.writeable


@pytest.mark.parametrize("count", [0, 3072, 3074, 2 * 3073 - 1])
def test_cifar_is_whole_records(count):
    with pytest.raises(KoopsimError, match=f"{count} bytes are no whole number of records"):
        read_cifar(bytes(count), "f")


def test_cifar_there_and_back():
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
    found, y = read_cifar(write_cifar(x, np.array([9, 0])), "f")
    np.testing.assert_array_equal(found, x)
    assert (y.tolist(), y.dtype) == ([9, 0], np.int64)
    with pytest.raises(KoopsimError, match="a label 10"):
        read_cifar(write_cifar(x, np.array([9, 10])), "f")


def test_svhn_names_ten_digits():
    x = np.zeros((10, 3, 32, 32), np.uint8)
    assert read_svhn(mat(x, np.arange(10)), "f")[1].tolist() == list(range(10))
    with pytest.raises(KoopsimError, match="a label 11, and labels go from 1 to 10"):
        read_svhn(mat(x[:1], np.array([11])), "f")
    for wrong in (x[:, :, :31], x[:, :2], x.astype(np.int16)):
        with pytest.raises(KoopsimError, match=r"not uint8 \(32, 32, 3, n\) and n labels"):
            read_svhn(mat(wrong, np.arange(10)), "f")
    with pytest.raises(KoopsimError, match="and 9 labels"):
        read_svhn(mat(x, np.arange(9)), "f")


def test_the_first_label_outside_is_named():
    check_labels(np.array([2, 5]), 2, 5, "f")
    check_labels(np.array([], int), 2, 5, "f")
    for labels, wrong in (([2, 6, 1], 6), ([5, 1, 9], 1)):
        with pytest.raises(KoopsimError, match=f"a label {wrong}, and labels go from 2 to 5"):
            check_labels(np.array(labels), 2, 5, "f")


def test_no_more_is_unpacked_than_any_official_file_has(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_BYTES", 100)
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(bytes(100)))
    assert gunzip(file) == bytes(100)
    file.write_bytes(gzip.compress(bytes(101)))
    with pytest.raises(KoopsimError, match="unpacks to more than 100 bytes"):
        gunzip(file)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_gz({"x": bytes(100), "y": bytes(101), "z": b"z"}, "deep/er"))
    assert read_archive(archive, frozenset("xz")) == {"x": bytes(100), "z": b"z"}
    with pytest.raises(KoopsimError, match="holds 101 bytes as y, more than any official file"):
        read_archive(archive, frozenset("y"))
    with pytest.raises(KoopsimError, match="holds no u, v"):
        read_archive(archive, frozenset("xvu"))
