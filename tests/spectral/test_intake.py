"""States that are taken as they are, and those that are looked at."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, intake
from koopsim.spectral.intake import checked_parts, checked_states

RNG = np.random.default_rng


def test_states_that_are_taken_as_they_are():
    """Good arrays are not copied; all others are looked at by scikit-learn."""
    model = EDMD()
    z = RNG(0).standard_normal((4, 2))
    assert checked_states(model, z, True) is z
    assert model.n_features_in_ == 2
    wide = np.asfortranarray(z)
    assert checked_states(model, wide) is wide
    big = np.full((3, 2), 1e149)  # as large as can be squared
    assert_allclose(checked_states(model, big), big)
    assert checked_states(model, z.astype(np.float32)).dtype == np.float64
    assert checked_states(model, z.tolist()).dtype == np.float64
    assert checked_states(model, np.arange(4).reshape(2, 2)).dtype == np.float64
    assert checked_states(model, z + 1j).dtype == np.complex128
    for bad, sentence in ((z[:, :1], "features"), (z[:0], "minimum"), (z[0], "Reshape"), (z[None], "dim"),
                          (np.where(z > z.min(), z, np.nan), "1 of 8 values"), (z * [1, np.inf], "4 of 8"),
                          (z + 1j * np.inf, "8 of 8")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            checked_states(model, bad)
    with pytest.raises(ValueError, match="minimum of 2"):
        checked_states(model, z[:1], False, 2)
    assert checked_parts(model, (z[:1], z[:1]), None, False)[0] == "pairs"
    for one in (z[:1], [z, z[:1]]):
        with pytest.raises(ValueError, match=r"minimum of 2|at least 2"):
            checked_parts(model, one, None, False)
    assert [len(p) for p in checked_parts(model, [z, z[:2]], None, False)[1]] == [4, 2]


def test_good_states_are_not_looked_at_twice(monkeypatch):
    """What scikit-learn would let pass unchanged it is not asked about: its checks cost as much as a small fit."""
    asked = []
    real = intake.validate_data
    monkeypatch.setattr(intake, "validate_data", lambda *a, **k: asked.append(1) or real(*a, **k))
    model = EDMD()
    z = RNG(0).standard_normal((4, 2))
    checked_states(model, z, True)
    checked_states(model, z[:1])
    assert asked == []
    for odd in (z.astype(np.float32), z.tolist(), z + 0j):
        checked_states(model, odd)
    assert len(asked) == 3
    model.feature_names_in_ = np.array(["a", "b"], dtype=object)
    with pytest.warns(UserWarning, match="feature names"):
        checked_states(model, z)
    assert len(asked) == 4
