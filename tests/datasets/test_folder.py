"""Pictures of a folder: the form they are brought to, and the values they have there."""

import warnings

import numpy as np
import pytest
from PIL import Image

from koopsim.datasets.blocks import stream_images
from koopsim.datasets.folder import _form, _look, decode, decoded, listed_pictures, read_folder
from koopsim.datasets.inputs import picture_files
from koopsim.datasets.row_splits import TEST, TRAIN
from koopsim.datasets.split_folders import split_folders
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
        assert _form([_look(f) for f in files], tmp_path, None) == shape
    assert [str(w.message).partition(": ")[2].split()[0] for w in said] == ([str(others)] if others else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _form([_look(f) for f in files], tmp_path, (5, 4)) == (1, 4, 5)


def test_one_coloured_picture_makes_three_channels(tmp_path):
    files = [save(tmp_path / "a.png"), save(tmp_path / "b.png", mode="RGB", value=(1, 2, 3))]
    assert _form([_look(f) for f in files], tmp_path, None) == (3, 2, 3)
    assert _form([_look(files[0])], tmp_path, None) == (1, 2, 3)
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


def halves(folder, *names, classes="ab"):
    for k, name in enumerate(names):
        for value, label in enumerate(classes):
            for i in range(2):
                save(folder / name / label / f"{i}.png", value=40 * k + 10 * value + i)
    return folder


@pytest.mark.parametrize(
    ("names", "learnt"),
    [(("TEST", "Train"), 40), (("test", "training"), 40), (("train", "test"), 0)],
)
def test_folders_for_training_and_testing_in_any_case(tmp_path, names, learnt):
    images = read_folder(halves(tmp_path, *names))
    assert images.classes == ("a", "b")
    assert images.train[0][:, 0, 0, 0].tolist() == [learnt + v for v in (0, 1, 10, 11)]
    assert images.test[0][:, 0, 0, 0].tolist() == [40 - learnt + v for v in (0, 1, 10, 11)]
    streamed = stream_images(str(tmp_path))
    np.testing.assert_array_equal(streamed.train.read(np.arange(4)), images.train[0])
    np.testing.assert_array_equal(streamed.test.read(np.arange(4)), images.test[0])


@pytest.mark.parametrize("name", ["val", "Valid", "validation"])
def test_without_a_test_the_validation_is_tested_on(tmp_path, name):
    with pytest.warns(UserWarning, match=rf"has no test/: {name}/ is what is tested on, and .* split off train/"):
        images = read_folder(halves(tmp_path, "train", name))
    assert images.classes == ("a", "b")
    assert images.test[0][:, 0, 0, 0].tolist() == [40, 41, 50, 51]
    with pytest.warns(UserWarning, match="has no test/"):
        assert len(stream_images(str(tmp_path)).test) == 4


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("train", "val", "test"), "has train/ and test/ but also val/: move it away, or its classes into train/"),
        (("train", "TRAINING", "test"), "which means the same as one of them; make them one"),
        (("train", "test", "cats"), "but also cats/: move it away, or its classes into train/"),
        (("test",), "has test/ but no train/; put what is to be learnt from into"),
        (("val", "test"), "but no train/"),
    ],
)
def test_parts_that_do_not_fit_together(tmp_path, names, why):
    halves(tmp_path, *names)
    for read in (read_folder, lambda path: stream_images(str(path))):
        with pytest.raises(KoopsimError, match=why) as error:
            read(tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("names", [("test", "cat"), ("train", "plane", "car"), ("valid", "test", "forged")])
def test_classes_that_are_called_like_parts(tmp_path, names):
    """A train is a class among planes and cars; only with train/ and another part are they parts."""
    assert listed_pictures(halves(tmp_path, *names)).classes == tuple(sorted(names))
    assert split_folders(tmp_path) == {}


def test_a_train_alone_is_split_as_classes_are(tmp_path):
    found = listed_pictures(halves(tmp_path, "train"))
    assert (found.classes, found.cut) == (("a", "b"), None)
    assert split_folders(tmp_path) == {TRAIN: tmp_path / "train"}
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "Test").mkdir()
    assert split_folders(tmp_path) == {TRAIN: tmp_path / "train", TEST: tmp_path / "Test"}


def test_a_class_to_test_on_alone(tmp_path):
    halves(tmp_path, "train", "test")
    save(tmp_path / "test" / "c" / "0.png")
    with pytest.raises(KoopsimError, match=r"test has the class 'c' but .*train has not"):
        listed_pictures(tmp_path)


def test_broken_headers_are_skipped_if_asked_for(tmp_path):
    halves(tmp_path, "train", "test")
    broken = tmp_path / "train" / "a" / "1.png"
    broken.write_bytes(b"\x89PNG and no more")
    with pytest.raises(KoopsimError, match=r"a/1\.png is not a picture"):
        listed_pictures(tmp_path)
    found = listed_pictures(tmp_path, skip=True)
    assert (found.labels, found.cut, len(found.lost)) == ([0, 1, 1, 0, 0, 1, 1], 3, 1)
    assert "a/1.png is not a picture" in found.lost[0]
    streamed = stream_images(str(tmp_path), skip=True)
    assert (streamed.lost, len(streamed.train), len(streamed.test)) == (found.lost, 3, 4)
    with pytest.raises(KoopsimError, match="is not a picture"):
        stream_images(str(tmp_path))
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"")
    with pytest.raises(KoopsimError, match=r"No picture of .*train/a can be read\. The first: .*0\.png"):
        listed_pictures(tmp_path, skip=True)


def test_pictures_of_a_phone_are_counted_and_left_out(tmp_path):
    halves(tmp_path, ".", classes="ab")
    for name in ("a/x.heic", "a/y.HEIC", "b/z.heif", "b/.hidden.heic"):
        (tmp_path / name).write_bytes(b"ftypheic")
    with pytest.warns(UserWarning, match=r"3 pictures end in \.heic, \.heif, which are not read.*to JPEG") as said:
        assert len(listed_pictures(tmp_path).files) == 4
    assert len(said) == 1
    with pytest.warns(UserWarning, match="3 pictures end in"):
        assert len(picture_files([tmp_path])) == 4
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.heic").write_bytes(b"ftypheic")
    with pytest.warns(UserWarning, match="JPEG"), pytest.raises(KoopsimError, match="c has no pictures"):
        listed_pictures(tmp_path)


def test_a_class_of_one_picture_is_named(tmp_path):
    halves(tmp_path, ".")
    save(tmp_path / "c" / "0.png")
    for read in (read_folder, lambda path: stream_images(str(path))):
        with pytest.raises(KoopsimError, match="the class 'c' has fewer than two pictures"):
            read(tmp_path)
