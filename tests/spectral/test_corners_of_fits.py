"""Fits where they begin and end: as many rows as columns, the first that is refused, what is left out and what not."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import ArpackNoConvergence
from test_fitting_inside import TERMS, three_runs, told_by

from koopsim.spectral import (
    EDMD,
    Delays,
    Identity,
    Monomials,
    OptimisedDMD,
    RandomFourier,
    analysis,
    analyze,
    exponentials,
    factor,
    horizon,
    judgement,
    markov,
    optimised_dmd,
    resdmd,
    resolvent,
    separation,
)
from koopsim.spectral.eigenbasis import eigenbasis
from koopsim.spectral.factor import Columns, by_products, cholesky, householder, leading_rows, root
from koopsim.spectral.kept import kept_by, trusted
from koopsim.spectral.powers import Propagator, total
from koopsim.spectral.regression import Settings, Triangle, _sizes, _whiten
from koopsim.spectral.resolvent import Circles
from koopsim.spectral.variable_projection import Terms, refined

RNG = np.random.default_rng


def test_rows_that_are_enough_for_products():
    """Twice as many rows as columns; a Gram matrix that is worth a millionth, and no column of zeros."""
    L = RNG(0).standard_normal((8, 4))
    assert by_products(Columns(L, L, L[:, :0])) is not None
    assert by_products(Columns(L[:7], L[:7], L[:7, :0])) is None
    for rows in (8, 7):
        c = Columns(L[:rows], 2 * L[:rows], L[:rows, :1])
        R, H = leading_rows(c), householder(c)
        assert R.shape == (5, 10)
        assert_allclose(R[:4].T @ R[:4], H[:4].T @ H[:4], atol=1e-9)
        assert R[4, -1] == pytest.approx(np.linalg.norm(H[4:, -1]), abs=1e-9)
        assert not R[4, :-1].any()
    for G in (np.diag([1.0, 0.0]), np.diag([1.0, np.inf]), np.diag([1.0, np.nan]), np.ones((2, 2)), -np.eye(2)):
        with np.errstate(invalid="ignore"):
            assert cholesky(G) is None
    for off, good in ((1e-5, True), (1e-7, False)):  # 1 - c of the correlation c is twice the reciprocal condition
        G = np.array([[1.0, 1 - off], [1 - off, 1.0]])
        assert (cholesky(G) is not None) == good
    assert_allclose(cholesky(np.array([[4.0, 2.0], [2.0, 10.0]])), [[2, 1], [0, 3]])
    for S in (np.diag([0.0, 4.0]), np.array([[1.0, 1.0], [1.0, 1.0]]), np.diag([1e-30, 1.0]), np.diag([-1e-18, 1.0])):
        assert_allclose(root(S).T @ root(S), np.maximum(S, 0), atol=1e-16)
    assert factor._rcond(np.diag([1.0, 0.0])) == 0.0
    assert factor._rcond(np.diag([5.0, 1e-9])) == 1.0  # in units of each column


def test_a_few_rows_stand_for_the_rest(monkeypatch):
    """Thirty-two rows a column, where they are needed and can be borne."""
    steep = np.array([[1.0, 1.0], [0.0, 1e-5]])
    L = RNG(0).standard_normal((64, 2)) @ steep
    assert factor._few(Columns(L, L, L)) is not None
    assert factor._few(Columns(L[:63], L[:63], L[:63])) is None
    plain = RNG(0).standard_normal((64, 2))
    assert factor._few(Columns(plain, plain, plain)) is None  # well conditioned
    twice = np.c_[plain[:, 0], plain[:, 0]]
    assert factor._few(Columns(twice, twice, twice)) is None  # they depend on each other
    assert factor._few(Columns(0 * plain, plain, plain)) is None
    c = Columns(L, np.tanh(L), L[:, :1])
    fast, slow = by_products(c), householder(c)
    assert_allclose(np.abs(np.diag(fast)[:2]), np.abs(np.diag(slow)[:2]), rtol=1e-9)
    asked = []
    qr = factor.qr_rows
    monkeypatch.setattr(factor, "qr_rows", lambda rows, *rest: asked.append(len(rows)) or qr(rows, *rest))
    tall = RNG(0).standard_normal((5000, 2)) @ steep
    factor._few(Columns(tall, tall, tall))
    assert asked == [8, 10]  # four rows a column, then R and the four largest a column


def test_the_constant_in_the_span_to_many_digits():
    """The difference of squares tells 1e-3 from nothing; below 1e-5 it is measured."""
    x = RNG(0).standard_normal((200, 1))
    for off in (1e-2, 1e-4, 3e-6, 1e-8):
        wave = off * np.where(np.arange(200) % 2, 1.0, -1.0)[:, None]
        L = np.c_[1 + wave, x]
        R = by_products(Columns(L, L, L[:, :0]))
        left = np.linalg.norm(np.ones(200) - L @ np.linalg.lstsq(L, np.ones(200), rcond=None)[0])
        assert R[2, -1] == pytest.approx(left, rel=1e-3)


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


def test_as_many_samples_as_observables():
    z = RNG(0).standard_normal((6, 5))
    assert EDMD(Identity()).fit(z[:5])._lifted.basis is None
    assert EDMD(Identity()).fit(z[:4])._lifted.basis.shape == (5, 4)
    assert EDMD(Identity(), chunk=3).fit(z)._lifted.rows == 3
    assert EDMD(Identity()).fit(z)._lifted.rows == 2**23 // 5
    small = EDMD(Identity()).fit((z[:, :2], z[:, 2:4]))
    for share, fine in ((1.0004, True), (1.0006, False)):  # a thousandth of the squares
        X = z[:, :2].copy()
        model = EDMD(Identity()).fit((X, z[:, 2:4]))
        X *= share
        if fine:
            assert_allclose(model.residuals_, small.residuals_, rtol=0.1)
        else:
            with pytest.raises(ValueError, match="changed after fit"):
                _ = model.residuals_


def test_parameters_that_are_none():
    z = RNG(0).standard_normal((9, 2))
    for options in ({"ridge": -1e-9}, {"ridge": np.nan}, {"chunk": 0}, {"chunk": 2.5}, {"rank": 0}, {"rank": 1.5},
                    {"rank": "all"}, {"dt": 0.0}, {"dt": np.inf}, {"device": "moon"}):  # fmt: skip
        with pytest.raises(ValueError, match=r"ridge|chunk|rank|dt|device"):
            EDMD(**options).fit(z)
    for options in ({"ridge": 0.0}, {"chunk": 1}, {"rank": 1}, {"rank": "auto"}, {"dt": 1e-9}, {"device": "cpu"}):
        assert EDMD(Identity(), **options).fit(z).rank_ >= 1
    model = EDMD(Identity()).fit(z)
    assert model.forecast(z[0], 0).tolist() == [z[0].tolist()]
    for steps in (-1, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            model.forecast(z[0], steps)
    with pytest.raises(ValueError, match="0 controls; got 3 rows"):
        model.forecast(z[0], 2, control=np.ones((3, 1)))
    with pytest.raises(ValueError, match="0 inputs; got 1"):
        model.predict(z, inputs=[1.0])
    with pytest.raises(ValueError, match="one trajectory"):
        model.score([z, z])
    steered = EDMD(Identity()).fit(z, control=z[:, :1])
    assert steered.forecast(z[0], 2, control=np.ones((2, 1))).shape == (3, 2)
    for bad, sentence in ((np.ones((1, 1)), "got 1 rows"), (np.ones((2, 2)), "controls; got 2"), (None, "got 0 rows")):
        with pytest.raises(ValueError, match=sentence):
            steered.forecast(z[0], 2, control=bad)
    more = EDMD(Identity()).partial_fit(z)
    with pytest.raises(ValueError, match="0 inputs and 0 controls"):
        more.partial_fit(z, control=z[:, :1])
    with pytest.raises(ValueError, match="without delays"):
        EDMD(Delays(1)).fit(z).forecast(z, 2, relift=True)
    line = (0.9 ** np.arange(12.0))[:, None]
    assert EDMD(Delays(2), rank=1).fit(line).score(line) == pytest.approx(1)
    assert EDMD(Identity()).fit(line).score((line[:3], 0.9 * line[:3])) == pytest.approx(1)


def test_the_order_of_eigenvalues():
    """Largest first; of a pair, or of two that rounding alone tells apart, the one above the axis first."""
    A = block_diag(0.5 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]), -0.9, 0.2)
    X = RNG(0).standard_normal((40, 4))
    w = EDMD(Identity()).fit((X, X @ A.T)).eigenvalues_
    assert_allclose(w, [-0.9, 0.5 * np.exp(1j), 0.5 * np.exp(-1j), 0.2], atol=1e-9)


def test_eigenpairs_that_are_trusted():
    rng = RNG(0)
    X = rng.uniform(-1, 1, (200, 2))
    Y = np.c_[0.5 * X[:, 0], rng.uniform(-1, 1, 200)]  # the second is no function of anything
    model = EDMD(Identity()).fit((X, Y))
    worst = model.residuals_.max()
    assert trusted(model, worst).shape == (2, 2)
    assert trusted(model, 0.99 * worst).shape == (2, 1)
    with pytest.raises(ValueError, match="no eigenpair"):
        trusted(model, 0.5 * model.residuals_.min())


def test_forecasts_that_run_away():
    x = 1e-300 * 1e60 ** np.arange(6.0)[:, None]
    model = EDMD(Identity()).fit((np.ones((3, 1)), np.full((3, 1), 1e100)))
    for sign in (1.0, -1.0):
        found = model.forecast_errors(np.full((9, 1), sign), 8)
        assert_allclose(found[1:, 0], [1e100, *[1e150] * 7])
    assert np.isfinite(model.forecast_errors(x, 3)).all()


def test_starts_of_forecasts(monkeypatch):
    """All of them up to a number, then as many evenly spread; none that ends beyond the run."""
    monkeypatch.setattr(horizon, "MOST_STARTS", 3)
    model = EDMD(Identity()).fit((np.ones((3, 1)), np.full((3, 1), 0.0)))
    z = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])  # zero is foretold from 0, 2 and 4
    found = model.forecast_errors(z, 5)[:, 0]
    assert_allclose(found[:5], [0, np.sqrt((4 + 16) / 2), np.sqrt((9 + 25) / 2), 4, 5])
    assert np.isnan(found[5])


def test_pseudospectra_in_batches(monkeypatch):
    X = RNG(0).standard_normal((30, 2))
    model = EDMD(Identity()).fit((X, np.tanh(X)))
    points = RNG(1).standard_normal((3, 3)) + 0.1j
    whole = model.pseudospectrum(points)
    for batch in (1, 8, 9, 17):
        monkeypatch.setattr(resdmd, "BATCH", batch)
        assert_allclose(model.pseudospectrum(points), whole)
    with pytest.raises(ValueError, match="without control"):
        EDMD(Identity()).fit(X, control=X[:, :1]).residuals_on(X)
    zero = EDMD(Identity()).fit((X, 0.5 * X)).residuals_on((0 * X, 0 * X))
    assert zero.tolist() == [0, 0]
    held = EDMD(Identity()).fit([X, X], inputs=[[1.0], [2.0]])
    one = [held.residuals_on(X, inputs=[u]) for u in (1.0, 2.0)]
    both = held.residuals_on([X, X], inputs=[[1.0], [2.0]])
    assert not np.allclose(*one)
    assert (both <= np.maximum(*one) + 1e-12).all()
    assert (both >= np.minimum(*one) - 1e-12).all()


def test_what_a_short_run_foretells():
    """Seven tenths are fitted, four samples at least; a run that ends there foretells nothing."""
    one = Terms(np.array([-0.1]), np.zeros(1), np.array([False]), np.array([False]))
    l = np.arange(10.0)[:, None]
    four = np.exp(-0.1 * l[:4])
    assert exponentials._foretold([four], one, 1.0) == (0.0, 0.0)
    z = np.exp(-0.1 * l) + 1.0
    z[7:] += 0.5  # all that is foretold is off by a half
    off, explained = exponentials._foretold([z], one, 0.25)
    assert off == pytest.approx(1.0, rel=1e-3)
    assert explained == pytest.approx(1 - 0.75 / np.sum((z[7:] - z.mean()) ** 2), rel=1e-3)
    both, _ = exponentials._foretold([z, four], one, 0.25)
    assert both == pytest.approx(off, rel=0.2)
    exact, share = exponentials._foretold([np.exp(-0.1 * l)], one, 0.0)
    assert exact < 1e3  # in units of rounding, where nothing was left over
    assert share == pytest.approx(1)


def test_what_is_left_over_and_its_colour():
    """White: sigma^2 (J^T J)^-1; what is alike from sample to sample counts for less."""
    one = Terms(np.array([-0.05]), np.zeros(1), np.array([False]), np.array([False]))
    l = np.arange(40.0)[:, None]
    base, sizes = np.exp(-0.05 * l), []
    for wave in (np.cos(np.pi * l), np.cos(0.9 * l)):
        runs = [base + 0.01 * wave]
        r, J, _ = exponentials.residual(runs, one)
        variance, widened, error, _ = exponentials._uncertainty(runs, one, 3)
        assert variance == pytest.approx(r @ r / 37)
        colour = max(0.0, (r[1:] @ r[:-1]) / (r @ r))
        assert widened == pytest.approx(variance * (1 + colour) / (1 - colour))
        assert error[0] == pytest.approx(np.sqrt(widened / (J[:, 0] @ J[:, 0])), rel=1e-6)
        sizes.append(widened / variance)
    assert sizes[0] == 1.0
    assert sizes[1] > 2
    few = exponentials._uncertainty([base[:3]], one, 9)
    assert few[0] < 1e-25  # no fewer than one degree of freedom
    assert exponentials._uncertainty([0 * base], one, 3)[1] == 0.0


def test_the_number_of_exponentials(monkeypatch):
    """Least BIC, three numbers for each unknown, and no more than so many in vain."""
    tried = []
    real = refined

    def counted(runs, start, *steps):
        tried.append((start.vector.size, *steps))
        return real(runs, start, *steps)

    monkeypatch.setattr(exponentials, "refined", counted)
    l = np.arange(60.0)
    z = (0.95**l * np.cos(0.6 * l))[:, None] + 1e-3 * RNG(0).standard_normal((60, 1))
    found = fit = exponentials.fit_exponentials([z])
    assert fit.growth.size == 1
    assert found.angle == pytest.approx([0.6], abs=1e-2)
    rough = [t for t in tried if t[1:] == (8,)]
    assert len(rough) == 2 + 4  # four more that did not lower it
    tried.clear()
    for m, fitted in ((9, True), (8, False)):  # one decay: growth, amplitude and rest are three unknowns
        e = exponentials.fit_exponentials([np.exp(-0.3 * np.arange(m))[:, None] + 1.0])
        assert (e is not None) == fitted


def test_bags_and_their_rows(monkeypatch):
    """Six tenths of the samples, two for each mode at least and never more than there are."""
    sizes = []
    real = optimised_dmd._fit
    monkeypatch.setattr(optimised_dmd, "_fit", lambda Y, tau, start: sizes.append(len(Y)) or real(Y, tau, start))
    t = np.arange(20.0)
    z = np.exp(-0.1 * t)
    for options, rows in (({"n_modes": 1}, 12), ({"n_modes": 1, "share": 0.05}, 2), ({"n_modes": 2, "share": 0.1}, 4),
                          ({"n_modes": 1, "share": 1.0}, 20)):  # fmt: skip
        sizes.clear()
        model = OptimisedDMD(bags=2, **options).fit(z if options["n_modes"] == 1 else z + np.exp(-0.7 * t))
        assert sizes == [20, rows, rows]
    assert model.rates_ == pytest.approx([-0.1], abs=1e-8)
    assert model.relative_residual_ < 1e-8
    asked = []
    windows = optimised_dmd.windows
    monkeypatch.setattr(optimised_dmd, "windows", lambda Z, past: asked.append(past) or windows(Z, past))
    for m, count in ((30, 2), (9, 4), (8, 2), (4, 2)):
        optimised_dmd._first_guess(RNG(0).standard_normal((m, 1)), np.linspace(0, 1, m), count)
    assert asked == [10, 7, 4, 2]
    wide = OptimisedDMD(3).fit(np.c_[np.cos(t), np.sin(t), np.exp(-0.1 * t)])
    assert_allclose(wide.rates_, [-0.1, 1j, -1j], atol=1e-7)  # slow ones first, of a pair the one above the axis
    assert OptimisedDMD(1).fit(z + 0j).complex_
    turning = OptimisedDMD(2).fit(np.c_[np.exp(1j * t), np.exp((2j - 0.1) * t)])
    assert_allclose(turning.rates_, [1j, -0.1 + 2j], atol=1e-7)
    assert_allclose(turning.predict([3.0])[0], [np.exp(3j), np.exp(6j - 0.3)], atol=1e-7)


def test_matrices_that_are_no_matrices(monkeypatch):
    for bad, sentence in (([[1, 2], [3]], r"lengths|square"), ([["a"]], "numbers"), (np.ones((2, 3)), "square"),
                          (np.ones(4), "square"), (np.ones((0, 0)), "empty"), ([[np.inf]], "1 of 1")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            analyze(bad)
    monkeypatch.setattr(analysis, "LARGEST", 3)
    assert analyze(csr_matrix(0.5 * np.eye(3))).case == "origin"
    with pytest.raises(ValueError, match="up to 3 rows"):
        analyze(csr_matrix(0.5 * np.eye(4)))
    assert analyze(np.array([[1]], dtype=object)).case == "fixed-point"
    assert analyze(np.array([[True]])).case == "fixed-point"
    assert analyze([[0]]).case == "origin"


def test_clusters_beyond_those_that_decide(monkeypatch):
    """Once something is outside for certain, so many clusters are described and no more."""
    monkeypatch.setattr(analysis, "ENOUGH", 2)
    w = np.array([3.0, 1.2, 1.1, 1.05])
    assert len(analyze(np.diag(w)).projectors) == 2
    monkeypatch.setattr(analysis, "CIRCLES", 0)
    assert len(analyze(np.diag(w)).projectors) == 4  # no circle was tried


def test_chains_that_arnoldi_does_not_end_on(monkeypatch):
    """What was found, if it is two or more; else a coarser look, and at last the one alone."""
    P = csr_matrix(np.full((3, 3), 1 / 3))
    for found, told in (([1.0, 0.5], [1.0, 0.5]), ([1.0], None)):
        asked = []

        def fails(*_, tol, ncv, found=found, asked=asked, **__):
            asked.append((tol, ncv))
            raise ArpackNoConvergence("no", np.array(found), None)

        monkeypatch.setattr(markov, "eigs", fails)
        w = markov._arnoldi(P, 2)
        assert len(asked) == (1 if told else 3)
        assert asked[0] == (1e-10, 12)
        assert w[0] == 1.0
        assert w[1] == 0.5 if told else np.isnan(w[1])
    monkeypatch.undo()
    monkeypatch.setattr(markov, "STATIONARY", -1.0)
    with pytest.raises(ValueError, match="no stationary law"):
        markov.stationary_law(P)
    monkeypatch.undo()
    rng = RNG(0)
    Q = csr_matrix(rng.dirichlet(np.ones(80), 80))
    dense = markov.stationary_law(Q)
    monkeypatch.setattr(markov, "DENSE", 79)
    assert_allclose(markov.stationary_law(Q), dense, atol=1e-12)
    several = markov.leading(Q, dense, 1, 5)
    assert_allclose(np.abs(several), np.sort(np.abs(np.linalg.eigvals(Q.toarray())))[::-1][:5], atol=1e-8)


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


def test_large_circles_where_what_is_clear_shrinks(monkeypatch):
    """Towards an eigenvalue near the circle the arcs shrink: looked at nearer, and never stepped over."""
    monkeypatch.setattr(resolvent, "DENSE", 2)
    for angle in (0.4, 2.0, 5.5):
        T = np.diag([0.97 * np.exp(1j * angle), 0.2, -0.3]) + 0.01 * np.eye(3, k=1)
        z = np.exp(1j * np.linspace(0, 2 * np.pi, 20001))
        shown = resolvent.smallest_singular_values(T, z[::10]).min()
        circles = Circles(T, False)
        assert circles._large(1.0, 0.9 * shown)
        assert circles.allowance.left < resolvent.ALLOWANCE - 27 * 10
        assert not Circles(T, False)._large(1.0, 1.1 * shown)
        assert Circles(T, True)._large(1.0, 0.9 * shown)
    hidden = np.diag([0.999 * np.exp(-0.5j), 0.2, -0.3]) + 0.01 * np.eye(3, k=1)
    assert not Circles(hidden, False)._large(1.0, 0.01)
    far = Circles(np.diag([0.999 * np.exp(5.5j), 0.2]) + 0.01 * np.eye(2, k=1), True, resolvent.Allowance(8.0 * 9))
    assert far.arc == np.pi


def test_eigenvectors_that_prove_nothing():
    """A Jordan block has no basis of them: infinite slack, and neither circle nor separation is claimed."""
    J = np.eye(3) + np.eye(3, k=1) + 0j
    basis = eigenbasis(J)
    assert basis.slack == np.inf
    assert np.isinf(basis.norms).all()
    assert basis.separation(0) == 0.0
    assert not basis.clear_of_circle(3.0, 1e-9, 2 * np.pi)
    zero = eigenbasis(np.zeros((2, 2), complex))
    assert_allclose(zero.X, np.eye(2))
    assert zero.separation(0) <= 0.0


def test_terms_of_very_different_sizes():
    one = np.eye(1)
    parts = [Propagator(one, one, np.array([[b]])) for b in (2.0 + 0j, 0.5)]
    M, s = total(parts, 700, None, True)
    assert s == pytest.approx(700 * np.log(2))
    assert M[0, 0] == pytest.approx(1)
    v = analyze(np.diag([2.0, 0.5]))
    with np.errstate(over="ignore"):
        assert v.at(1025)[0, 0] == np.inf
    assert v.at(1023)[0, 0] == pytest.approx(2.0**1023)
    assert v.at(0).tolist() == np.eye(2).tolist()
    with pytest.raises(ValueError, match="2 rows"):
        v.at(1, np.ones(3))
    with pytest.raises(ValueError, match="2 rows"):
        v.at(1, np.array(1.0))
    assert np.iscomplexobj(v.at(1, np.array([1j, 0])))
    lifted = EDMD(Monomials(1)).fit((np.arange(8.0)[:, None], 0.5 * np.arange(8.0)[:, None]))
    said = lifted.verdict()
    assert_allclose(said.at(3), lifted.koopman_matrix_ @ lifted.koopman_matrix_ @ lifted.koopman_matrix_, atol=1e-9)
    assert_allclose(said.at(3, np.array([1.0, 8.0])), [1, 1], atol=1e-9)


def test_a_fit_through_runs_that_were_exact():
    terms, left = refined(three_runs(0.0), TERMS.moved(TERMS.vector * 1.02))
    assert_allclose(terms.vector, TERMS.vector, atol=1e-8)
    assert left < 1e-15
    stuck, far = refined([np.full((9, 1), np.nan)], TERMS)
    assert stuck is TERMS
    assert far == np.inf
    huge = TERMS.moved(np.array([-200.0, 0.01, -0.3, 0.6])).columns(20)[0]
    assert huge[10, 1] == pytest.approx(np.exp(-700) * np.cos(6.0))


def test_features_of_another_width_are_refused():
    z = RNG(0).standard_normal((20, 2))
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match="even number"):
            RandomFourier(count).fit(z)
    assert RandomFourier(2).fit(z).transform(z).shape == (20, 2)


@pytest.mark.parametrize(("runs", "d", "least"), [(1, 1, 15), (2, 2, 11), (3, 1, 11)])
def test_samples_that_a_pair_needs(runs, d, least):
    """Growth, angle, and for each run and direction two amplitudes and a rest: three numbers for each unknown."""
    l = np.arange(40.0)[:, None]
    waves = [np.hstack([0.97**l * np.cos(0.9 * l + k + j) for j in range(d)]) for k in range(runs)]
    for m, paired in ((least, True), (least - 1, False)):
        found = exponentials.fit_exponentials([z[:m] for z in waves])
        assert (found is not None and bool(found.paired.any())) == paired


class Recorder:
    """A dictionary that remembers what it was fitted to."""

    def fit(self, Z, y=None):
        self.seen = Z.copy()
        return self

    def transform(self, Z):
        return Z


class Paired(Recorder):
    def fit_pairs(self, now, after):
        self.seen = np.hstack([now, after])
        return self


def test_what_a_dictionary_is_fitted_to():
    a, b = np.arange(4.0)[:, None], np.arange(10.0, 13)[:, None]
    both = [0, 1, 2, 3, 20, 21, 22, 23]
    for data, seen in (([a, b], [0, 1, 2, 3, 10, 11, 12]), (a, [0, 1, 2, 3]), ((a, a + 20), both)):
        model = EDMD(Recorder()).fit(data)
        assert model.dictionary_.seen[:, 0].tolist() == seen
    assert EDMD(Paired()).fit([a, b]).dictionary_.seen.tolist() == [[0, 1], [1, 2], [2, 3], [10, 11], [11, 12]]
    assert EDMD(Paired()).fit((a, a + 20)).dictionary_.seen.tolist() == [[k, k + 20] for k in range(4)]
    held = EDMD(Recorder()).fit([a, b], inputs=[[5.0], [6.0]])
    assert held.dictionary_.seen.tolist() == [[k, 5] for k in range(4)] + [[k, 6] for k in range(10, 13)]
    mine = Recorder()
    assert EDMD(mine).fit(a).dictionary_ is mine  # nothing that scikit-learn could clone
    given = RandomFourier(2)
    assert EDMD(given).fit(a).dictionary_ is not given
    with pytest.raises(ValueError, match="NaN or infinity"):
        EDMD(lambda z: np.where(z > 2, np.nan, z)).fit(a)


def test_misfit_on_pairs_that_were_held_out():
    """K_b without its fifth of the pairs, by least squares: its error there, over what is there."""
    rng = RNG(0)
    for m in (23, 4):  # fewer than five are held out one by one
        X = rng.standard_normal((m, 2))
        Y = X @ np.array([[0.5, 0.2], [-0.3, 0.7]]) + 0.1 * rng.standard_normal((m, 2))
        model = EDMD(Identity()).fit((X, Y))
        down = model.solution_.down
        wrong = size = 0.0
        for rows in np.array_split(np.arange(m), min(5, m)):
            rest = np.setdiff1d(np.arange(m), rows)
            K = np.linalg.lstsq(X[rest] @ down, Y[rest] @ down, rcond=None)[0]
            wrong += np.sum((Y[rows] @ down - X[rows] @ down @ K) ** 2)
            size += np.sum((Y[rows] @ down) ** 2)
        found = judgement.held_out_misfit(model, np.eye(2), kept_by(model))
        assert found == pytest.approx(np.sqrt(wrong / size))


def test_a_term_that_may_just_be_on_the_circle_is_put_there():
    E = 2.0**-10
    for off, r in ((0.0, 1.0), (2.0**-40, np.exp(-4 * E))):
        e = told_by(growth=[-4 * E - off, -0.2], error=[E, E])
        v = judgement._spoken("invariant-set", e, [], analyze(np.diag([0.5, 0.2])))
        assert_allclose(np.sort(np.abs(v.eigenvalues)), np.sort([1, r, r, np.exp(-0.2)]), atol=1e-9)


def test_what_is_infinite_is_none_in_json():
    assert analyze(np.eye(1)).to_dict()["projectors"][0]["separation"] is None
    assert analyze(np.diag([1.0, 0.5])).to_dict()["projectors"][0]["separation"] == pytest.approx(0.5)
    said = analyze(np.diag([1 + 1e-7, 0.5]), 1e-6).to_dict()
    assert said["snapped"][0]["taken"] == [1.0, 0.0]
    assert said["snapped"][0]["distance"] == pytest.approx(1e-7, rel=1e-3)
    assert said["snapped"][0]["error"] == pytest.approx(1e-6 * np.hypot(1, 0.5), rel=1e-3)
    assert said["distance"] == pytest.approx(1e-7 / np.hypot(1, 0.5), rel=1e-3)


def test_inputs_go_along_with_the_past():
    """What the dictionary sees is the window and the input; rows of an input may not differ along a run."""
    z = np.arange(6.0)[:, None]
    model = EDMD(Delays(2)).fit([z, z[:5] + 0.5], inputs=[[7.0], [8.0]])
    assert model.n_inputs_ == 1
    assert model.transform(z[:4], inputs=[9.0]).tolist() == [[2, 1, 0, 9], [3, 2, 1, 9]]
    assert model.forecast(z, 2, inputs=[7.0]).shape == (3, 1)
    with pytest.raises(ValueError, match="1 inputs; got 0"):
        model.transform(z)
    with pytest.raises(ValueError, match="change along it"):
        EDMD(Identity()).fit(z, inputs=z)
    pairs = EDMD(Identity()).fit((z, z + 1), inputs=z)  # of pairs they may
    assert pairs.transform(z[:2], inputs=z[3:5]).tolist() == [[0, 3], [1, 4]]
    table = model.mode_table(z, inputs=[7.0])
    assert table.amplitude.size == len(table)
    still = EDMD(Identity()).fit((np.ones((4, 1)), np.ones((4, 1)))).mode_table()
    assert still.lifetime.tolist() == [np.inf]
    assert EDMD(Identity()).fit((np.ones((4, 1)), 0.5 * np.ones((4, 1)))).mode_table().amplitude == pytest.approx([1])


def test_an_exact_fit_is_believed_to_its_rounding_and_no_better():
    """Sixty-four roundings a row is what an analysis has of its own: less is never given to it."""
    X = RNG(0).standard_normal((400, 3))
    v = EDMD(Identity()).fit((X, 0.5 * X)).verdict()
    assert v.noise == 3 * 64 * 2.0**-52
    assert "(the misfit)" in v.reasons[1]
