"""The data researchers have: complex, wide, delayed, steered, in their own units."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from koopsim.spectral import EDMD, Delays, Identity, Monomials, RandomFourier

RNG = np.random.default_rng(0)


def orbit(A, z, steps):
    out = [np.asarray(z)]
    for _ in range(steps):
        out.append(A @ out[-1])
    return np.array(out)


def test_complex_snapshots():
    w = np.array([0.95 * np.exp(0.4j), np.exp(-1.3j), 0.6])
    V = RNG.standard_normal((3, 3)) + 1j * RNG.standard_normal((3, 3))
    A = V @ np.diag(w) @ np.linalg.inv(V)
    Z = orbit(A, V.sum(axis=1), 60)
    model = EDMD(Identity(), dt=0.5).fit(Z)
    np.testing.assert_allclose(model.koopman_matrix_, A, atol=1e-9)
    np.testing.assert_allclose(np.sort_complex(model.eigenvalues_), np.sort_complex(w), atol=1e-10)
    assert sorted(model.frequencies_) == pytest.approx(sorted(np.angle(w) / np.pi), abs=1e-9)
    np.testing.assert_allclose(model.forecast(Z[0], 60), Z, atol=1e-8)
    assert model.residuals_.max() < 1e-9
    assert len(model.mode_table(Z)) == 3  # no conjugates to put together
    assert model.verdict().case == "invariant-set"


def travelling(d=3000, m=60, noise=0.0):
    x, t = np.linspace(0, 1, d), np.arange(m)
    wave = np.cos(2 * np.pi * (3 * x - 0.05 * t[:, None])) + 0.3 * 0.98 ** t[:, None] * np.sin(2 * np.pi * x)
    return wave + noise * RNG.standard_normal((m, d))


def test_many_more_columns_than_snapshots():
    Z = travelling()
    model = EDMD(Identity(), rank=3).fit(Z)
    expected = [np.exp(0.1j * np.pi), np.exp(-0.1j * np.pi), 0.98]
    np.testing.assert_allclose(np.sort_complex(model.eigenvalues_), np.sort_complex(expected), atol=1e-9)
    assert model.modes_.shape == (3000, 3)
    np.testing.assert_allclose(model.forecast(Z[0], 59), Z, atol=1e-7)
    np.testing.assert_allclose(model.predict(Z[:-1]), Z[1:], atol=1e-7)


def test_the_snapshot_space_gives_the_same_as_the_whole_space():
    Z = travelling(40, 30)
    few, all_ = EDMD(Identity(), rank=3).fit(Z), EDMD(Identity(), rank=3)
    all_.partial_fit(Z)  # streams: never in the space of the snapshots
    assert few._lifted.basis is not None
    assert all_._lifted.basis is None
    np.testing.assert_allclose(few.koopman_matrix_, all_.koopman_matrix_, atol=1e-9)
    np.testing.assert_allclose(few.residuals_, all_.residuals_, atol=1e-9)
    few.partial_fit(Z)  # the same again
    assert few._lifted.basis is None
    assert few.n_samples_seen_ == 58
    np.testing.assert_allclose(few.koopman_matrix_, all_.koopman_matrix_, atol=1e-9)
    wide = EDMD(RandomFourier(200, 2.0), rank=8).fit(RNG.uniform(-1, 1, (30, 2)))
    assert wide.koopman_matrix_.shape == (200, 200)
    assert wide.predict([[0.1, 0.2]]).shape == (1, 2)


def test_a_model_that_was_looked_at_can_be_pickled():
    model = EDMD().fit(travelling(2, 30))
    again = pickle.loads(pickle.dumps((model, model.residuals_, model.verdict())[0]))
    np.testing.assert_array_equal(again.residuals_, model.residuals_)
    np.testing.assert_array_equal(again.partial_fit(travelling(2, 30)).n_samples_seen_, 58)


def test_default_dictionary_of_many_columns():
    assert isinstance(EDMD().fit(RNG.standard_normal((900, 400))).dictionary_, Identity)
    assert isinstance(EDMD().fit(RNG.standard_normal((90, 3))).dictionary_, Monomials)


def test_delays_see_what_one_series_hides():
    t = np.arange(200) * 0.1
    series = (np.sin(2 * np.pi * 0.7 * t) + 0.5 * np.exp(-0.3 * t))[:, None]
    model = EDMD(Delays(4), rank=3, dt=0.1).fit(series)
    found = sorted(model.frequencies_)
    assert found == pytest.approx([-0.7, 0, 0.7], abs=1e-6)
    table = model.mode_table(series)
    assert table.frequency == pytest.approx([0.7, 0], abs=1e-6)
    assert table.growth[1] == pytest.approx(-0.3, abs=1e-5)
    assert table.lifetime[1] == pytest.approx(1 / 0.3, abs=1e-4)
    assert table.amplitude[0] == pytest.approx(np.sqrt(2) * np.sqrt(0.5), abs=0.02)
    ahead = np.sin(2 * np.pi * 0.7 * (t[-1] + 0.1 * np.arange(21))) + 0.5 * np.exp(-0.3 * (t[-1] + 0.1 * np.arange(21)))
    np.testing.assert_allclose(model.forecast(series, 20)[:, 0], ahead, atol=1e-6)
    assert model.predict(series).shape == (196, 1)
    assert model.score(series) == pytest.approx(1)
    assert len(str(table).splitlines()) == 3
    with pytest.raises(ValueError, match="no past"):
        EDMD(Delays(2)).fit((series, series))
    with pytest.raises(ValueError, match="needs 6"):
        EDMD(Delays(4)).fit(series[:5])
    with pytest.raises(ValueError, match="whole number"):
        EDMD(Delays(0)).fit(series)


def test_delays_are_a_hankel_matrix():
    Z = np.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(Delays(2).windows(Z)[0], [4, 5, 2, 3, 0, 1])
    np.testing.assert_array_equal(Delays(1, stride=2).windows(Z)[0], [4, 5, 0, 1])
    lifted = EDMD(Delays(1, Monomials(2))).fit(RNG.standard_normal((60, 2)))
    assert lifted.n_observables_ == 15


A2, B2 = np.array([[0.9, 0.2], [-0.2, 0.8]]), np.array([[0.0, 1.0], [0.5, 0.3]])


def steered(m=120, seed=0):
    rng = np.random.default_rng(seed)
    U, Z = rng.standard_normal((m - 1, 2)), np.zeros((m, 2))
    Z[0] = [1.0, -1.0]
    for l in range(m - 1):
        Z[l + 1] = A2 @ Z[l] + B2 @ U[l]
    return Z, U


def test_control_is_told_from_dynamics():
    Z, U = steered()
    model = EDMD(Identity()).fit(Z, control=U)
    np.testing.assert_allclose(model.koopman_matrix_, A2, atol=1e-12)
    np.testing.assert_allclose(model.control_matrix_, B2, atol=1e-12)
    np.testing.assert_allclose(model.forecast(Z[0], 50, control=U), Z[:51], atol=1e-10)
    np.testing.assert_allclose(model.predict(Z[:-1], control=U), Z[1:], atol=1e-10)
    assert model.residuals_.max() < 1e-12
    many = EDMD(Identity()).fit([Z[:60], Z[60:]], control=[U[:60], U[60:]])  # a row more than steps is fine
    np.testing.assert_allclose(many.koopman_matrix_, A2, atol=1e-12)
    lifted = EDMD(RandomFourier(40, 3.0)).fit(Z, control=U)
    assert lifted.control_matrix_.shape == (40, 2)
    assert np.abs(lifted.predict(Z[:-1], control=U) - Z[1:]).mean() < 0.1
    for bad, message in ((U[:-5], "one a step"), (np.full_like(U, np.nan), "NaN")):
        with pytest.raises(ValueError, match=message):
            EDMD(Identity()).fit(Z, control=bad)
    with pytest.raises(ValueError, match="rows of control"):
        model.forecast(Z[0], 50, control=U[:9])
    with pytest.raises(ValueError, match="2 controls"):
        model.forecast(Z[0], 5)


def test_continuous_time():
    L = np.array([[-0.1, 2.0], [-2.0, -0.1]])
    from scipy.linalg import expm

    Z = orbit(expm(0.05 * L), [1.0, 0.0], 100)
    model = EDMD(Identity(), dt=0.05).fit(Z)
    np.testing.assert_allclose(model.generator_, L, atol=1e-9)
    assert sorted(model.frequencies_) == pytest.approx([-1 / np.pi, 1 / np.pi])
    assert model.growth_rates_ == pytest.approx([-0.1, -0.1])
    with pytest.raises(ValueError, match="no logarithm"):
        _ = EDMD(Identity()).fit(orbit(np.diag([0.5, 0.0]), [1, 1], 5)).generator_
    for dt in (0, -1, np.nan):
        with pytest.raises(ValueError, match="dt"):
            EDMD(dt=dt).fit(Z)


def test_pseudospectrum_against_its_definition():
    Z = RNG.uniform(-1, 1, (400, 1))
    model = EDMD(Monomials(4)).fit((Z, 3.5 * Z * (1 - Z) / 2))
    points = np.array([[0.1 + 0.2j, 1.0], [-0.5j, 2.0]])
    s = model.solution_
    now, after = model.transform(Z) @ s.down / 20, model.transform(3.5 * Z * (1 - Z) / 2) @ s.down / 20
    slow = [[np.linalg.svd(after - z * now)[1][-1] for z in row] for row in points]
    np.testing.assert_allclose(model.pseudospectrum(points), slow, atol=1e-9)
    at = model.pseudospectrum(model.eigenvalues_)
    assert np.all(at <= model.residuals_ + 1e-9)


def test_residuals_on_other_data():
    Z = RNG.uniform(-1, 1, (400, 2))
    model = EDMD(Monomials(3)).fit((Z, np.tanh(Z @ A2.T)))
    np.testing.assert_allclose(model.residuals_on((Z, np.tanh(Z @ A2.T))), model.residuals_, atol=1e-9)
    other = RNG.uniform(-1.5, 1.5, (400, 2))
    assert model.residuals_on((other, np.tanh(other @ A2.T))).max() > model.residuals_.max()


def test_scikit_learn_tools():
    Z = orbit(A2, [1.0, 0.5], 40)
    model = EDMD(Delays(2, Monomials(1)), rank=3, dt=0.1)
    again = clone(model).set_params(dictionary__delays=1, rank=None)
    assert again.get_params()["dictionary__delays"] == 1
    assert model.dictionary.delays == 2
    pipe = make_pipeline(StandardScaler(), EDMD(Monomials(1))).fit(Z)
    scaled = pipe[:-1].transform(Z)
    np.testing.assert_allclose(pipe[-1].predict(scaled[:-1]), scaled[1:], atol=1e-8)
    search = GridSearchCV(EDMD(Identity()), {"rank": [1, 2]}, cv=3).fit(Z)
    assert search.best_params_ == {"rank": 2}


def test_rows_streamed_to_torch():
    pytest.importorskip("torch")
    Z = RNG.standard_normal((4000, 3))
    Y = np.tanh(Z @ RNG.standard_normal((3, 3)))
    there = EDMD(Monomials(3), device="cpu")
    for i in range(0, 4000, 1000):
        there.partial_fit((Z[i : i + 1000], Y[i : i + 1000]))
    np.testing.assert_allclose(there.koopman_matrix_, EDMD(Monomials(3)).fit((Z, Y)).koopman_matrix_, atol=1e-9)


def test_complex_rows_on_a_device():
    pytest.importorskip("torch")
    Z = np.exp(1j * np.outer(np.arange(400), [0.3, 0.7])) @ (RNG.standard_normal((2, 5)) + 1j)
    found = EDMD(Identity(), rank=2, device="cpu").fit(Z).eigenvalues_
    np.testing.assert_allclose(np.sort(np.angle(found)), [0.3, 0.7], atol=1e-9)


def test_a_constant_column_is_no_trouble():
    Z = np.c_[orbit(A2, [1.0, 0.5], 40), np.full(41, 3.0)]
    assert sorted(np.abs(EDMD(Identity()).fit(Z).eigenvalues_))[-1] == pytest.approx(1)
    assert EDMD(Monomials(2)).fit(Z).rank_ == 6


def test_residuals_are_those_of_the_samples_that_were_fitted():
    Z = RNG.standard_normal((300, 2))
    model = EDMD(Monomials(2)).fit((Z, np.tanh(Z)))
    streamed = EDMD(Monomials(2)).partial_fit((Z, np.tanh(Z)))
    np.testing.assert_allclose(model.residuals_, streamed.residuals_, atol=1e-10)
    for options in ({"rank": 3}, {"ridge": 0.1}, {"rtol": 0.3}):
        a, b = (EDMD(Monomials(2), **options) for _ in range(2))
        a.fit((Z, np.tanh(Z)))
        b.partial_fit((Z, np.tanh(Z)))
        np.testing.assert_allclose(a.residuals_, b.residuals_, atol=1e-7)  # from a Gram matrix: half the digits
        assert a.solution_.relative_residual == pytest.approx(b.solution_.relative_residual, abs=1e-12)
    Z, U = steered()
    a, b = EDMD(RandomFourier(8)).fit(Z, control=U), EDMD(RandomFourier(8)).partial_fit(Z, control=U)
    np.testing.assert_allclose(a.residuals_, b.residuals_, atol=1e-9)
    changed = RNG.standard_normal((300, 2))
    model = EDMD(Identity()).fit(changed)
    changed *= 2
    with pytest.raises(ValueError, match="changed after fit"):
        _ = model.residuals_


def test_the_page_runs():
    import re
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "trajectories.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize(("aspect", "factor"), [(0.05, 1.5194), (0.25, 1.8365), (0.5, 2.1711), (1.0, 2.8582)])
def test_singular_values_above_noise(aspect, factor):
    """The factors of Gavish and Donoho's table for noise of unknown size, to their polynomial's two digits."""
    from koopsim.spectral.snapshots import above_noise

    values = np.r_[1.02 * factor, 0.98 * factor, np.ones(5), np.full(4, 0.5)]  # the median is 1
    assert above_noise(values, aspect) == 1
    assert above_noise(values * 7.0, aspect) == 1
    assert above_noise(np.ones(5), aspect) == 1
    assert above_noise(np.array([3.0]), aspect) == 1
