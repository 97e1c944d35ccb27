"""Pictures as a classifier sees them, by hand: bytes * scale + shift, and back."""

import json

import numpy as np
import pytest
from PIL import Image

from koopsim.datasets.images import Images
from koopsim.datasets.inputs import ImageInputs, inputs_from_dict, picture_files, read_inputs, write_inputs
from koopsim.errors import KoopsimError

Y = np.array([0, 1], np.int64)


def images(*channels):
    """Two pictures of 1 x 2: of each channel the four pixels."""
    x = np.array([[[c[:2]] for c in channels], [[c[2:]] for c in channels]], np.uint8)
    return Images("own", (x, Y), (x, Y), ("a", "b"))


def test_the_training_pixels_have_mean_0_and_deviation_1_and_a_still_channel_stays():
    found = ImageInputs.of(images([0, 255, 255, 0], [51] * 4, [10, 20, 30, 40]))
    assert (found.classes, found.shape) == (("a", "b"), (3, 1, 2))
    still = np.float32(1 / 255), np.float32(-0.2)
    last = np.array([10, 20, 30, 40.0]) / 255
    np.testing.assert_allclose(found.scale, [2 / 255, still[0], 1 / (255 * last.std())], rtol=1e-7)
    np.testing.assert_allclose(found.shift, [-1, still[1], -last.mean() / last.std()], rtol=1e-6)
    np.testing.assert_allclose(found.mean, [0.5, 0.2, last.mean()], rtol=1e-6)
    np.testing.assert_allclose(found.deviation, [0.5, 1, last.std()], rtol=1e-6)
    x = images([0, 255, 255, 0], [51] * 4, [10, 20, 30, 40]).train[0]
    seen = found.normalised(x)
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen[:, 0].ravel(), [-1, 1, 1, -1], atol=1e-6)
    np.testing.assert_allclose(seen[:, 1], 0, atol=1e-6)
    np.testing.assert_allclose(seen[:, 2].ravel(), (last - last.mean()) / last.std(), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "scales", "shifts"),
    [((2, 4, 4), 2, 2), ((1, 4, 4), 2, 1), ((1, 4, 4), 1, 0), ((3, 0, 4), 3, 3), ((4, 4, 4), 4, 4)],
)
def test_inputs_that_cannot_be(shape, scales, shifts):
    with pytest.raises(KoopsimError, match=f"{scales} scales and {shifts} shifts"):
        ImageInputs(("a", "b"), shape, (1.0,) * scales, (0.0,) * shifts)


def test_the_smallest_that_can_be():
    assert ImageInputs(("a", "b"), (1, 1, 1), (1.0,), (0.0,)).shape == (1, 1, 1)
    assert ImageInputs(("a", "b"), (3, 1, 1), (1.0,) * 3, (0.0,) * 3).shape == (3, 1, 1)


def test_files_and_pillows_pictures_are_read_alike(tmp_path):
    picture = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    picture.save(tmp_path / "p.png")
    own = ImageInputs(("a", "b"), (1, 2, 3), (1.0,), (0.0,))
    found = own.read([picture, tmp_path / "p.png", str(tmp_path / "p.png")])
    assert found.tolist() == [np.arange(6).reshape(1, 2, 3).tolist()] * 3
    for wrong in (found.astype(float), found[0], found[..., :2]):
        with pytest.raises(KoopsimError, match=r"this model takes uint8 \(n, 1, 2, 3\)"):
            own.normalised(wrong)


def test_they_are_written_beside_a_run_and_read_again(tmp_path):
    assert read_inputs(tmp_path) is None
    own = ImageInputs(("a", "b"), (1, 2, 3), (0.5,), (-1.0,))
    write_inputs(tmp_path, own)
    assert read_inputs(tmp_path) == own
    assert inputs_from_dict(json.loads(json.dumps(own.as_dict())), "f") == own
    with pytest.raises(KoopsimError, match=r"^f"):
        inputs_from_dict([1], "f")


def test_pictures_are_found_in_a_fixed_order(tmp_path):
    for name in ("b/2.png", "b/1.JPG", "b/.3.png", "b/4.txt", "a.gif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert picture_files([tmp_path / "b", tmp_path / "a.gif"]) == [
        tmp_path / "b/1.JPG", tmp_path / "b/2.png", tmp_path / "a.gif"]  # fmt: skip
    assert picture_files([tmp_path / "b/4.txt"]) == [tmp_path / "b/4.txt"]  # as it was named, so it is tried
    (tmp_path / "none").mkdir()
    for path, why in ((tmp_path / "none", "holds no pictures; expected some of"), (tmp_path / "x", "no picture")):
        with pytest.raises(KoopsimError, match=why):
            picture_files([path])
