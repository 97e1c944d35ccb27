"""What is infinite is none in JSON; matrices that are nilpotent, and nothing else."""

import numpy as np
import pytest

from koopsim.spectral import analyze


def test_what_is_infinite_is_none_in_json():
    assert analyze(np.eye(1)).to_dict()["projectors"][0]["separation"] is None
    assert analyze(np.diag([1.0, 0.5])).to_dict()["projectors"][0]["separation"] == pytest.approx(0.5)
    said = analyze(np.diag([1 + 1e-7, 0.5]), 1e-6).to_dict()
    assert said["snapped"][0]["taken"] == [1.0, 0.0]
    assert said["snapped"][0]["distance"] == pytest.approx(1e-7, rel=1e-3)
    assert said["snapped"][0]["error"] == pytest.approx(1e-6 * np.hypot(1, 0.5), rel=1e-3)
    assert said["distance"] == pytest.approx(1e-7 / np.hypot(1, 0.5), rel=1e-3)


@pytest.mark.parametrize("size", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize("n", [2, 3, 60])
def test_a_single_coupling_in_units_of_its_own(n, size):
    """Balanced, it is as small as may be: its square is a number still, and so are the residuals."""
    A = size * np.eye(n, k=n - 1)
    for M in (A, A.T):
        verdict = analyze(M)
        assert verdict.case == "origin"
        assert verdict.certain
        assert np.all(verdict.residuals <= 1e-12)
        assert not np.any(verdict.at(2))
