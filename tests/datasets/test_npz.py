"""Arrays of pictures: which axis is the colour, which values are pixels, which labels are one for each."""

import numpy as np
import pytest

from koopsim.datasets.npz import _images, _labels, oriented, read_images, split_in_two
from koopsim.errors import KoopsimError


@pytest.mark.parametrize(
    ("shape", "last"),
    [((9, 4, 5), False), ((9, 4, 5, 3), True), ((9, 4, 5, 1), True), ((9, 3, 4, 5), False), ((9, 1, 4, 5), False),
     ((9, 2, 4, 3), True), ((9, 3, 4, 2), False)],
)  # fmt: skip
def test_where_the_colour_is(shape, last):
    assert oriented(shape, "f") is last


@pytest.mark.parametrize(
    ("shape", "why"),
    [((9, 3, 4, 3), "which axis"), ((9, 1, 4, 3), "which axis"), ((9, 4, 4, 4), "which axis"),
     ((9, 4), r"expected \(n, h, w\)"), ((9, 1, 3, 4, 5), r"expected \(n, h, w\)")],
)  # fmt: skip
def test_where_it_is_not_clear(shape, why):
    with pytest.raises(KoopsimError, match=f"^f has shape .*{why}"):
        oriented(shape, "f")


def test_floats_from_0_to_1_are_bytes():
    x = np.array([[[0.0, 1.0], [0.5, 0.001]]])
    assert _images(x, "f").tolist() == [[[[0, 255], [128, 0]]]]
    for wrong in (x - 0.001, x + 0.001, x * np.nan, x + np.inf):
        with pytest.raises(KoopsimError, match=r"floats must lie in \[0, 1\]"):
            _images(wrong, "f")
    with pytest.raises(KoopsimError, match="it is empty"):
        _images(x[:, :, :0], "f")


def test_one_label_for_each():
    y = np.array([3, 1, 2])
    assert _labels(y, 3, "f").tolist() == _labels(y[:, None], 3, "f").tolist() == [3, 1, 2]
    assert _labels(y.astype(np.uint8), 3, "f").tolist() == [3, 1, 2]
    for wrong in (y[:2], y[None], y.astype(float), y > 1, np.stack([y, y], axis=1)):
        with pytest.raises(KoopsimError, match=r"expected \(3,\) integers or strings"):
            _labels(wrong, 3, "f")


def test_a_fifth_is_for_the_test():
    x, y = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1), np.repeat([0, 1], 10)
    found = split_in_two("own", x, y, ("a", "b"))
    assert (len(found.train[0]), np.bincount(found.test[1]).tolist()) == (16, [2, 2])
    assert found.test[0].ravel().tolist() == [2, 8, 13, 15]  # always the same
    for (own_x, own_y), count in ((found.train, 16), (found.test, 4)):
        assert (own_x.ravel() // 10).tolist() == own_y.tolist()
        assert len(set(own_x.ravel().tolist())) == count
    split_in_two("own", x[:4], np.array([0, 0, 1, 1]), ("a", "b"))
    with pytest.raises(KoopsimError, match="the class 'b' has fewer than two"):
        split_in_two("own", x[:3], np.array([0, 0, 1]), ("a", "b"))
    with pytest.raises(KoopsimError, match="the class 'c' has fewer than two"):
        split_in_two("own", x[:4], np.array([0, 0, 1, 1]), ("a", "b", "c"))


@pytest.mark.parametrize(
    "arrays",
    [{"x": np.zeros((5, 3)), "cost": np.zeros(5)}, {"x": np.zeros((5, 3)), "y": np.zeros(5, int)},
     {"x": np.full((5, 4, 2), -3.0), "y": np.zeros(5, int)}],
)  # fmt: skip
def test_what_is_no_pictures_says_how_else_it_is_read(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(KoopsimError, match="Of sequences say --goal classify, tag or forecast; of a table --target"):
        read_images(tmp_path / "a.npz")
