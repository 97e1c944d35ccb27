"""The triangle of a regression and what is whitened of it: few rows, small columns, ranks at their thresholds."""

import numpy as np
from numpy.testing import assert_allclose

from koopsim.spectral.factor import Columns
from koopsim.spectral.regression import Settings, Triangle, _sizes, _whiten

RNG = np.random.default_rng


def test_triangles_of_few_rows():
    t = Triangle(leading=True)
    L = RNG(0).standard_normal((6, 3))
    for rows in (L[:1], L[1:2], L[2:6]):
        t.add(Columns(rows, rows, rows[:, :0]))
    assert t.R.shape == (4, 7)
    assert t.rows == 6
    assert_allclose(t.R[:3, :3].T @ t.R[:3, :3], L.T @ L, atol=1e-12)
    full = Triangle()
    full.add(Columns(L[:2], L[:2], L[:2, :0]))
    assert full.square().shape == (7, 7)
    assert not full.square()[2:].any()
    assert_allclose(_sizes(np.array([[3e-200, 0.0], [4e-200, 0.0]])), [5e-200, 0])
    U, s, up, down = _whiten(np.diag([2.0, 4.0]), 4, Settings(scaled=False))
    assert U is None
    assert_allclose(up, np.diag([1.0, 2.0]))
    assert_allclose(down, np.diag([1.0, 0.5]))
    assert s.tolist() == [1, 1]
    for small, rank in ((1e-14, 2), (0.5e-15, 1)):  # eight roundings of two columns
        U, s, up, down = _whiten(np.diag([1.0, small]), 1, Settings(scaled=False))
        assert s.size == rank
        assert_allclose(np.diag(up)[:rank], [1.0, small][:rank])
    assert _whiten(np.diag([1.0, 0.5]), 1, Settings(scaled=False, rtol=0.5))[1].size == 1  # not above it
    assert _whiten(np.zeros((2, 2)), 1, Settings(rank=2))[1].size == 1
    noise = np.diag([9.0, 1.0, 1.0, 1.0, 0.9])
    assert _whiten(noise, 100, Settings(scaled=False, rank="auto"))[1].size == 1
    edge = np.diag([1.7, 1.0, 1.0, 1.0, 0.9])  # above noise of an aspect of a twentieth, not of one
    assert _whiten(edge, 100, Settings(scaled=False, rank="auto"))[1].tolist() == [1.7]
    for width, kept in ((5, 2), (50, 1), (500, 2), (100, 1)):
        two = np.diag([9.0, 1.7, 1.0, 1.0, 0.9])
        auto = Settings(scaled=False, rank="auto", width=width)
        assert _whiten(two, 100 if width < 500 else 25, auto)[1].size == kept
