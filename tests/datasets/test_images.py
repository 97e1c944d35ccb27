import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from koopsim.datasets import Images, load_images
from koopsim.datasets.folder import _look
from koopsim.datasets.images import stratified_split
from koopsim.datasets.reading import fingerprint
from koopsim.errors import KoopsimError


def some(n=6, shape=(3, 4, 5), seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n, dtype=np.int64) % 2


def test_mean_and_std_are_those_of_the_training_pixels():
    train, test = some(50), some(4, seed=1)
    images = Images("a", train, test, ("x", "y"))
    np.testing.assert_allclose(images.mean, (train[0] / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(images.std, (train[0] / 255).std((0, 2, 3)), rtol=1e-10)
    assert images.shape == (3, 4, 5)


@pytest.mark.parametrize(
    ("train", "test", "classes", "why"),
    [
        ((some()[0], some()[1] + 1), some(), ("x", "y"), "train: there is a label 2; labels go from 0 to 1"),
        (some(), (some()[0], some()[1][:-1]), ("x", "y"), "test: images are"),
        ((some()[0].astype(float), some()[1]), some(), ("x", "y"), "float64"),
        (some(), some(shape=(1, 4, 5)), ("x", "y"), r"\(3, 4, 5\) but test images \(1, 4, 5\)"),
        (some(), some(0), ("x", "y"), "no test images"),
        (some(), some(), ("x",), "1 class"),
    ],
)
def test_images_that_do_not_fit_are_refused(train, test, classes, why):
    with pytest.raises(KoopsimError, match=why):
        Images("a", train, test, classes)


@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.floats(0.05, 0.6), st.integers(0, 3))
def test_a_split_is_a_partition_in_shares(counts, share, seed):
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    wanted = round(share * len(y))
    train, test = stratified_split(y, wanted, seed)
    assert sorted([*train, *test]) == list(range(len(y)))
    for c, count in enumerate(counts):
        got = int((y[test] == c).sum())
        assert 1 <= got <= count - 1
        assert got in (1, count - 1) or abs(got - wanted * count / len(y)) < 1
    again = stratified_split(y, wanted, seed)
    np.testing.assert_array_equal(again[1], test)


def test_digits():
    images = load_images("digits")
    assert images.shape == (1, 8, 8)
    assert len(images.train[1]) == 1437
    assert len(images.test[1]) == 360
    assert np.bincount(images.test[1]).min() >= 34
    from sklearn.datasets import load_digits

    ink, labels = load_digits(return_X_y=True)
    ours = np.concatenate([images.train[0], images.test[0]]).reshape(1797, 64).astype(int)
    assert ours.max() == 255
    y = np.concatenate([images.train[1], images.test[1]])
    rows = {(tuple(row), label) for row, label in zip(ours.tolist(), y.tolist(), strict=True)}
    theirs = {(tuple(round(v * 255 / 16) for v in row), label) for row, label in zip(ink.tolist(), labels, strict=True)}
    assert rows == theirs


def test_digits_are_split_the_same_everywhere():
    """Figures in results/ were measured on this very split."""
    assert fingerprint(load_images("digits").test[0])[:16] == "40a68871a5133e25"


def test_an_unknown_name_says_what_is_known():
    with pytest.raises(KoopsimError, match=r"no dataset, folder or \.npz 'cifar'. Did you mean 'cifar10'\?"):
        load_images("cifar")


def test_a_named_set_that_is_absent_says_how_to_get_it(tmp_path):
    with pytest.raises(KoopsimError, match=f"SVHN, cropped digits is not in {tmp_path}/svhn. .*koopsim data get svhn"):
        load_images("svhn", tmp_path)


def test_the_first_label_that_is_none_is_named():
    x, good = np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1])
    for bad, named in (([0, 2, 9], "2"), ([1, -1, 0], "-1")):
        with pytest.raises(KoopsimError, match=rf"train: there is a label {named}; labels go from 0 to 1"):
            Images("x", (x, np.array(bad)), (x, good), ("a", "b"))
    Images("x", (x, good), (x, good), ("a", "b"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_on_its_side_is_measured_upright(orientation, tmp_path):
    picture = Image.new("L", (6, 4))
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "a.jpg", exif=exif)
    assert _look(tmp_path / "a.jpg") == ("L", (4, 6) if orientation >= 5 else (6, 4))
