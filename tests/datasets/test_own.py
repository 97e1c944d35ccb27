"""A user's own pictures: folders and .npz."""

import numpy as np
import pytest
from PIL import Image

from koopsim.datasets import load_images
from koopsim.errors import KoopsimError


def random_picture(seed=0, size=(6, 4), mode="RGB"):
    channels = {"RGB": (3,), "L": (), "RGBA": (4,)}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    return Image.fromarray(values)


def fill(folder, classes=("cat", "dog"), count=5, **picture):
    for c, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            random_picture(100 * c + i, **picture).save(folder / name / f"{i}.png")
    return folder


def refused(path) -> str:
    with pytest.raises(KoopsimError) as error:
        load_images(str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- folders


def test_a_folder_is_split_the_same_each_time(tmp_path):
    fill(tmp_path, ("dog", "cat", "ant"), 10)
    images = load_images(str(tmp_path))
    assert images.classes == ("ant", "cat", "dog")
    assert images.shape == (3, 4, 6)
    assert np.bincount(images.train[1]).tolist() == [8, 8, 8]
    assert np.bincount(images.test[1]).tolist() == [2, 2, 2]
    again = load_images(str(tmp_path))
    np.testing.assert_array_equal(images.test[0], again.test[0])
    everything = {x.tobytes(): int(y) for s in (images.train, images.test) for x, y in zip(*s, strict=True)}
    assert len(everything) == 30
    for c, name in enumerate(images.classes):
        for file in (tmp_path / name).iterdir():
            assert everything[np.asarray(Image.open(file)).transpose(2, 0, 1).tobytes()] == c


def test_train_and_test_folders_are_kept_apart(tmp_path):
    fill(tmp_path / "train", count=4)
    fill(tmp_path / "test", count=3)
    images = load_images(str(tmp_path))
    assert images.train[1].tolist() == [0] * 4 + [1] * 4
    assert images.test[1].tolist() == [0] * 3 + [1] * 3
    expected = np.asarray(random_picture(102)).transpose(2, 0, 1)
    np.testing.assert_array_equal(images.test[0][5], expected)


def test_train_is_a_class_among_vehicles(tmp_path):
    assert load_images(str(fill(tmp_path, ("bus", "train")))).classes == ("bus", "train")


def test_grey_pictures_have_one_channel(tmp_path):
    fill(tmp_path, mode="L")
    assert load_images(str(tmp_path)).shape == (1, 4, 6)
    random_picture().save(tmp_path / "cat" / "colour.png")
    assert load_images(str(tmp_path)).shape == (3, 4, 6)


def every_pixel(tmp_path, picture, name="0.png", **options):
    """The array of a picture that is alone in its class, among grey or coloured others."""
    for split in ("train", "test"):
        for c in "ab":
            (tmp_path / split / c).mkdir(parents=True)
            picture.save(tmp_path / split / c / name, **options)
    return load_images(str(tmp_path)).train[0][0]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    values = np.array([[0, 255, 256], [0x8000, 0xFF00, 0xFFFF]], np.uint16)
    x = every_pixel(tmp_path, Image.fromarray(values))
    assert x.tolist() == [[[0, 0, 1], [128, 255, 255]]]


def test_transparency_lies_on_white(tmp_path):
    values = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
    x = every_pixel(tmp_path, Image.fromarray(values))
    assert x.transpose(1, 2, 0).tolist() == [[[255, 0, 0], [255, 255, 255], [204, 204, 204]]]


def test_palettes_become_colours(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    x = every_pixel(tmp_path, picture)
    assert x.transpose(1, 2, 0).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_a_palette_with_a_transparent_colour(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    x = every_pixel(tmp_path, picture, "0.gif", transparency=1)
    assert x.transpose(1, 2, 0).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_black_and_white_bits(tmp_path):
    picture = Image.new("1", (2, 1))
    picture.putpixel((1, 0), 1)
    assert every_pixel(tmp_path, picture).tolist() == [[[0, 255]]]


def test_a_photo_on_its_side_is_put_upright(tmp_path):
    values = np.array([[10, 20, 30], [40, 50, 60]], np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    x = every_pixel(tmp_path, Image.fromarray(values), exif=exif)
    np.testing.assert_array_equal(x[0], np.rot90(values, -1))


def test_other_sizes_are_made_to_fit_and_told_of(tmp_path):
    fill(tmp_path)
    big = np.zeros((8, 40, 3), np.uint8)
    big[:, 12:28] = 77  # the middle 12 x 8 is what covers 6 x 4
    Image.fromarray(big).save(tmp_path / "cat" / "big.png")
    with pytest.warns(UserWarning, match="1 of 11 pictures are not 6 x 4"):
        images = load_images(str(tmp_path))
    x = np.concatenate([images.train[0], images.test[0]])
    assert x.shape == (11, 3, 4, 6)
    assert any((picture[:, :, 2:-2] == 77).all() for picture in x)


def test_what_is_no_picture_is_left_alone(tmp_path):
    fill(tmp_path)
    (tmp_path / "README.txt").write_text("hello")
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    (tmp_path / "cat" / "._0.png").write_text("macOS leaves these")
    (tmp_path / ".git").mkdir()
    assert len(load_images(str(tmp_path)).train[1]) == 8


@pytest.mark.parametrize("damage", [lambda d: b"hello", lambda d: d[: len(d) // 2], lambda d: b"", lambda d: d[:30]])
def test_a_broken_picture_is_refused_by_name(damage, tmp_path):
    fill(tmp_path, size=(40, 30))
    file = tmp_path / "dog" / "3.png"
    file.write_bytes(damage(file.read_bytes()))
    assert str(file) in refused(tmp_path)


def test_folders_that_cannot_be_used(tmp_path):
    assert "has no folders" in refused(tmp_path)
    fill(tmp_path / "one", ("cat",))
    assert "1 class" in refused(tmp_path / "one")
    fill(tmp_path / "empty")
    (tmp_path / "empty" / "emu").mkdir()
    assert "empty/emu has no pictures" in refused(tmp_path / "empty")
    fill(tmp_path / "rare", count=3)
    fill(tmp_path / "rare", ("emu",), count=1)
    assert "'emu' has fewer than two" in refused(tmp_path / "rare")
    fill(tmp_path / "s" / "train")
    fill(tmp_path / "s" / "test", ("cat", "emu"))
    assert "'emu'" in refused(tmp_path / "s")
    fill(tmp_path / "v" / "train")
    fill(tmp_path / "v" / "test")
    fill(tmp_path / "v" / "val")
    assert "also val/" in refused(tmp_path / "v")


# ---------------------------------------------------------------- npz

X = np.random.default_rng(0).integers(0, 256, (20, 5, 6, 3), dtype=np.uint8)
Y = np.arange(20) % 4


def npz(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return tmp_path / "a.npz"


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (X, X.transpose(0, 3, 1, 2)),
        (X.transpose(0, 3, 1, 2), X.transpose(0, 3, 1, 2)),
        (X[..., 0], X[:, None, :, :, 0]),
        (X[..., :1], X[:, None, :, :, 0]),
        (X / 255, X.transpose(0, 3, 1, 2)),
        ((X / 255).astype(np.float32), X.transpose(0, 3, 1, 2)),
    ],
    ids=["nhwc", "nchw", "nhw", "nhw1", "float64", "float32"],
)
def test_npz_in_every_layout(x, expected, tmp_path):
    images = load_images(str(npz(tmp_path, x_train=x[:12], y_train=Y[:12], x_test=x[12:], y_test=Y[12:, None])))
    np.testing.assert_array_equal(np.concatenate([images.train[0], images.test[0]]), expected)
    np.testing.assert_array_equal(np.concatenate([images.train[1], images.test[1]]), Y)
    assert images.classes == ("0", "1", "2", "3")
    assert images.train[0].dtype == np.uint8


def test_npz_to_be_split(tmp_path):
    images = load_images(str(npz(tmp_path, x=X, y=Y)))
    assert np.bincount(images.train[1]).tolist() == [4] * 4
    assert np.bincount(images.test[1]).tolist() == [1] * 4


def test_npz_labels_by_value(tmp_path):
    names = np.array(["pear", "apple", "fig", "kiwi"])[Y]
    images = load_images(str(npz(tmp_path, x_train=X, y_train=names, x_test=X, y_test=names)))
    assert images.classes == ("apple", "fig", "kiwi", "pear")
    assert images.train[1][:4].tolist() == [3, 0, 1, 2]
    images = load_images(str(npz(tmp_path, x_train=X, y_train=Y * 10 - 5, x_test=X, y_test=Y * 10 - 5)))
    assert images.classes == ("-5", "5", "15", "25")
    np.testing.assert_array_equal(images.train[1], Y)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": X}, "holds x; expected"),
        ({"x": X.astype(float), "y": Y}, r"goes from 0 to 255; floats must lie in \[0, 1\]"),
        ({"x": np.where(X > 9, np.nan, 0.0), "y": Y}, r"floats must lie in \[0, 1\]"),
        ({"x": X.astype(int), "y": Y}, "int64; expected uint8"),
        ({"x": X[:, :3], "y": Y}, "which axis is the colour"),
        ({"x": np.zeros((20, 5, 6, 7), np.uint8), "y": Y}, "which axis is the colour"),
        ({"x": X.reshape(20, -1), "y": Y}, r"shape \(20, 90\)"),
        ({"x": X, "y": Y[:-1]}, r"\(19,\); expected \(20,\)"),
        ({"x": X, "y": np.eye(4)[Y]}, "argmax"),
        ({"x": X, "y": Y * 0.5}, "float64"),
        ({"x": X, "y": np.zeros(20, int)}, "1 class"),
        ({"x": X, "y": np.arange(20)}, "'0' has fewer than two"),
        ({"x": X[:0], "y": Y[:0]}, "empty"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, "the label 4 is in y_test but not in y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :4], "y_test": Y}, "test images"),
        ({"x": np.array([{}] * 20), "y": Y}, "plain arrays"),
    ],
)
def test_npz_that_cannot_be_used(arrays, why, tmp_path):
    path = npz(tmp_path, **arrays)
    with pytest.raises(KoopsimError, match=why) as error:
        load_images(str(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_npz_is_refused_by_name(tmp_path):
    path = npz(tmp_path, x=X, y=Y)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"hello", whole[:400] + b"!!!!" + whole[404:]):
        path.write_bytes(damaged)
        assert str(path) in refused(path)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    assert "neither a folder" in refused(tmp_path / "a.csv")
