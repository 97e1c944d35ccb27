"""The estimators on scikit-learn's contract, and what the contract does not say: bits, threads, files."""

import pickle
import sys
import threading

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_friedman1
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from koopsim.config import Recipe
from koopsim.engine.threads import few_threads
from koopsim.errors import KoopsimError
from koopsim.implicit.rows import RowDEQ
from koopsim.nn import SIM
from koopsim.sklearn import DEQClassifier, DEQRegressor, MonDEQClassifier, SIMClassifier, SIMRegressor
from koopsim.sklearn.base import RowEstimator, moments
from koopsim.sklearn.fitted import Learnt, learn, untrained_model
from koopsim.spectral import EDMD
from koopsim.tasks.base import Samples
from koopsim.tasks.row_losses import squares
from koopsim.tasks.table import ENOUGH

X, Y = load_iris(return_X_y=True)
XR, YR = make_friedman1(200, random_state=0)
SMALL = {"epochs": 8, "random_state": 0, "learning_rate": 8e-3, "early_stopping": False}
SMALLER = SMALL | {"epochs": 8, "width": 8, "batch_size": 75, "learning_rate": 0.05}
CLASSIFIERS = [
    SIMClassifier(**SMALL), SIMClassifier("two", **SMALL), SIMClassifier("rff", **SMALL),
    SIMClassifier(projector=True, rank=5, **SMALL), DEQClassifier(**SMALLER), MonDEQClassifier(**SMALLER),
]  # fmt: skip
REGRESSORS = [
    SIMRegressor(**SMALL),
    SIMRegressor("two", **SMALL),
    SIMRegressor("rff", **SMALL),
    DEQRegressor(**SMALLER),
]


def bits(estimator: RowEstimator) -> list[np.ndarray]:
    return [t.numpy() for t in estimator.model_.state_dict().values()]


def equal(a: RowEstimator, b: RowEstimator) -> bool:
    return all(np.array_equal(s, t) for s, t in zip(bits(a), bits(b), strict=True))


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'tier', '')}")
def test_classifiers(estimator):
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    found = clone(estimator).fit(X, names)
    assert set(found.predict(X)) <= set(names)
    p = found.predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (found.classes_[p.argmax(1)] == found.predict(X)).all()
    assert found.score(X, names) > 0.6
    assert found.transform(X).shape == (150, len(found.get_feature_names_out()))
    again = clone(estimator).fit(X, names)
    assert equal(found, again)
    assert not equal(found, clone(estimator).set_params(random_state=1).fit(X, names))


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'tier', '')}")
def test_regressors_of_one_number_and_of_two(estimator):
    found = clone(estimator).fit(XR, 1e3 * YR + 5e4)
    assert found.predict(XR).shape == (200,)
    assert found.score(XR, 1e3 * YR + 5e4) > (0.6 if isinstance(found, SIMRegressor) else 0.0)
    both = clone(estimator).fit(XR, np.stack([YR, -2 * YR], axis=1))
    assert both.predict(XR).shape == (200, 2)
    column = clone(estimator).fit(XR, YR[:, None])
    assert column.predict(XR).shape == (200, 1)
    assert equal(found, clone(estimator).fit(XR, 1e3 * YR + 5e4))


def test_tiers_are_the_papers():
    kinds = {tier: SIMClassifier(tier, **SMALL).fit(X, Y).model_ for tier in ("single", "two", "rff")}
    assert all(isinstance(model, SIM) for model in kinds.values())
    assert isinstance(kinds["single"].psi, torch.nn.Identity)
    assert isinstance(kinds["rff"].mu, torch.nn.Identity)
    assert isinstance(DEQClassifier(**SMALLER).fit(X, Y).model_, RowDEQ)
    exact = SIMClassifier(projector=True, rank=7, **SMALL).fit(X, Y).model_
    assert exact.limit.rank == 7
    assert float(exact.limit.invariance_defect().detach()) < 1e-5


def test_the_bandwidth_is_the_median_distance():
    found = SIMRegressor("rff", features=2000, **SMALL | {"epochs": 1}).fit(XR, YR)
    x = torch.as_tensor((XR - XR.mean(0)) / XR.std(0))
    median = float(torch.pdist(x).median())
    w = found.model_.psi.frequencies
    assert abs(float(w.std()) * median - 1) < 0.05  # w ~ N(0, 1 / b^2)
    told = SIMRegressor("rff", features=2000, bandwidth=0.5, **SMALL | {"epochs": 1}).fit(XR, YR)
    assert abs(float(told.model_.psi.frequencies.std()) - 2) < 0.1


def test_scaling_is_inside():
    shifted = X * np.array([1e-3, 1, 1e4, 1]) + np.array([0, 1e3, 0, -7])
    a, b = SIMClassifier(**SMALL).fit(X, Y), SIMClassifier(**SMALL).fit(shifted, Y)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(shifted), atol=1e-4)
    raw = SIMClassifier(scale=False, **SMALL).fit(X, Y)
    assert (raw._mean == 0).all()
    assert all(t.dtype == torch.float32 for t in raw.model_.parameters())


def test_pandas_in_and_set_output():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    found = SIMClassifier(**SMALL).fit(frame, pandas.Series(Y))
    assert list(found.feature_names_in_) == ["a", "b", "c", "d"]
    states = found.set_output(transform="pandas").transform(frame)
    assert list(states.columns[:2]) == ["simclassifier0", "simclassifier1"]
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame.rename(columns={"a": "z"}))
    mixed = frame.assign(town=np.where(Y == 0, "Bonn", "Kiel"))
    encode = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    assert make_pipeline(encode, SIMClassifier(**SMALL)).fit(mixed, Y).score(mixed, Y) > 0.8


def test_the_papers_comparison_is_one_grid_search():
    pipe = make_pipeline(SIMClassifier(**SMALLER))
    grid = {
        "simclassifier": [
            SIMClassifier(**SMALL),
            SIMClassifier("two", **SMALL),
            DEQClassifier(**SMALLER),
            MonDEQClassifier(**SMALLER),
        ]
    }
    search = GridSearchCV(pipe, grid, cv=2).fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# ---------------------------------------------------------------- weights


def test_a_weight_of_zero_is_a_row_that_is_not_there():
    far = np.vstack([X, X[:50] + 100])
    y, w = np.append(Y, np.full(50, 2)), np.append(np.ones(150), np.zeros(50))
    kept = SIMClassifier(**SMALL | {"batch_size": 1000, "epochs": 20}).fit(X, Y)
    weighted = SIMClassifier(**SMALL | {"batch_size": 1000, "epochs": 20}).fit(far, y, sample_weight=w)
    np.testing.assert_allclose(kept.predict_proba(X), weighted.predict_proba(X), atol=2e-3)


def test_whole_weights_are_repeated_rows():
    """With full batches, up to float32; in batches of a few rows the two are drawn differently."""
    w = np.random.default_rng(0).integers(0, 4, len(XR))
    full = SMALL | {"batch_size": 10_000, "epochs": 20, "weight_decay": 0.0}
    a = SIMRegressor(**full).fit(XR, YR, sample_weight=w)
    b = SIMRegressor(**full).fit(XR.repeat(w, axis=0), YR.repeat(w))
    np.testing.assert_allclose(a.predict(XR), b.predict(XR), rtol=2e-3, atol=2e-2)


def test_class_weights():
    y = (Y == 2).astype(int)
    rare = np.flatnonzero((Y != 2) | (np.arange(150) % 10 == 0))
    plain, balanced = (SIMClassifier(class_weight=c, **SMALL).fit(X[rare], y[rare]) for c in (None, "balanced"))
    assert balanced.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.02
    said = SIMClassifier(class_weight={0: 1, 1: 1e-6}, **SMALL).fit(X[rare], y[rare])
    assert (said.predict(X) == 0).all()


# ---------------------------------------------------------------- going on, stopping, files


def test_partial_fit_goes_on():
    found = SIMClassifier(**SMALL)
    for _ in range(15):
        found.partial_fit(X, Y, classes=[0, 1, 2])
    assert found.n_iter_ == 15
    assert found.score(X, Y) > 0.8
    assert found.loss_curve_[-1] < 0.6 * found.loss_curve_[0]
    copied = pickle.loads(pickle.dumps(found))
    for each in (found, copied):  # Adam's moments travel along
        each.partial_fit(X, Y)
    assert equal(found, copied)
    fitted = SIMRegressor(**SMALL).fit(XR, YR)
    before = fitted.loss_curve_[-1]
    assert fitted.partial_fit(XR, YR).loss_curve_[-1] < 1.5 * before
    with pytest.raises(ValueError, match="label 7"):
        found.partial_fit(X, np.full(150, 7))
    with pytest.raises(ValueError, match="first call of partial_fit needs classes"):
        SIMClassifier().partial_fit(X, Y)


def test_three_calls_are_three_epochs():
    """Adam's moments and its age go on, to the bit."""
    found = SIMRegressor(**SMALL | {"batch_size": 64})
    for _ in range(3):
        found.partial_fit(XR, YR)
    start = untrained_model(found._model_config, int(found._seeds[0]), torch.device("cpu"))
    samples = Samples(found._inputs(XR, torch.device("cpu")), torch.as_tensor(found._targets(YR, None, False)[0]))
    recipe = Recipe(64, 3, found.learning_rate, weight_decay=found.weight_decay)
    whole = learn(Learnt(start), samples, squares, recipe, int(found._seeds[1])).model
    for a, b in zip(whole.parameters(), found.model_.parameters(), strict=True):
        assert torch.equal(a, b)


def test_some_rows_are_held_out_of_enough():
    many, few = (SIMClassifier(random_state=0, epochs=2).fit(X[:: 150 // n], Y[:: 150 // n]) for n in (150, 50))
    assert hasattr(many, "validation_curve_")
    assert not hasattr(few, "validation_curve_")


def test_early_stopping_keeps_the_best():
    noise = np.random.default_rng(0).normal(size=(120, 20)), np.random.default_rng(1).normal(size=120)
    found = SIMRegressor(early_stopping=True, n_iter_no_change=3, epochs=200, random_state=0, batch_size=32).fit(*noise)
    assert found.n_iter_ < 60
    curve = found.validation_curve_
    assert min(curve) < curve[-1]
    held, kept = found._held_out(noise[1])
    assert len(held) == 12
    assert not set(held) & set(kept)
    y = (noise[1][held] - found._y_mean) / found._y_deviation
    scaled = (found.predict(noise[0][held]) - found._y_mean) / found._y_deviation
    np.testing.assert_allclose(np.mean((scaled - y) ** 2), min(curve), rtol=1e-4)


def test_a_pickle_that_was_damaged_is_refused():
    found = SIMClassifier(epochs=1, random_state=0).fit(np.eye(4), [0, 1, 0, 1])
    state = found.__getstate__()
    damaged = bytearray(state["_tensors"])
    damaged[-3] ^= 64
    for weights, said in ((bytes(damaged), "its digest does not match"), (b"x" * 40, "not whole"), (b"", "not whole")):
        with pytest.raises(KoopsimError, match=said):
            SIMClassifier().__setstate__(state | {"_tensors": weights})


def test_pickles_are_safetensors():
    found = SIMClassifier("two", **SMALL).fit(X, Y)
    data = pickle.dumps(found)
    assert b"torch" not in data  # neither modules nor storages: configuration, and bytes of safetensors
    state = found.__getstate__()
    assert isinstance(state["_tensors"], bytes)
    again = pickle.loads(data)
    assert np.array_equal(again.predict_proba(X), found.predict_proba(X))
    assert pickle.loads(pickle.dumps(SIMClassifier())).get_params() == SIMClassifier().get_params()
    state["_tensors"] = SIMClassifier("single", **SMALL).fit(X, Y).__getstate__()["_tensors"]
    with pytest.raises(Exception, match="model of another kind"):
        SIMClassifier().__setstate__(state)


def test_the_users_random_numbers_stay():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    SIMClassifier("two", **SMALL | {"epochs": 1}).fit(X, Y)
    assert torch.equal(torch.rand(2), expected)


def test_workers_do_not_oversubscribe():
    """Threads of one process get one thread of torch each, and what there was before is there again."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        seen = []

        def work() -> None:
            with few_threads():
                seen.append(torch.get_num_threads())

        joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(work)() for _ in range(4))
        assert seen == [1] * 4
        work()
        assert seen[-1] == 4
        with few_threads(0):  # little work
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert threading.active_count() < 50


@pytest.mark.slow
def test_worker_processes_share_the_cores_and_give_the_same_bits():
    alone = cross_val_predict(SIMClassifier(**SMALL), X, Y, cv=2, method="predict_proba")
    with joblib.parallel_config("loky", n_jobs=2):
        beside = cross_val_predict(SIMClassifier(**SMALL), X, Y, cv=2, method="predict_proba")
        threads = joblib.Parallel()(joblib.delayed(torch.get_num_threads)() for _ in range(2))
    np.testing.assert_allclose(alone, beside, atol=1e-6)
    assert sum(threads) <= max(2, joblib.cpu_count())


# ---------------------------------------------------------------- one sentence


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tier": "three"}, "tier is 'three'; expected one of single, two, rff"),
        ({"tier": "two", "features": 3}, "it must be even"),
        ({"tier": "two", "bandwidth": "wide"}, "expected 'median' or a positive number"),
        ({"tier": "rff", "bandwidth": -1.0}, "must be positive"),
        ({"rank": 1000}, "The rank K is 1000"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": "large"}, "batch_size is 'large'"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"average": 1.0}, "average is 1.0"),
        ({"validation_fraction": 2.0}, "validation_fraction is 2.0"),
        ({"early_stopping": "late"}, "expected True, False or 'auto'"),
        ({"learning_rate": 1e30}, "The loss became"),
        ({"device": "tpu"}, "device 'tpu' cannot be used"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message) as error:
        SIMClassifier(**SMALL | {"epochs": 3} | parameters).fit(X, Y)
    assert "\n" not in str(error.value)


def test_bad_data():
    with pytest.raises(ValueError, match=r"All labels are one class, 1\.0"):
        SIMClassifier().fit(X, np.ones(150))
    with pytest.raises(ValueError, match="contains NaN"):
        SIMClassifier().fit(np.full((5, 2), np.nan), [0, 1, 0, 1, 0])
    with pytest.raises(ValueError, match="n_samples=3"):
        SIMRegressor(early_stopping=True).fit(XR[:3], YR[:3])
    with pytest.raises(ValueError, match="2 outputs; the first call"):
        SIMRegressor(**SMALL).partial_fit(XR, YR).partial_fit(XR, np.stack([YR, YR], axis=1))


def test_nothing_heavy_is_imported_with_the_package():
    assert "koopsim.sklearn" in sys.modules
    import koopsim

    assert koopsim.sklearn.SIMClassifier is SIMClassifier


def test_edmd_is_on_the_contract_too():
    made = EDMD(ridge=1e-9, rank=3)
    assert clone(made).get_params() == made.get_params()
    assert made.set_params(ridge=0.5).ridge == 0.5
    t = np.arange(40)
    states = np.stack([0.9**t, 0.5**t], axis=1)
    pipe = make_pipeline(EDMD(), SIMRegressor(**SMALL | {"epochs": 2}))
    assert pipe.fit(states, states[:, 0]).predict(states).shape == (40,)


def test_a_loss_that_stays_the_same_is_no_progress():
    still = {"learning_rate": 1e-12, "tol": 0.0, "n_iter_no_change": 3, "epochs": 20, "average": 0.0}
    found = SIMRegressor(early_stopping=True, random_state=0, **still).fit(XR, YR)
    assert len(set(found.validation_curve_)) == 1
    assert found.n_iter_ == 4  # the first is the best there is


def test_mean_and_deviation_by_hand():
    values = np.array([[0.0, 5.0, 1e9], [2.0, 5.0, 1e9 + 1e-4], [4.0, 5.0, 1e9]])
    mean, deviation = moments(values, None)
    assert mean[:2].tolist() == [2.0, 5.0]
    assert deviation[0] == pytest.approx(np.sqrt(8 / 3))
    assert deviation[1:].tolist() == [1.0, 1.0]  # nothing changes; nothing that a float64 of 1e9 tells
    mean, deviation = moments(values[:, :1], np.array([1.0, 1.0, 0.0]))
    assert (mean.tolist(), deviation.tolist()) == ([1.0], [1.0])
    assert moments(np.array([[0.0], [4e-12]]), None)[1][0] == pytest.approx(2e-12)
    assert moments(np.array([[0.0], [1.8e-12]]), None)[1][0] == pytest.approx(9e-13)  # small units are no standstill
    assert moments(1e9 + np.array([[0.0], [1e-4]]), None)[1][0] == 1.0


@pytest.mark.parametrize(
    ("rows", "asked", "held"), [(ENOUGH, "auto", True), (ENOUGH - 1, "auto", False), (4, True, True)]
)
def test_when_rows_are_held_out(rows, asked, held):
    assert SIMRegressor(early_stopping=asked)._holds_out(rows) is held


def test_four_rows_are_the_fewest_that_are_held_out_of():
    own = SIMRegressor(early_stopping=True)
    own._seeds = np.array([1, 2])
    out, kept = own._held_out(np.zeros((4, 1)))
    assert (len(out), len(kept)) == (1, 3)
    assert sorted([*out, *kept]) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="n_samples=3"):
        own._held_out(np.zeros((3, 1)))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("epochs", 1, 0), ("n_iter_no_change", 1, 0), ("batch_size", 1, 0), ("weight_decay", 0, -1e-9),
        ("tol", 0, -1e-9),
        ("learning_rate", 1e-12, 9e-13), ("average", 0, 1), ("validation_fraction", 1e-6, 1), ("epochs", 2, True),
        ("early_stopping", False, "no"), ("average", 0.999, -0.001), ("validation_fraction", 0.999, 9e-7),
    ],
)  # fmt: skip
def test_parameters_at_their_ends(name, good, bad):
    SIMRegressor(**{name: good})._check_parameters()
    with pytest.raises(ValueError, match=f"{name} is "):
        SIMRegressor(**{name: bad})._check_parameters()


def test_the_recipe_of_more_rows_is_one_steady_epoch():
    own = SIMRegressor(epochs=7, batch_size=5, learning_rate=0.01, weight_decay=0.5, average=0.25)
    first, more = own._recipe(50, False), own._recipe(50, True)
    assert (first.batch_size, first.epochs, first.schedule, first.average) == (5, 7, "cosine", 0.25)
    assert (more.batch_size, more.epochs, more.schedule, more.average) == (5, 1, "constant", 0.0)
    assert (more.learning_rate, more.weight_decay) == (0.01, 0.5)
