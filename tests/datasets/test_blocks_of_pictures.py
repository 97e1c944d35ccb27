"""Pictures that stay where they are, read row by row: against the arrays they were written from."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from koopsim.datasets.blocks import (
    ArraySource,
    FileSource,
    Source,
    StreamedImages,
    in_memory,
    stream_images,
    streamable,
)
from koopsim.datasets.blocks import _npy as npy
from koopsim.datasets.images import Images
from koopsim.errors import KoopsimError

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 256, (10, 3, 4, 5), np.uint8)
Y = np.array([7, 9] * 5)
ROWS = np.array([8, 0, 3])


def arrays(**changed):
    return {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]} | changed


@pytest.fixture(params=["npz", "npy"])
def written(request, tmp_path):
    """Writes arrays as one file or as a folder, and says where."""

    def write(**changed):
        if request.param == "npz":
            np.savez(tmp_path / "a.npz", **arrays(**changed))
            return tmp_path / "a.npz"
        for name, array in arrays(**changed).items():
            np.save(tmp_path / f"{name}.npy", array)
        return tmp_path

    return write


def test_rows_are_read_where_they_lie(written):
    found = stream_images(str(written()))
    np.testing.assert_array_equal(found.train.read(ROWS), X[ROWS])
    np.testing.assert_array_equal(found.test.read(np.array([3])), X[3:4])
    assert found.train.read(np.array([], int)).shape == (0, 3, 4, 5)
    assert found.train.labels.tolist() == [0, 1] * 5
    assert (found.classes, found.lost) == (("7", "9"), ())
    assert (found.train.shape, len(found.train), len(found.test)) == ((3, 4, 5), 10, 4)
    assert (found.train.bytes, found.test.bytes, found.bytes) == (600, 240, 840)
    assert found.loads is str(found.name).endswith(".npz")
    assert stream_images(found.name, (5, 4)).train.shape == (3, 4, 5)  # (width, height) as they are
    with pytest.raises(KoopsimError, match=r"holds arrays of \(4, 5\) pixels; scale them"):
        stream_images(found.name, (4, 5))


@pytest.mark.parametrize(
    ("x", "shape", "wanted"),
    [
        (X[:, 0], (1, 4, 5), X[:, :1]), (X.transpose(0, 2, 3, 1), (3, 4, 5), X), (X, (3, 4, 5), X),
        (X[:, :1], (1, 4, 5), X[:, :1]),
    ],
)  # fmt: skip
def test_colour_first_last_or_none(x, shape, wanted):
    source = ArraySource(np.ascontiguousarray(x), np.zeros(10, int), "here")
    assert source.shape == shape
    found = source.read(ROWS)
    np.testing.assert_array_equal(found, wanted[ROWS])
    assert found.flags.c_contiguous


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"y_test": np.array([7, 9, 7, 8])}, "the label 8 is in y_test but not in y_train"),
        ({"x_test": X[:4].astype(np.int16)}, "x_test is int16; expected uint8"),
        ({"x_train": X.astype(np.float32)}, "holds float32; expected rows of uint8"),
        ({"x_train": np.asfortranarray(X)}, "uint8 in Fortran order; expected rows"),
        ({"y_train": Y[:9]}, "has 10 pictures and 9 labels"),
        ({"y_train": 0 * Y, "y_test": 0 * Y[:4]}, "has 1 class; telling pictures apart"),
        ({"x_test": X[:4, :, :3]}, r"training pictures are \(3, 4, 5\) but test pictures \(3, 3, 5\)"),
    ],
)
def test_arrays_that_cannot_be(written, changed, why):
    with pytest.raises(KoopsimError, match=why):
        stream_images(str(written(**changed)))


def test_an_array_that_is_missing_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:4])
    with pytest.raises(KoopsimError, match=r"has no y_test; to be streamed"):
        stream_images(str(tmp_path / "a.npz"))


def test_a_file_that_ends_too_early(tmp_path):
    np.save(tmp_path / "a.npy", X)
    whole = (tmp_path / "a.npy").read_bytes()
    found = npy(tmp_path / "a.npy")
    np.testing.assert_array_equal(found.whole(), X)
    assert (found.offset, found.shape) == (len(whole) - X.nbytes, X.shape)
    (tmp_path / "a.npy").write_bytes(whole[:-1])
    np.testing.assert_array_equal(found[np.array([8])], X[8:9])
    with pytest.raises(KoopsimError, match="ends before its row 9 does"):
        found[np.array([8, 9])]
    with pytest.raises(KoopsimError, match=r"claims the shape \(10, 3, 4, 5\) and ends"):
        npy(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"no array")
    with pytest.raises(KoopsimError, match="is not an array that can be streamed"):
        npy(tmp_path / "a.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_both_versions_of_the_header(tmp_path, version):
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, X, version)
    np.testing.assert_array_equal(npy(tmp_path / "a.npy")[ROWS], X[ROWS])


def test_what_is_compressed_is_loaded_and_not_streamed(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", **arrays())
    with pytest.raises(KoopsimError, match="is compressed, and what is compressed"):
        stream_images(str(tmp_path / "c.npz"))
    assert streamable(str(tmp_path / "c.npz")) is None
    assert streamable(str(tmp_path / "nowhere")) is None
    np.savez(tmp_path / "one.npz", x=X, y=Y)
    assert streamable(str(tmp_path / "one.npz")) is None
    np.savez(tmp_path / "wide.npz", **arrays(x_train=X.astype(np.uint16)))
    assert streamable(str(tmp_path / "wide.npz")) is None
    (tmp_path / "no.npz").write_bytes(b"no archive")
    assert streamable(str(tmp_path / "no.npz")) is None
    np.savez(tmp_path / "s.npz", **arrays())
    assert len(streamable(str(tmp_path / "s.npz")).train) == 10


def test_a_name_and_what_is_no_name(tmp_path):
    found = stream_images("digits")
    assert (found.train.shape, len(found.train), len(found.test), found.loads) == ((1, 8, 8), 1437, 360, True)
    assert stream_images("digits", (4, 6)).test.shape == (1, 6, 4)
    with pytest.raises(KoopsimError, match=r"no dataset, folder or file 'digit' to stream"):
        stream_images("digit")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(KoopsimError, match=r"a\.txt cannot be streamed; expected"):
        stream_images(str(tmp_path / "a.txt"))


def test_identities_tell_data_apart(tmp_path):
    zeros = np.zeros(10, int)
    own = ArraySource(X, zeros, "here").identity()
    assert own == f"None (3, 4, 5) {hashlib.sha256(X.tobytes()).hexdigest()}"  # up to 64 pictures: all of them
    many = RANDOM.integers(0, 256, (200, 1, 2, 2), np.uint8)
    found = {ArraySource(many, np.zeros(200, int), "here").identity()}
    for row in (0, 199):
        other = many.copy()
        other[row] += 1
        found.add(ArraySource(other, np.zeros(200, int), "here").identity())
    assert len(found) == 3
    some = many[np.linspace(0, 199, 64).astype(int)]
    assert f"None (1, 2, 2) {hashlib.sha256(some.tobytes()).hexdigest()}" in found
    np.save(tmp_path / "a.npy", X)
    size = (tmp_path / "a.npy").stat().st_size
    assert ArraySource(npy(tmp_path / "a.npy"), zeros, "here").identity() == own.replace("None", str(size))


def test_pictures_of_a_folder_are_decoded_when_asked_for(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        for k, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(np.full((2, 3), 10 * i + k, np.uint8)).save(tmp_path / part / name / f"{i}.png")
    found = stream_images(str(tmp_path))
    assert (found.classes, found.train.shape, found.loads) == (("cat", "dog"), (1, 2, 3), True)
    assert found.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.test.labels.tolist() == [0, 1]
    assert found.train.read(np.array([1, 5]))[:, 0, 0, 0].tolist() == [10, 21]
    sizes = "\0".join(f"{f.name} {f.stat().st_size}" for f in found.test.files)
    assert found.test.identity() == f"2 (1, 2, 3) {hashlib.sha256(sizes.encode()).hexdigest()}"
    assert isinstance(found.test, FileSource)
    apart = stream_images(str(tmp_path / "train"))  # a fifth of six for the test, one of each class at least
    assert (len(apart.train), len(apart.test)) == (4, 2)


def test_what_cannot_be_read_is_zero_and_named():
    class Torn(Source):
        shape, labels = (1, 1, 1), np.zeros(5, np.int64)

        def read(self, rows):
            if 3 in rows:
                raise KoopsimError("row 3 is torn")
            return np.full((len(rows), 1, 1, 1), 9, np.uint8)

        def identity(self):
            return ""

    x, good, lost = Torn().read_good(np.array([1, 3, 4]))
    assert (x.ravel().tolist(), good.tolist(), lost) == ([9, 0, 9], [True, False, True], [(3, "row 3 is torn")])
    x, good, lost = Torn().read_good(np.array([1, 4]))
    assert (x.ravel().tolist(), good.tolist(), lost) == ([9, 9], [True, True], [])


def test_images_in_memory_are_a_source():
    images = Images("own", (X, Y // 8), (X[:2], Y[:2] // 8), ("a", "b"))
    found = in_memory(images)
    assert isinstance(found, StreamedImages)
    np.testing.assert_array_equal(found.test.read(np.array([1])), X[1:2])
    assert (found.name, found.classes, found.train.labels.tolist()) == ("own", ("a", "b"), [0, 1] * 5)
