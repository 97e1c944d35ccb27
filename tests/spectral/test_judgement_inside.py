"""What is made of a fitted model and its runs: each way through the judgement, once with numbers by hand."""

from dataclasses import replace

import numpy as np
import pytest
from inside import words
from kept_numbers import same
from test_fitting_inside import TERMS, three_runs, told_by

from koopsim.spectral import EDMD, Delays, Identity, Monomials, analyze, exponentials, judgement
from koopsim.spectral.kept import kept_by
from koopsim.spectral.variable_projection import Terms

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (60, 2))
W, C = np.array([[0.5, 0.2], [-0.1, 0.6]]), np.array([1.0, -2.0])
EPS = 2.0**-52


def fitted(reasons=("Misfit 1.0e-03 on pairs.", "Something else.")):
    return replace(analyze(np.diag([0.5, 0.2])), reasons=reasons)


def test_the_matrix_of_what_was_said():
    """The constant, a block for each term; what may be on the circle is on it where the case says so."""
    e = told_by(growth=[0.0005, -0.2, -0.3], angle=[0.5, 0.0, 0.0], paired=[True, False, False],
                flipped=[False, False, True], error=[6e-4, 1e-3, 2e-3])  # fmt: skip
    for case, r in (("invariant-set", 1.0), ("divergent", np.exp(0.0005))):
        v = judgement._spoken(case, e, ["why"], fitted())
        expected = [1, r * np.exp(0.5j), r * np.exp(-0.5j), np.exp(-0.2), -np.exp(-0.3)]
        np.testing.assert_allclose(np.sort_complex(v.eigenvalues), np.sort_complex(expected), atol=1e-12)
        assert (v.case, v.certain, v.distance, v.point) == (case, False, None, None)
        assert v.noise == 2e-3
        assert v.confidence == pytest.approx(0.99993666, abs=1e-8)
        np.testing.assert_array_equal(v.residuals, np.full(5, 0.01))
        assert v.reasons[0] == "Misfit 1.0e-03 on pairs."
        assert v.reasons[1].startswith("3 exponentials and a constant leave 1.0% of the runs over")
        assert "1.0 times as badly" in v.reasons[1]
        assert v.reasons[2] == "why"
        assert len(v.reasons) == 4
    settled = judgement._spoken("origin", told_by(), ["why"], fitted())
    np.testing.assert_allclose(np.sort(np.abs(settled.eigenvalues)), [np.exp(-0.2), *[np.exp(-0.05)] * 2, 1])


@pytest.mark.parametrize(
    ("said", "case", "word"),
    [
        ([None], "origin", "too short"),
        ([np.linalg.LinAlgError("no"), np.linalg.LinAlgError("no")], "undecided", "could not be computed"),
        ([told_by(noise=0.9), told_by(noise=0.9)], "undecided", "noise for the most part"),
        ([told_by(noise=0.9), told_by()], "origin", "All of them decay"),
        ([told_by(growth=[-0.0039, -0.2]), told_by(noise=0.9)], "origin", "decays, stays or grows"),
        ([told_by(growth=[0.01, -0.2])], "divergent", "exponentials and a constant"),
        ([np.linalg.LinAlgError("no"), None], "origin", "too short"),
    ],
)
def test_runs_that_speak_and_runs_that_do_not(said, case, word, monkeypatch):
    """What the matrix said stands where runs leave it open, and falls where they cannot be foretold."""
    asked = []

    def fit(window):
        asked.append([len(z) for z in window])
        found = said[len(asked) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(judgement, "fit_exponentials", fit)
    v = judgement.of_runs([np.ones((9, 2)), np.ones((4, 2)) * 1j], fitted())
    assert v.case == case
    assert any(word in reason for reason in v.reasons)
    assert asked == [[9, 4], [5, 2]][: len(said)]
    assert v.certain == (case == "origin" and v.confidence is None)
    if case == "undecided":
        assert v.limit is None


def test_at_rest_and_undecided():
    still = judgement._at_rest([np.zeros((3, 2)), np.ones((3, 2))], False)
    assert (still.case, still.certain) == ("fixed-point", False)
    assert judgement._at_rest([np.zeros((3, 2))], False).case == "origin"
    assert judgement._at_rest([np.zeros((3, 2))], True).case == "undecided"
    v = judgement._undecided(analyze(np.diag([1.0, 0.5])))
    assert (v.case, v.certain, v.limit, v.cesaro, v.rotation, v.period) == ("undecided", False, None, None, None, None)


def observables(z):
    return np.c_[np.ones(len(z)), z[:, 0]]


def test_how_much_of_the_state_is_seen():
    """Of x all, of y what 1 and x explain; a stream is believed where the names say what its observables are."""
    Z = np.c_[X[:, 0], 3 * X[:, 1] + X[:, 0], np.ones(60)]
    model = EDMD(observables).fit((Z, 0.5 * Z))
    y = Z[:, 1] - Z[:, 1].mean()
    span = observables(Z)
    left = np.linalg.norm(y - span @ np.linalg.lstsq(span, y, rcond=None)[0]) / np.linalg.norm(y)
    one = np.eye(model.rank_)
    assert judgement._state_missing(model, one, kept_by(model)) == pytest.approx(left)
    bare = EDMD(lambda z: z[:, :1]).fit((Z[:, :1] + 5, 0.5 * Z[:, :1]))  # without a constant it is added
    assert judgement._state_missing(bare, np.eye(1), kept_by(bare)) == pytest.approx(0, abs=1e-9)
    still = EDMD(observables).fit((np.ones((9, 2)), np.ones((9, 2))))
    assert judgement._state_missing(still, np.eye(still.rank_), kept_by(still)) == 0.0
    stream = EDMD(Monomials(1)).partial_fit((X, 0.5 * X))
    assert judgement._state_missing(stream, np.eye(3), None) == 0.0
    assert judgement._state_missing(stream, np.eye(3)[:, :2], None) == np.inf
    assert judgement._state_missing(EDMD(observables).partial_fit((X, 0.5 * X)), np.eye(2), None) == np.inf
    settled, moving = (
        replace(analyze(np.diag([0.5, 0.2])), case=case, certain=True) for case in ("origin", "divergent")
    )
    kept = kept_by(model)
    said = judgement._about_the_state(settled, model, one, kept)
    assert (said.case, said.certain) == ("undecided", False)
    assert "averages settle" in said.reasons[-1]
    said = judgement._about_the_state(moving, model, one, kept)
    assert (said.case, said.certain) == ("divergent", False)
    assert said.reasons[-1].endswith("this is about them.")
    good = EDMD(Monomials(1)).fit((X, 0.5 * X))
    assert judgement._about_the_state(settled, good, np.eye(3), kept_by(good)) is settled
    cases = set()
    for share in (0.015, 0.03):
        Z = np.c_[X[:, 0], X[:, 0] + share * np.std(X[:, 0]) * np.random.default_rng(1).standard_normal(60)]
        model = EDMD(observables).fit((Z, 0.5 * Z))
        missing = judgement._state_missing(model, np.eye(2), kept_by(model))
        said = judgement._about_the_state(settled, model, np.eye(2), kept_by(model))
        assert said.case == ("origin" if missing <= 0.02 else "undecided")
        cases.add(said.case)
    assert len(cases) == 2


def test_the_noise_of_an_exact_fit_is_rounding(monkeypatch):
    model = EDMD(Identity()).fit((X, X @ W.T))
    s = model.solution_.singular_values
    v, misfit = judgement.of_matrix(model, None, np.eye(2), kept_by(model))
    assert misfit < 1e-14
    assert v.noise == pytest.approx(EPS * max(16 * s[0] / s[-1], 128), abs=0)
    S = np.array([[1.0, 1.0], [0.0, 0.14]])
    steep = EDMD(Identity()).fit((X @ S, X @ W.T @ S))
    s = steep.solution_.singular_values
    monkeypatch.setattr(judgement, "held_out_misfit", lambda *_: 0.0)  # what rounding leaves, a processor's own
    v, _ = judgement.of_matrix(steep, None, np.eye(2), kept_by(steep))
    assert s[0] / s[-1] > 8
    assert v.noise == pytest.approx(EPS * 16 * s[0] / s[-1], rel=1e-6, abs=0)
    assert judgement.of_matrix(model, 1e-3, np.eye(2), kept_by(model))[0].noise == 1e-3


def models():
    rng = np.random.default_rng(3)
    noisy = X @ W.T + C + 1e-3 * rng.standard_normal(X.shape)
    l = np.arange(50)
    turning = 0.95 ** l[:, None] * np.c_[np.cos(0.5 * l), np.sin(0.5 * l)] + 1e-3 * rng.standard_normal((50, 2))
    yield EDMD(Monomials(2)).fit((X, X @ W.T + C)), {}
    yield EDMD(Monomials(2)).fit((X, X @ W.T + C)), {"strict": True}
    yield EDMD(Monomials(1)).fit((X, noisy)), {}
    yield EDMD(Monomials(1)).fit((X, noisy)), {"noise": 1e-2}
    yield EDMD(Monomials(1)).fit((X, noisy)), {"trust": 1e-4}
    yield EDMD(Monomials(1)).fit((X, noisy)), {"trust": 0.5}
    yield EDMD(Monomials(1)).fit((X, noisy)), {"strict": True}
    yield EDMD(Monomials(1)).partial_fit((X, noisy)), {}
    yield EDMD(observables).partial_fit((X, 0.5 * X)), {}
    yield EDMD(Monomials(2)).fit((X[:5], noisy[:5])), {}
    yield EDMD(Monomials(2)).fit((X[:7], noisy[:7])), {}
    yield EDMD(Identity()).fit(((1 + 2j) * X, (0.9j + 0.1) * (1 + 2j) * X)), {}
    yield EDMD(Identity()).fit((X, X @ W.T), control=X[:, :1]), {}
    yield EDMD(Monomials(1)).fit((X, np.c_[X[:, 0], 0.5 * X[:, 1]])), {}
    yield EDMD(Monomials(1)).fit((X, -X)), {}
    yield EDMD(Monomials(1)).fit((X, X + C)), {}
    yield EDMD(Monomials(1)).fit(turning), {}
    yield EDMD(Monomials(1)).fit(turning), {"strict": True}
    yield EDMD(Monomials(1)).fit(turning + 2), {}
    yield EDMD(Delays(2)).fit(turning[:, :1]), {}
    yield EDMD(Identity()).fit(turning[:, 0:1] + 1j * turning[:, 1:]), {}


def test_numbers_of_judgements():
    said, numbers = [], []
    for model, options in models():
        v = model.verdict(**options)
        said.append(f"{v.case} {v.certain} {v.confidence is None} {v.period} {' '.join(map(words, v.reasons))}")
        ends = [0.0 if M is None else float(np.linalg.norm(M)) for M in (v.limit, v.cesaro, v.rotation, v.point)]
        largest, left = np.abs(v.eigenvalues).max(), np.linalg.norm(v.residuals[v.residuals > 1e-9])
        numbers.append([max(v.noise, 1e-8), *ends, len(v.fixed), float(largest), v.residuals.size, float(left)])
    same("spectral/judgements", [said, numbers], rel=5e-3, near=1e-5)


def test_held_out_stretches_that_leave_too_little():
    """A pair that alone says something: without it the rest is singular, and nothing is known."""
    Z = np.c_[np.linspace(-1, 1, 40), np.r_[1.0, np.zeros(39)]]
    model = EDMD(Identity()).fit((Z, 0.5 * Z))
    assert judgement.held_out_misfit(model, np.eye(2), kept_by(model)) == np.inf
    Z[:, 1] = np.r_[1.0, np.full(39, 0.01)]
    model = EDMD(Identity()).fit((Z, 0.5 * Z))
    assert judgement.held_out_misfit(model, np.eye(2), kept_by(model)) < 1e-9
    zero = EDMD(Identity()).fit((X, 0 * X))
    assert judgement.held_out_misfit(zero, np.eye(2), kept_by(zero)) == 0.0


def test_starts_at_the_edges(monkeypatch):
    """What dies within a step or two is left out, growth is clipped at e^-5 a step; halves that cannot be computed."""
    for w, growth in ((0.0012, -5.0), (0.02, np.log(0.02)), (0.0009, None)):
        V = w ** np.arange(4.0)[:, None]
        found = exponentials._shift_invariant(V, 1, 1, 60)
        assert (found is None) == (growth is None)
        if found is not None:
            np.testing.assert_allclose(found.growth, [growth], rtol=1e-9)
    l = np.arange(60)
    bent = np.exp(np.where(l < 30, -0.02 * l, -0.6 - 0.03 * (l - 30)))[:, None]
    bent = bent + 1e-4 * np.random.default_rng(0).standard_normal((60, 1))
    one = Terms(np.array([-0.025]), np.zeros(1), np.array([False]), np.array([False]))
    drift = exponentials._drift([bent], one)
    two = exponentials._drift([np.hstack([bent, 2 * bent]), np.hstack([bent, bent])], TERMS)
    same("spectral/inside drift", [drift, two, exponentials._drift(three_runs(1e-4), TERMS)], rel=1e-4)

    def fails(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(exponentials, "residual", fails)
    assert exponentials._drift([bent], one).tolist() == [np.inf]
    assert exponentials._drift([bent], TERMS).tolist() == [np.inf] * 3
    assert exponentials._drift([bent[:7]], one).tolist() == [np.inf]
