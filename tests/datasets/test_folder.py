"""Pictures of a folder: the form they are brought to, and the values they have there."""

import warnings

import numpy as np
import pytest
from PIL import Image

from koopsim.datasets.folder import _form, _look, decode, decoded, listed_pictures, read_folder
from koopsim.errors import KoopsimError


def save(path, size=(3, 2), mode="L", value=7):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


@pytest.mark.parametrize(
    ("sizes", "shape", "others"),
    [
        ([(3, 2), (3, 2), (2, 2)], (1, 2, 3), 1),
        ([(3, 2), (2, 2)], (1, 2, 2), 1),  # as common: the smaller
        ([(2, 3), (3, 2)], (1, 3, 2), 1),  # as small: the narrower
        ([(5, 1), (3, 2), (2, 4)], (1, 1, 5), 2),  # the fewest pixels, though the widest
        ([(3, 2)], (1, 2, 3), 0),
    ],
)
def test_the_commonest_size(tmp_path, sizes, shape, others):
    files = [save(tmp_path / f"{i}.png", size) for i, size in enumerate(sizes)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert _form(files, tmp_path, None) == shape
    assert [str(w.message).partition(": ")[2].split()[0] for w in said] == ([str(others)] if others else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _form(files, tmp_path, (5, 4)) == (1, 4, 5)


def test_one_coloured_picture_makes_three_channels(tmp_path):
    files = [save(tmp_path / "a.png"), save(tmp_path / "b.png", mode="RGB", value=(1, 2, 3))]
    assert _form(files, tmp_path, None) == (3, 2, 3)
    assert _form(files[:1], tmp_path, None) == (1, 2, 3)
    assert _look(files[1]) == ("RGB", (3, 2))


def test_the_cut_between_training_and_testing(tmp_path):
    for split, counts in (("train", (2, 1)), ("test", (0, 2))):
        for name, count in zip("ab", counts, strict=True):
            for i in range(count):
                save(tmp_path / split / name / f"{i}.png", value=10 * i + count)
    found = listed_pictures(tmp_path)
    assert (found.labels, found.classes, found.cut) == ([0, 0, 1, 1, 1], ("a", "b"), 3)
    images = read_folder(tmp_path)
    assert images.train[0][:, 0, 0, 0].tolist() == [2, 12, 1]
    assert images.test[0][:, 0, 0, 0].tolist() == [2, 12]
    assert images.test[1].tolist() == [1, 1]
    apart = listed_pictures(tmp_path / "train")
    assert (apart.cut, apart.labels) == (None, [0, 0, 1])


@pytest.mark.parametrize(("value", "seen"), [(0, 0), (255, 0), (256, 1), (65535, 255)])
def test_sixteen_bits_are_eight(value, seen):
    picture = Image.fromarray(np.full((2, 3), value, np.int32))
    assert decoded(picture, 1, (3, 2)).tolist() == [[[seen] * 3] * 2]


@pytest.mark.parametrize("value", [-1, 65536])
def test_more_than_sixteen_bits_are_refused(value):
    with pytest.raises(ValueError, match="do not fit in 16 bits"):
        decoded(Image.fromarray(np.full((2, 3), value, np.int32)), 1, (3, 2))
    with pytest.raises(ValueError, match="its pixels are floats"):
        decoded(Image.fromarray(np.full((2, 3), 0.5, np.float32)), 1, (3, 2))


def test_a_picture_is_channels_rows_columns(tmp_path):
    values = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(values).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.png", 3, (3, 2)), values.transpose(2, 0, 1))
    assert decode(tmp_path / "a.png", 3, (5, 4)).shape == (3, 4, 5)
    assert decode(tmp_path / "a.png", 1, (3, 2)).shape == (1, 2, 3)


def test_a_folder_of_files_alone_is_no_classes(tmp_path):
    save(tmp_path / "a.png")
    with pytest.raises(KoopsimError, match="has no folders; expected one a class"):
        listed_pictures(tmp_path)
