"""scikit-learn's own checks of an estimator, all of them, with the few that cannot hold named here and in the docs."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from koopsim.sklearn import DEQClassifier, DEQRegressor, MonDEQClassifier, SIMClassifier, SIMRegressor

# Batches are drawn by rows, so a row twice and a row of weight two are drawn differently; and float32 rounds.
# tests/sklearn/test_estimators.py shows both equal with full batches, up to float32.
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": "batches are drawn by rows, and float32 rounds"}
FAST = [kind(epochs=20, learning_rate=0.02, batch_size=64) for kind in (SIMClassifier, SIMRegressor)]
SOLVED = {"width": 16, "epochs": 20, "learning_rate": 0.03, "batch_size": 64}  # a solve takes its time
ALL = [
    SIMClassifier(), SIMRegressor(), SIMClassifier("two"), SIMRegressor("two"), SIMClassifier("rff"),
    SIMRegressor("rff"), SIMClassifier(projector=True), DEQClassifier(**SOLVED), DEQRegressor(**SOLVED),
    MonDEQClassifier(**SOLVED),
]  # fmt: skip


@parametrize_with_checks(FAST, expected_failed_checks=lambda estimator: EXPECTED)
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(ALL, expected_failed_checks=lambda estimator: EXPECTED)
def test_checks_at_the_defaults(estimator, check):
    check(estimator)


def test_what_fails_is_one_check_of_many():
    names = [check.func.__name__ for _, check in estimator_checks_generator(SIMClassifier())]
    assert len(names) > 40
    assert set(EXPECTED) <= set(names)
