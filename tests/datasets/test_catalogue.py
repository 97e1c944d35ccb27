"""What is on this machine, line by line; and sizes that pictures are brought to."""

import numpy as np
import pytest
from tiny import place, tiny_cifar, tiny_mnist

from koopsim.datasets import coming
from koopsim.datasets.catalogue import inventory, load_images
from koopsim.datasets.images import Images, stratified_split
from koopsim.datasets.published import OfficialKind
from koopsim.errors import KoopsimError


def test_every_named_set_in_its_order(tmp_path):
    found = inventory(tmp_path)
    assert [(e.name, e.train, e.test, e.shape, e.present) for e in found] == [
        ("cifar10", 50_000, 10_000, (3, 32, 32), False), ("svhn", 73_257, 26_032, (3, 32, 32), False),
        ("mnist", 60_000, 10_000, (1, 28, 28), False), ("digits", 1437, 360, (1, 8, 8), True),
    ]  # fmt: skip
    digits = found[-1]
    assert (digits.missing, digits.bytes, digits.download_bytes, digits.folder) == ((), 0, 0, None)
    mnist = found[2]
    assert (len(mnist.missing), mnist.bytes, mnist.folder) == (4, 0, tmp_path / "mnist")
    assert mnist.download_bytes == 9_912_422 + 28_881 + 1_648_877 + 4_542


def test_what_is_there_and_what_is_to_come(tmp_path):
    source, files, offered = tiny_mnist()
    names = list(files)
    place({n: files[n] for n in names[:2]} | {f"{names[2]}.gz": offered[f"{names[2]}.gz"]}, tmp_path / "mnist")
    missing, there, to_come, folder = OfficialKind(source, "MNIST", 3).on_disk(tmp_path)
    assert (missing, folder) == ((names[3],), tmp_path / "mnist")
    assert there == len(files[names[0]]) + len(files[names[1]]) + len(offered[f"{names[2]}.gz"])
    assert to_come == len(offered[f"{names[3]}.gz"])
    source, _, offered = tiny_cifar()
    place(offered, tmp_path / "cifar10")
    (size,) = map(len, offered.values())  # six parts, one file
    assert OfficialKind(source, "CIFAR-10", 1).on_disk(tmp_path) == ((), size, 0, tmp_path / "cifar10")


def own(height=4, width=6):
    x = np.random.default_rng(0).integers(0, 256, (4, 3, height, width), np.uint8)
    y = np.array([0, 1, 0, 1])
    return Images("own", (x, y), (x[:2], y[:2]), ("a", "b"))


def test_pictures_at_another_size():
    images = own()
    assert images.resized(None) is images
    assert images.resized((6, 4)) is images
    turned = images.resized((4, 6))
    assert (turned.shape, turned.test[0].shape) == ((3, 6, 4), (2, 3, 6, 4))
    assert images.resized((6, 3)).shape == (3, 3, 6)
    assert images.resized((5, 4)).shape == (3, 4, 5)
    np.testing.assert_array_equal(turned.train[1], images.train[1])
    even = Images("even", (np.full((2, 3, 4, 6), 90, np.uint8), np.array([0, 1])), images.test, ("a", "b"))
    assert (even.resized((3, 2)).train[0] == 90).all()


def test_an_npz_is_brought_to_a_size(tmp_path):
    images = own()
    np.savez(tmp_path / "a.npz", x_train=images.train[0], y_train=images.train[1], x_test=images.test[0],
             y_test=images.test[1])  # fmt: skip
    assert load_images(str(tmp_path / "a.npz")).shape == (3, 4, 6)
    assert load_images(str(tmp_path / "a.npz"), size=(2, 3)).shape == (3, 3, 2)
    with pytest.raises(KoopsimError, match="There is no dataset"):
        load_images(str(tmp_path / "b.npz"))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((2, 4, 4), np.uint8), np.array([0, 1])), (np.zeros((2, 1, 4, 4), np.int8), np.array([0, 1])),
        (np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1], np.int32)),
        (np.zeros((2, 1, 4, 4), np.uint8), np.array([[0], [1]])),
    ],
)  # fmt: skip
def test_other_kinds_of_arrays_are_refused(x, y):
    good = np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1])
    for pair in (((x, y), good), (good, (x, y))):
        with pytest.raises(KoopsimError, match="expected uint8"):
            Images("own", *pair, ("a", "b"))


def test_shares_are_rounded_by_the_largest_remainder():
    y = np.repeat([0, 1, 2], [5, 5, 10])
    train, test = stratified_split(y, 6, 0)  # 1.5, 1.5, 3: the first of equals is rounded up
    assert np.bincount(y[test]).tolist() == [2, 1, 3]
    assert sorted([*train, *test]) == list(range(20))
    assert np.bincount(y[stratified_split(y, 1, 0)[1]]).tolist() == [1, 1, 1]  # at least one of each
    assert np.bincount(y[stratified_split(y, 19, 0)[0]]).tolist() == [1, 1, 1]
    assert stratified_split(y, 6, 0)[1].tolist() != stratified_split(y, 6, 1)[1].tolist()
    assert (np.diff(test) > 0).all()


def test_reading_ahead_is_not_waited_for(tmp_path, monkeypatch):
    import threading

    source, files, _ = tiny_cifar()
    begun, go_on = threading.Event(), threading.Event()

    def slow(*words):
        begun.set()
        assert go_on.wait(20)
        return "read"

    monkeypatch.setattr(coming, "CIFAR10", source)
    monkeypatch.setattr(coming, "read_official", slow)
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path))
    place(files, tmp_path / "cifar10")
    late = threading.Timer(2.0, go_on.set)  # else one that waits would wait for ever
    late.start()
    coming.read_ahead("cifar10")
    assert not go_on.is_set()
    late.cancel()
    assert begun.wait(20)
    go_on.set()
    assert coming.when_read(source, tmp_path / "cifar10") == "read"
