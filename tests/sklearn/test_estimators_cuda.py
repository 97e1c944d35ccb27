"""Estimators trained on a GPU: by captured steps, and used anywhere afterwards."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1

from koopsim.sklearn import DEQRegressor, SIMClassifier, SIMRegressor

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
X, Y = make_friedman1(2000, noise=0.5, random_state=0)


@pytest.mark.parametrize("tier", ["single", "two", "rff"])
def test_as_good_as_on_a_processor(tier):
    """All rows a step: each device deals batches out in an order of its own, which moves "rff" by 0.1 at 30 epochs."""
    here, there = (
        SIMRegressor(tier, epochs=100, batch_size=2000, early_stopping=False, device=device, random_state=0).fit(X, Y)
        for device in ("cuda", "cpu")
    )
    assert abs(here.score(X, Y) - there.score(X, Y)) < 0.05
    assert next(here.model_.parameters()).device.type == "cpu"


def test_early_stopping_going_on_and_pickling():
    found = SIMClassifier(epochs=20, device="cuda", random_state=0).fit(X, Y > 14)
    before = found.n_iter_
    copied = pickle.loads(pickle.dumps(found))
    for each in (found, copied):
        each.partial_fit(X, Y > 14)
    assert found.n_iter_ == before + 1
    np.testing.assert_allclose(found.predict_proba(X), copied.predict_proba(X), atol=1e-3)
    assert DEQRegressor(16, epochs=3, device="cuda", random_state=0).fit(X, Y).score(X, Y) > 0.2
