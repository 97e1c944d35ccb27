"""The separation of two blocks, written out and bounded."""

import numpy as np
import pytest

from koopsim.spectral import separation


def test_blocks_that_are_written_out(monkeypatch):
    """Up to so many unknowns the operator itself, beyond it the bound; whichever block is the larger."""
    A, B = np.array([[0.5, 0.4], [0, 0.25]], complex), np.array([[1.0, 0.3, 0], [0, 2.0, 0.1], [0, 0, -1.0]], complex)
    exact = separation.separation(A, B)
    assert separation.separation(B[::-1, ::-1].T, A[::-1, ::-1].T) == pytest.approx(exact)
    monkeypatch.setattr(separation, "WRITTEN_OUT", 6)
    assert separation.separation(A, B) == pytest.approx(exact)
    monkeypatch.setattr(separation, "WRITTEN_OUT", 5)
    bound = separation.separation(A, B)
    assert 0.2 * exact < bound < exact
    assert separation.separation(B[::-1, ::-1].T, A[::-1, ::-1].T) == pytest.approx(bound)
    assert separation.separation(A[:1, :1], B) == pytest.approx(
        np.linalg.svd(B - 0.5 * np.eye(3), compute_uv=False)[-1]
    )
