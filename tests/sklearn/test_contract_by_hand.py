"""What of the contract numbers of a fit do not show: weights, threads, pieces, what is settled by the data."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, SIMConfig, SolverConfig
from koopsim.nn import count_parameters
from koopsim.sklearn import DEQClassifier, MonDEQClassifier, SIMClassifier, SIMRegressor, base
from koopsim.sklearn.equilibria import CLOSE, LONG

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
QUICK = {"epochs": 2, "random_state": 0, "width": 4, "lift_dim": 6, "hidden": 5, "batch_size": 8}


def quick(kind=SIMClassifier, **more):
    return kind(**QUICK | more)


def bits(estimator):
    return [t.numpy() for t in estimator.model_.state_dict().values()]


def same(a, b):
    return all(np.array_equal(s, t) for s, t in zip(bits(a), bits(b), strict=True))


def test_the_size_of_weights_does_not_matter():
    ones = quick().fit(X, Y, sample_weight=np.ones(24))
    for factor in (1e-60, 4.0, 2.0**80):
        assert same(ones, quick().fit(X, Y, sample_weight=np.full(24, factor)))


def test_weights_of_rows_and_of_classes_are_multiplied():
    own = quick(class_weight={"yes": 2.0, "no": 0.5})
    given = np.linspace(1, 2, 24)
    by_class = np.where(Y == "yes", 2.0, 0.5)
    np.testing.assert_allclose(own._weights(Y, None, X), by_class)
    np.testing.assert_allclose(own._weights(Y, given, X), given * by_class)
    assert quick()._weights(Y, None, X) is None
    np.testing.assert_allclose(quick()._weights(Y, given, X), given)
    with pytest.raises(ValueError, match="egative"):
        quick().fit(X, Y, sample_weight=-given)


def test_targets_are_numbers_of_classes_or_scaled():
    own = quick()
    own.classes_ = np.array(["a", "b", "c"])
    y, outputs = own._targets(np.array(["c", "a"]), None, True)
    assert (y.tolist(), outputs) == ([2, 0], 3)
    with pytest.raises(ValueError, match="y has the label 'd', which is none of classes"):
        own._targets(np.array(["c", "d"]), None, True)
    number = quick(SIMRegressor)
    y, outputs = number._targets(np.array([1.0, 3.0]), None, True)
    assert (y.tolist(), outputs, y.dtype, number._flat) == ([[-1.0], [1.0]], 1, np.float32, True)
    y, outputs = number._targets(np.array([5.0]), None, False)
    assert y.tolist() == [[3.0]]  # by the first call's mean and deviation
    two = quick(SIMRegressor)
    y, outputs = two._targets(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([3.0, 1.0]), True)
    assert (outputs, two._flat, two._y_mean.tolist()) == (2, False, [1.5, 1.0])


def test_a_regressor_answers_in_its_own_units():
    own = quick(SIMRegressor).fit(X, 100 + 5 * X[:, 0])
    scaled = own._outputs(X)
    assert scaled.shape == (24, 1)
    np.testing.assert_allclose(own.predict(X), scaled[:, 0] * own._y_deviation + own._y_mean)
    column = quick(SIMRegressor).fit(X, 100 + 5 * X[:, :1])
    assert column.predict(X).shape == (24, 1)


def test_probabilities_and_their_logarithms():
    own = quick().fit(X, Y)
    raw = own._outputs(X)
    p = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    np.testing.assert_allclose(own.predict_proba(X), p)
    np.testing.assert_allclose(own.predict_log_proba(X), np.log(p))
    assert own.predict(X).tolist() == own.classes_[raw.argmax(1)].tolist()
    own._answers = lambda X, ask: np.array([[0.0, 5000.0]])
    assert np.isfinite(own.predict_log_proba(X)).all()


def test_rows_are_answered_piece_by_piece_in_float64(monkeypatch):
    own = quick().fit(X, Y)
    whole, seen = own.predict_proba(X), []
    monkeypatch.setattr(base, "ROWS", 10)

    def ask(model, x):
        seen.append((len(x), x.dtype, model.training))
        return model(x)

    np.testing.assert_allclose(own._answers(X, ask), own._outputs(X))
    assert seen == [(10, torch.float64, False)] * 2 + [(4, torch.float64, False)]
    np.testing.assert_allclose(own.predict_proba(X), whole)
    assert next(own.model_.parameters()).dtype == torch.float32


def test_how_much_work_there_is_decides_the_threads(monkeypatch):
    works = []
    monkeypatch.setattr(base, "few_threads", lambda work: (works.append(work), nullcontext())[1])
    own = quick().fit(X, Y)
    size = count_parameters(own.model_)
    own.predict(X[:5])
    monkeypatch.setattr(base, "ROWS", 3)
    own.predict(X[:5])
    assert works == [8 * size, 5 * size, 3 * size]


def test_states_have_as_many_numbers_as_they_say():
    own = quick().fit(X, Y)
    assert own._n_features_out == own.transform(X).shape[1] == 5
    assert quick(scale=False).fit(X, Y)._deviation.tolist() == [1.0] * 3
    scaled = quick().fit(X, Y)
    np.testing.assert_allclose(scaled._inputs(X, torch.device("cpu")), (X - X.mean(0)) / X.std(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("tier", "lift", "fourier"),
    [("single", MLPConfig(3, 4, 1), None), ("two", MLPConfig(3, 4, 1), FourierConfig(10, 2.5)),
     ("rff", IdentityConfig(3), FourierConfig(10, 2.5))],
)  # fmt: skip
def test_the_model_of_a_tier(tier, lift, fourier):
    own = quick(tier=tier, features=10, bandwidth=2.5, rank=2, projector=True)
    assert own._config(3, 2) == SIMConfig(lift, 6, fourier, 2, True, 5, 2, "even")
    assert quick(tier=tier, features=10, bandwidth=2, rank=2)._config(3, 2).rank == 2


def test_the_bandwidth_is_settled_by_the_data_where_it_is_to_be():
    x = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]])
    median = quick(tier="rff", features=10)
    config = median._config(3, 2)
    assert median._settled(config, x, 0).fourier.bandwidth == 4.0
    assert median._settled(config, torch.ones(3, 3), 0).fourier.bandwidth == 1.0  # all rows are one
    told = quick(tier="rff", features=10, bandwidth=2.5)
    assert told._settled(told._config(3, 2), x, 0).fourier.bandwidth == 2.5
    plain = quick(features=3, bandwidth=-1.0)  # which it has not
    assert plain._settled(plain._config(3, 2), x, 0).fourier is None


def test_more_rows_go_on_with_what_was_learnt():
    own = quick().partial_fit(X, Y, classes=["no", "yes"])
    mean, seeds = own._mean.copy(), own._seeds.copy()
    own.partial_fit(X + 5, Y, classes=["yes", "no"])
    assert np.array_equal(own._mean, mean)
    assert np.array_equal(own._seeds, seeds)
    assert (own.n_iter_, len(own.loss_curve_)) == (2, 2)
    assert not hasattr(own, "validation_curve_")
    with pytest.raises(ValueError, match="the first call of partial_fit said"):
        own.partial_fit(X, Y, classes=["no", "maybe"])
    with pytest.raises(ValueError, match="features"):
        own.partial_fit(X[:, :2], Y)
    anew = quick().fit(X, Y)
    assert same(anew, quick().partial_fit(X, Y, classes=["no", "yes"]).fit(X, Y))  # fit forgets
    number = quick(SIMRegressor).partial_fit(X, X[:, 0]).partial_fit(X, X[:, 0] + 9)
    assert number.n_iter_ == 2
    assert abs(number._y_mean[0] - X[:, 0].mean()) < 1e-12


def test_rows_held_out_are_of_every_class_and_of_numbers_any():
    y = np.repeat(["a", "b"], [20, 4])
    own = SIMClassifier(validation_fraction=0.25, random_state=0)
    own._seeds = np.array([1, 2])
    for seed in range(5):
        own._seeds = np.array([1, seed])
        held, kept = own._held_out(np.repeat([0, 1], [20, 4]))
        assert np.unique(y[held], return_counts=True)[1].tolist() == [5, 1]
        assert len(kept) == 18
    number = SIMRegressor(validation_fraction=0.25, random_state=0)
    number._seeds = np.array([1, 2])
    assert len(number._held_out(np.arange(24.0)[:, None])[0]) == 6


def test_an_equilibrium_is_asked_for_more_closely_than_it_was_trained():
    own = MonDEQClassifier(4, epochs=1, random_state=0, batch_size=8).fit(X, Y)
    exact = own._exact(own.model_)
    assert (exact.tol, exact.max_steps) == (CLOSE, LONG)
    close = MonDEQClassifier(4, epochs=1, tolerance=1e-12, max_steps=5000, random_state=0)._exact(
        type("Model", (), {"tol": 1e-12, "max_steps": 5000})()
    )
    assert (close.tol, close.max_steps) == (1e-12, 5000)
    assert own._config(3, 2).max_steps == 300
    deq = DEQClassifier(4, max_steps=17, tolerance=0.01, solver="anderson")._config(3, 2)
    assert deq.forward == SolverConfig("anderson", 17, 0.01)


def test_a_state_that_was_saved_before_it_was_fitted():
    own = quick()
    assert not own.__sklearn_is_fitted__()
    state = own.__getstate__()
    assert "_tensors" not in state
    other = SIMClassifier()
    other.__setstate__(state)
    assert other.get_params() == own.get_params()
    assert "_learnt" not in state
    fitted = quick(early_stopping=True).fit(X, Y)
    again = SIMClassifier()
    again.__setstate__(fitted.__getstate__())
    old, new = fitted._learnt, again._learnt
    assert (new.steps, new.losses, new.held_out) == (old.steps, old.losses, old.held_out)
    assert torch.equal(new.mean, old.mean)
    assert torch.equal(new.square, old.square)
    assert again.validation_curve_ == fitted.validation_curve_
