"""Official files: read as they are when whole, refused by name when not."""

import gzip
import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from tiny import COUNTS, TINY, idx, mat, md5, pictures, place, tar_gz, tiny_cifar, tiny_mnist, tiny_svhn

from koopsim.datasets.formats import read_cifar, read_idx, read_svhn, write_cifar
from koopsim.datasets.official import CIFAR10, MNIST, SVHN
from koopsim.datasets.reading import read_official
from koopsim.errors import KoopsimError


def refused(source, folder, name):
    with pytest.raises(KoopsimError) as error:
        read_official(source, folder)
    assert name in str(error.value), error.value
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- bytes to arrays


def test_idx_by_hand():
    x, y = read_idx(b"\0\0\x08\x03" + struct.pack(">3I", 2, 1, 3) + bytes(range(6)), "f")
    assert y is None
    np.testing.assert_array_equal(x, [[[[0, 1, 2]]], [[[3, 4, 5]]]])
    x, y = read_idx(b"\0\0\x08\x01\0\0\0\x03" + bytes([7, 0, 9]), "f")
    assert x is None
    assert y.dtype == np.int64
    assert y.tolist() == [7, 0, 9]


def test_cifar_by_hand():
    red, green, blue = bytes(range(256)) * 4, bytes([7]) * 1024, bytes([8]) * 1024
    x, y = read_cifar(bytes([3]) + red + green + blue, "f")
    assert y.tolist() == [3]
    assert x[0, 0, 1, 2] == 34  # row by row
    assert (x[0, 1] == 7).all()
    assert (x[0, 2] == 8).all()
    assert write_cifar(x, y) == bytes([3]) + red + green + blue


def test_svhn_by_hand():
    x = np.zeros((2, 3, 32, 32), np.uint8)
    x[1, 2, 5, 9] = 200
    found, y = read_svhn(mat(x, np.array([0, 4])), "f")
    np.testing.assert_array_equal(found, x)
    assert y.tolist() == [0, 4]


def test_svhn_label_0_is_10():
    buffer = io.BytesIO()
    savemat(buffer, {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.array([[0]], np.uint8)})
    with pytest.raises(KoopsimError, match=r"f\.mat is corrupt: it has a label 0, and labels go from 1 to 10"):
        read_svhn(buffer.getvalue(), "f.mat")


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_no_bytes_crash_a_reader(raw):
    for read in (read_idx, read_cifar):
        try:
            read(raw, "f")
        except KoopsimError as error:
            assert str(error).startswith("f ")  # noqa: PT017


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_damage_crashes_the_mat_reader(data):
    raw = bytearray(mat(*pictures(SVHN, 2, 0)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        x, y = read_svhn(bytes(raw), "f")
    except KoopsimError:
        return
    assert x.shape == (2, 3, 32, 32)
    assert y.shape == (2,)


def test_a_header_of_billions_is_no_crash():
    with pytest.raises(KoopsimError, match="truncated: 16 bytes where"):
        read_idx(b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "f")


# ---------------------------------------------------------------- whole sets


@pytest.mark.parametrize("name", TINY)
def test_files_put_by_hand_are_read(name, tmp_path):
    source, files, offered = TINY[name]()
    plain = read_official(source, place(files, tmp_path / "plain"))
    packed = read_official(source, place(offered, tmp_path / "packed"))
    again = {f"{n}.gz": gzip.compress(d, 1) for n, d in files.items()}
    assert not {md5(d) for d in again.values()} & {d.md5 for d in source.downloads}
    repacked = read_official(source, place(again, tmp_path / "again"))
    for images in (plain, packed, repacked):
        for split in ("train", "test"):
            x, y = getattr(images, split)
            np.testing.assert_array_equal(x, getattr(plain, split)[0])
            np.testing.assert_array_equal(y, getattr(plain, split)[1])
            assert x.shape == (source.count(split), *source.shape)
            assert x.flags.writeable, "torch warns of arrays that are not"
            assert x.flags.c_contiguous
    assert plain.classes == source.classes


def test_the_values_are_those_written(tmp_path):
    source, files, _ = tiny_mnist()
    images = read_official(source, place(files, tmp_path))
    x, y = pictures(MNIST, COUNTS["test"], 1)
    np.testing.assert_array_equal(images.test[0], x)
    np.testing.assert_array_equal(images.test[1], y)


def test_cifar_in_the_archives_own_folder(tmp_path):
    source, files, _ = tiny_cifar()
    place(files, tmp_path / "cifar-10-batches-bin")
    images = read_official(source, tmp_path)
    np.testing.assert_array_equal(images.test[0], pictures(CIFAR10, COUNTS["test"], 15)[0])
    np.testing.assert_array_equal(images.train[0][:12], pictures(CIFAR10, COUNTS["test"], 10)[0])


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "text"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_refused_by_name(name, how, packed, tmp_path):
    source, *kinds = TINY[name]()
    files = dict(kinds[packed])
    victim = sorted(files)[-1]
    data = files[victim]
    middle = len(data) // 2
    files[victim] = {
        "truncated": data[: middle + 1],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
        "text": b"<html>Please log in to this network</html>",
    }[how]
    refused(source, place(files, tmp_path), victim)


def test_a_label_out_of_range(tmp_path):
    source, files, _ = tiny_mnist()
    files["t10k-labels-idx1-ubyte"] = files["t10k-labels-idx1-ubyte"][:-1] + bytes([10])
    assert "label 10" in refused(source, place(files, tmp_path / "m"), "t10k-labels-idx1-ubyte")
    source, files, _ = tiny_cifar()
    files["data_batch_2.bin"] = bytes([200]) + files["data_batch_2.bin"][1:]
    assert "label 200" in refused(source, place(files, tmp_path / "c"), "data_batch_2.bin")


@pytest.mark.parametrize(
    ("name", "under", "really"),
    [
        ("mnist", "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"),
        ("mnist", "train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("mnist", "t10k-labels-idx1-ubyte", "train-labels-idx1-ubyte"),
        ("cifar10", "data_batch_3.bin", "test_batch.bin"),
        ("cifar10", "test_batch.bin", "data_batch_1.bin"),
        ("svhn", "train_32x32.mat", "test_32x32.mat"),
    ],
)
def test_a_file_under_anothers_name(name, under, really, tmp_path):
    source, files, _ = TINY[name]()
    files[under] = files[really]
    assert "mislabelled" in refused(source, place(files, tmp_path), under)


def test_fashion_is_not_mnist(tmp_path):
    """Well-formed, the right sizes, other pictures: the file names of Fashion-MNIST are the same."""
    source, files, _ = tiny_mnist()
    other = np.random.default_rng(9).integers(0, 256, (COUNTS["train"], 28, 28), dtype=np.uint8)
    files["train-images-idx3-ubyte"] = idx(other)
    assert "another checksum" in refused(source, place(files, tmp_path / "a"), "train-images-idx3-ubyte")
    files["train-images-idx3-ubyte"] = idx(other[:, :20])
    assert "(1, 20, 28)" in refused(source, place(files, tmp_path / "b"), "train-images-idx3-ubyte")
    files["train-images-idx3-ubyte"] = idx(other[:7])
    assert "7 records" in refused(source, place(files, tmp_path / "c"), "train-images-idx3-ubyte")


def test_other_pixels_of_svhn_are_used_with_a_warning_other_labels_never(tmp_path):
    source, files, _ = tiny_svhn()
    x, y = pictures(SVHN, COUNTS["test"], 21)
    x[0, 0, 0, 0] ^= 1
    files["test_32x32.mat"] = mat(x, y)
    with pytest.warns(UserWarning, match=r"test_32x32\.mat has the labels of SVHN.* but pixels of an unknown"):
        images = read_official(source, place(files, tmp_path / "pixels"))
    np.testing.assert_array_equal(images.test[0], x)
    files["test_32x32.mat"] = mat(x, y[::-1])
    refused(source, place(files, tmp_path / "labels"), "test_32x32.mat")


def test_the_official_md5_is_enough(tmp_path):
    """The content of the official SVHN is known by its file only."""
    source, files, _ = tiny_svhn()
    parts = tuple(replace(part, images="0" * 64, labels="1" * 64) for part in source.parts)
    images = read_official(replace(source, parts=parts), place(files, tmp_path))
    np.testing.assert_array_equal(images.test[0], pictures(SVHN, COUNTS["test"], 21)[0])


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path):
    source, files, _ = tiny_mnist()
    message = refused(source, tmp_path, "koopsim data get mnist")
    assert message.startswith(f"MNIST is not in {tmp_path}")
    del files["train-labels-idx1-ubyte"]
    assert "lacks train-labels-idx1-ubyte." in refused(source, place(files, tmp_path), "koopsim data get mnist")


def test_an_archive_that_lacks_a_batch(tmp_path):
    source, files, _ = tiny_cifar()
    del files["data_batch_4.bin"]
    place({"cifar-10-binary.tar.gz": tar_gz(files, "cifar-10-batches-bin")}, tmp_path)
    assert "data_batch_4.bin" in refused(source, tmp_path, "cifar-10-binary.tar.gz")


def test_descriptions_agree_with_the_paper():
    assert [(s.count("train"), s.count("test")) for s in (MNIST, CIFAR10, SVHN)] == [
        (60_000, 10_000), (50_000, 10_000), (73_257, 26_032),
    ]  # fmt: skip
    for source in (MNIST, CIFAR10, SVHN):
        assert {name for item in source.downloads for name in item.parts} == {part.name for part in source.parts}
        assert len(source.classes) == 10
