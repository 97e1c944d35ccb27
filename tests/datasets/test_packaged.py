"""What scikit-learn's package holds is read as scikit-learn reads it, and without importing it."""

import subprocess
import sys

import numpy as np
import pytest

from koopsim.datasets.packaged import packaged
from koopsim.errors import KoopsimError
from koopsim.pictures.sets import _photograph


@pytest.mark.parametrize("name", ["china", "flower"])
def test_a_photograph_is_scikit_learns(name):
    from sklearn.datasets import load_sample_image

    np.testing.assert_array_equal(np.asarray(_photograph(name)), load_sample_image(f"{name}.jpg"))


def test_digits_do_not_import_scikit_learn():
    code = "import sys, koopsim.datasets as d; d.load_images('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(KoopsimError, match=r"has no datasets/data/ink\.csv: .*is not there"):
        packaged("datasets/data/ink.csv")
