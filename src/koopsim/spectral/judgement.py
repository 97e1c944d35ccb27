"""A verdict from data: what a fitted Koopman matrix may be believed, and what the runs themselves say.

A matrix that was fitted to data is believed as far as it foretells pairs it was not fitted to. In observables psi that
are orthogonal over the samples, the matrix without a stretch b of them is

    K_b = (G - G_b)^-1 (C - C_b),      G = psi(X)^T psi(X),   C = psi(X)^T psi(Y),   G_b and C_b those of the stretch,

and `misfit` is the error of each K_b on its own stretch. As many pairs as observables leave K_b undetermined: then the
data prove nothing. Three kinds of answers follow:

    misfit at rounding    the dictionary is closed: a verdict on the matrix, certain where `analysis.py` has a proof
    larger, from runs     a verdict on the exponentials of whole runs (`exponentials.py`), with its confidence
    larger, from pairs    a verdict on the matrix by assumption, never certain

and whatever the eigenvalues are, that averages settle is not that states do: an origin or a fixed point is only
claimed where the state is a combination of the observables that were judged.
"""

from __future__ import annotations

from dataclasses import replace
from math import erf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from .analysis import analyze
from .constant import discount
from .exponentials import Exponentials, fit_exponentials, in_own_units
from .kept import Kept, kept_by, trusted, without_constant
from .verdict import Case, Verdict

if TYPE_CHECKING:
    from .edmd import EDMD

Array = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)
CLOSED = 1e-6  # a misfit below this is that of a closed dictionary, and of data without noise
FOLDS = 5  # stretches that are held out, one at a time
SPANNED = 0.02  # the state is in the span when this share of its spread, or less, is not
WIDE = 4.0  # standard errors on either side of a growth rate
CONFIDENCE = erf(WIDE / sqrt(2))
FORETOLD = 2.0  # samples not fitted may be off by this many times what the fit left over
PRECISE = 0.02  # or by this share of the data, if that is more
SIGNAL = 0.6  # what is left over is at most this share of the data
PASSED = 0.1  # a column may leave this share of its spread over that is no noise
STEADY = 0.25  # on the circle: the amplitude surely changes by less than this share over the run
MINOR = 0.1  # terms below this share of the largest need only be compatible with the circle
SAME = 0.1  # exponentials: the halves of a run agree on the growth to this share of it, or to this over the run
TURNS = 2.0  # that must have been seen of a rotation
ROUNDING = 16 * EPS  # of a fit, for each unit of its condition
ROUNDING_OF_A_ROW = 64 * EPS  # of an analysis, for each row
TREND = "One of them may be a trend: neither at rest nor growing, as far as the data tell."
RAMP = "What moves is too little beside what does not for this: the observables may lack the constant, 1."
WORST = 0.99  # a noise that is given to an analysis is below one
KNOWN = 1e-9  # no matrix of a fit is believed to carry the constant to itself any better
DETERMINED = 1e-6  # of the largest eigenvalue of G - G_b: with less in some direction K_b is not determined


def judge(model: EDMD, noise: float | None, trust: float | None, strict: bool) -> Verdict:
    """The verdict on a fitted model; see `EDMD.verdict`."""
    kept = kept_by(model)
    basis = np.eye(model.rank_) if trust is None else trusted(model, trust)
    if kept is not None and kept.runs is not None and not any(np.any(z != z[0]) for z in kept.runs):
        return _at_rest(kept.runs, strict)
    verdict, misfit = of_matrix(model, noise, basis, kept)
    ramp = noise is None and not _shown_by_what_moves(verdict, model, basis, kept)
    if ramp:
        verdict = _undecided(replace(verdict, reasons=(*verdict.reasons, RAMP)))
    if noise is None and misfit > CLOSED:
        verdict = replace(verdict, certain=False)
    open_ = misfit > CLOSED or verdict.case == "undecided"
    if noise is None and trust is None and open_ and kept is not None and kept.runs is not None:
        verdict = of_runs(kept.runs, verdict)
    if strict and not verdict.certain:
        return verdict.withheld()
    return verdict


def of_matrix(model: EDMD, noise: float | None, basis: Array, kept: Kept | None) -> tuple[Verdict, float]:
    """(verdict on the fitted matrix restricted to `basis`, its misfit on pairs that were held out)."""
    s = model.solution_
    core = basis.conj().T @ s.core @ basis
    condition = float(s.singular_values[0] / s.singular_values[-1])
    rounding = max(ROUNDING * condition, ROUNDING_OF_A_ROW * len(core))
    misfit = held_out_misfit(model, basis, kept)
    level = min(max(misfit, rounding), WORST) if noise is None else noise
    verdict = analyze(core.T, level)
    nearest = np.abs(verdict.eigenvalues[:, None] - model.eigenvalues_).argmin(axis=1)
    verdict = replace(verdict, residuals=model.residuals_[nearest])
    if noise is None:
        counted = f"{model.n_samples_seen_} pairs for {len(core)} observables"
        said = f"Misfit {misfit:.1e} on pairs that were held out; {counted}."
        if not np.isfinite(misfit):
            said = f"{counted}: too few to hold any out, so nothing is shown."
        verdict = replace(verdict, reasons=(said, *(r.replace("(as given)", "(the misfit)") for r in verdict.reasons)))
    if noise is None and not np.isfinite(misfit):
        return _undecided(verdict), misfit
    if s.constant is not None:
        delta = max(verdict.noise, KNOWN) * float(np.linalg.norm(core))
        try:
            verdict = discount(verdict, basis.T @ s.constant, delta, without_constant(model) @ basis)
        except ValueError:
            note = "The constant is not carried to itself by the observables that were kept."
            verdict = _undecided(replace(verdict, reasons=(*verdict.reasons, note)))
    verdict = verdict.in_coordinates(s.up.T @ basis, basis.conj().T @ s.down.T)
    return _about_the_state(verdict, model, basis, kept), misfit


def held_out_misfit(model: EDMD, basis: Array, kept: Kept | None) -> float:
    """||psi(Y) - psi(X) K_b|| / ||psi(Y)|| over stretches b that K_b was not fitted to; infinite where none is."""
    s, m = model.solution_, model.n_samples_seen_
    r = len(s.core)
    if m <= r:
        return np.inf
    if kept is None:  # a stream: what leaving one pair out does on average
        return s.misfit(basis, basis.conj().T @ s.core @ basis) * sqrt((m + r) / (m - r))
    X, Y = kept.now @ s.down, kept.after @ s.down
    G, C = m * (s.now.conj().T @ s.now), m * (s.now.conj().T @ s.after)
    wrong = size = 0.0
    for rows in np.array_split(np.arange(len(X)), min(FOLDS, len(X))):
        x, y = X[rows], Y[rows]
        rest = G - x.conj().T @ x
        values, vectors = np.linalg.eigh((rest + rest.conj().T) / 2)
        if values[0] <= DETERMINED * values[-1]:
            return np.inf
        K = vectors @ ((vectors.conj().T @ (C - x.conj().T @ y)) / values[:, None])
        wrong += float(np.sum(np.abs((y - x @ K) @ basis) ** 2))
        size += float(np.sum(np.abs(y @ basis) ** 2))
    return sqrt(wrong / size) if size > 0 else 0.0


def _shown_by_what_moves(verdict: Verdict, model: EDMD, basis: Array, kept: Kept | None) -> bool:
    """Whether the misfit allows as much when it is measured by what moves.

    Without the constant among the observables a slow decay foretells a ramp, the better the further that is from zero.
    """
    s = model.solution_
    if s.constant is not None or kept is None or not (verdict.certain or verdict.case == "origin"):
        return True
    X, Y = kept.now @ s.down @ basis, kept.after @ s.down @ basis
    core = basis.conj().T @ s.core @ basis
    spread, directions = np.linalg.svd(Y - Y.mean(axis=0), full_matrices=False)[1:]
    moves = spread > ROUNDING_OF_A_ROW * np.linalg.norm(Y)
    left = (Y - X @ core) @ directions[moves].conj().T / spread[moves]
    level = max(float(np.linalg.norm(left)), ROUNDING_OF_A_ROW * len(core))
    found = analyze(core.T, min(level, WORST))
    return found.case == verdict.case and found.certain >= verdict.certain


def _about_the_state(verdict: Verdict, model: EDMD, basis: Array, kept: Kept | None) -> Verdict:
    """Settling is a claim about states: undecided where the observables that were judged do not hold the state."""
    missing = _state_missing(model, basis, kept)
    if missing <= SPANNED or verdict.case == "undecided":
        return verdict
    note = (
        f"The state is no combination of the observables that were judged: {missing:.0%} of its spread is not in them"
    )
    if verdict.case in ("origin", "fixed-point"):
        return _undecided(
            replace(verdict, reasons=(*verdict.reasons, f"{note}. That averages settle is not that it does."))
        )
    return replace(verdict, certain=False, reasons=(*verdict.reasons, f"{note}; this is about them."))


def _state_missing(model: EDMD, basis: Array, kept: Kept | None) -> float:
    """Share of the spread of the state that the judged observables do not hold."""
    s = model.solution_
    if kept is None:
        whole = basis.shape[1] == len(s.core)
        return 0.0 if whole and getattr(model.dictionary_, "names_", None) is not None else np.inf
    X = kept.now @ s.down @ basis
    constant = np.ones((len(X), 1))
    span = X if s.constant is not None else np.hstack([X, constant])
    Z = kept.states - kept.states.mean(axis=0)
    spread = np.abs(Z).max(axis=0)
    Z = Z[:, spread > 0] / spread[spread > 0]
    if not Z.size:
        return 0.0
    left = Z - span @ np.linalg.lstsq(span, Z, rcond=None)[0]
    return float(np.max(np.linalg.norm(left, axis=0) / np.linalg.norm(Z, axis=0)))


def of_runs(runs: list[Array], otherwise: Verdict) -> Verdict:
    """The verdict on whole trajectories; `otherwise` where they do not decide, unless they speak against it."""
    real = [np.hstack([np.real(z), np.imag(z)]) if np.iscomplexobj(z) else z for z in runs]
    windows = [real, [z[len(z) // 2 :] for z in real]]  # the second is past what a limit cycle is approached in
    notes: list[str] = []
    contradicted = True  # no matrix that says otherwise is believed of runs that cannot be foretold
    for window in windows:
        try:
            found = fit_exponentials(window)
        except np.linalg.LinAlgError as error:
            notes.append(f"The exponentials of the runs could not be computed ({error}).")
            continue
        if found is None:
            notes.append("The runs are too short to be fitted by exponentials.")
            contradicted = False
            break
        if found.unseen > PASSED and window is real:
            windows.append(in_own_units(real))  # where small numbers count as much as large ones
        problem = unfit(found)
        case, why = ("undecided", [problem]) if problem else decide(found)
        if case != "undecided":
            return _spoken(case, found, why, otherwise)
        notes += why
        contradicted = contradicted and problem is not None
    verdict = replace(otherwise, reasons=(*otherwise.reasons, *dict.fromkeys(notes)))
    settles = otherwise.case in ("origin", "fixed-point")  # a ramp downwards is foretold well by a slow decay
    return _undecided(verdict) if contradicted or (settles and TREND in notes) else verdict


def unfit(e: Exponentials) -> str | None:
    """Why a fit of exponentials is not to be believed, None if it is."""
    if e.noise > SIGNAL:
        return f"As sums of exponentials the runs are noise for the most part: {e.noise:.0%} of them is left over."
    if e.foretold > FORETOLD and e.foretold * e.noise > PRECISE:
        return (
            f"Exponentials fitted to the first part of the runs do not foretell the rest: it is off by "
            f"{e.foretold:.1f} times what the fit left over."
        )
    major = e.amplitude >= MINOR * e.amplitude.max()
    if np.any((e.drift > SAME * np.maximum(np.abs(e.growth), 1.0 / e.length))[major]):
        return "The runs are no sums of exponentials: growth in their first half is not that in their second."
    if e.unseen > PASSED:
        return f"Some column moves by itself: {e.unseen:.0%} of its own spread is left over, and that is no noise."
    return None


def decide(e: Exponentials) -> tuple[Case, list[str]]:
    """The case of a sum of exponentials whose growth rates have errors."""
    low, high = e.growth - WIDE * e.error, e.growth + WIDE * e.error
    major = e.amplitude >= MINOR * e.amplitude.max()
    out = (low > 0) & (major | (low * e.length > STEADY))  # growth of a minor term must be seen, too
    on = (high >= 0) & ~out
    steady = np.maximum(np.abs(low), np.abs(high)) * e.length <= STEADY
    lines = [
        f"{'A pair' if p else 'A term'} with log |lambda| = {g:.3g}, between {a:.3g} and {b:.3g}"
        + (f", {w / (2 * np.pi):.4g} turns a step" if p else "") + "."
        for g, a, b, w, p in zip(e.growth, low, high, e.angle, e.paired, strict=True)
    ]  # fmt: skip
    if np.any(out):
        return "divergent", lines
    if np.any(on & ~e.paired & ~e.flipped):
        return "undecided", [*lines, TREND]
    if np.any(on):
        if np.any(on & major & ~steady) or not np.any(on & major):
            return "undecided", [*lines, "The data leave open whether one of them decays, stays or grows."]
        turns = np.abs(np.where(e.flipped, np.pi, e.angle)) * e.length / (2 * np.pi)
        if np.any(turns[on & major] < TURNS):
            return "undecided", [*lines, f"Fewer than {TURNS:.0f} turns of it were seen."]
        return "invariant-set", lines
    size, error = float(np.hypot(np.sqrt(np.mean(e.rest**2)), e.aside)), e.rest_error
    if size <= WIDE * error and not e.aside:
        return "origin", [*lines, f"All of them decay, to zero as far as the data tell ({size:.1e} +- {error:.1e})."]
    return "fixed-point", [*lines, f"All of them decay, to a point away from zero ({size:.1e} +- {error:.1e})."]


def _spoken(case: Case, e: Exponentials, why: list[str], fitted: Verdict) -> Verdict:
    """The verdict on the matrix of the fitted terms: the constant first, then a block for each."""
    blocks = [np.ones((1, 1))]
    on = e.growth + WIDE * e.error >= 0
    for g, angle, pair, flip, circle in zip(e.growth, e.angle, e.paired, e.flipped, on, strict=True):
        r = 1.0 if circle and case == "invariant-set" else np.exp(g)
        c, s = r * np.cos(angle), r * np.sin(angle)
        blocks.append(np.array([[c, -s], [s, c]]) if pair else np.array([[-r if flip else r]]))
    verdict = analyze(np.asarray(block_diag(*blocks)), constant=0)
    head = (
        f"{len(blocks) - 1} exponentials and a constant leave {e.noise:.1%} of the runs over, and foretell samples "
        f"they were not fitted to {e.foretold:.1f} times as badly. Each statement has a confidence of {CONFIDENCE:.3%}."
    )
    note = "`eigenvalues` and what goes with them are those of the fitted terms."
    return replace(
        verdict, case=case, certain=False, confidence=CONFIDENCE, distance=None, noise=float(e.error.max()),
        residuals=np.full(verdict.eigenvalues.size, e.noise), point=None, _angle_error=(1.0, float(e.error.max())),
        reasons=(*(r for r in fitted.reasons if r.startswith("Misfit")), head, *why, note),
    )  # fmt: skip


def _at_rest(runs: list[Array], strict: bool) -> Verdict:
    """Nothing moves in the data: the state is at a point, whatever other starts may do."""
    zero = not any(np.any(z) for z in runs)
    note = "Nothing moves in the data: they rest where they start. What other starts do was not seen."
    verdict = replace(analyze(np.ones((1, 1))), case="origin" if zero else "fixed-point", reasons=(note,))
    return verdict.withheld() if strict else verdict


def _undecided(verdict: Verdict) -> Verdict:
    return replace(verdict, case="undecided", certain=False, limit=None, cesaro=None, rotation=None, period=None)
