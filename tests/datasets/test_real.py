"""The real sets, where they are on this machine: their checksums and the figures everyone quotes of them."""

import numpy as np
import pytest

from koopsim.datasets import data_folder, inventory, load_images

ROOT = data_folder()  # before the tests hide it
PRESENT = {entry.name for entry in inventory(ROOT) if entry.present}


def here(name):
    return pytest.param(name, marks=pytest.mark.skipif(name not in PRESENT, reason=f"{name} is not in {ROOT}"))


@pytest.mark.parametrize("name", [here("mnist")])
def test_mnist(name):
    images = load_images(name, ROOT)
    assert images.train[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.test[1][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    np.testing.assert_allclose([images.mean[0], images.std[0]], [0.1306604762738429, 0.3081078038564622], rtol=1e-6)


@pytest.mark.parametrize("name", [here("cifar10")])
def test_cifar10(name):
    images = load_images(name, ROOT)
    assert np.bincount(images.train[1]).tolist() == [5000] * 10
    assert [images.classes[y] for y in images.test[1][:4]] == ["cat", "ship", "ship", "airplane"]
    np.testing.assert_allclose(images.mean, [0.49139968, 0.48215841, 0.44653091], atol=1e-8)
    np.testing.assert_allclose(images.std, [0.24703223, 0.24348513, 0.26158784], atol=1e-8)


@pytest.mark.parametrize("name", [here("svhn")])
def test_svhn(name):
    images = load_images(name, ROOT)
    assert np.bincount(images.train[1]).tolist() == [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    assert np.bincount(images.test[1]).tolist() == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    np.testing.assert_allclose(images.mean, [0.4377, 0.4438, 0.4728], atol=1e-4)
