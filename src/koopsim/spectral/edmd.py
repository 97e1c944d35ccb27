"""Extended dynamic mode decomposition: a Koopman matrix from trajectories.

    phi(z_{l+1}) = A phi(z_l) + B u_l,   A, B = argmin sum ||phi(z_{l+1}) - A phi(z_l) - B u_l||^2   paper, section 2.2
    (K g)(z, x) = g(f(z, x), x)          with inputs x held fixed                                   paper, eq. (4)

Eigenfunctions g_i(z) = phi(z) . v_i grow by lambda_i a step, the state is z = sum_i g_i(z) modes_i, and each
pair (lambda_i, v_i) has a residual that is small only if it is a true one (`regression.py`). With the identity for phi
this is dynamic mode decomposition, with a control u DMDc (Proctor et al. 2016), with `Delays` Hankel-DMD.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from koopsim.files.masks import unmasked

from . import continuous, horizon, resdmd
from .delays import Delays
from .dictionary import Identity, Monomials, as_dictionary
from .factor import Columns, gram_matrix, root
from .regression import IN_SPAN, ColumnLayout, Settings, Solution, Triangle, solve
from .snapshots import row_space
from .trajectories import LiftedPairs, Stretch, controls, held_inputs, layout, lifted_pairs, lifted_runs, stretches
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .continuous import ModeTable

Array = NDArray[Any]  # float64, or complex128 for complex states
ENTRIES = 2**23  # numbers in a block of lifted samples: 64 MB


def _fresh(dictionary: Any) -> Any:
    """An unfitted copy, as scikit-learn does; things it cannot clone are used as they are."""
    return clone(dictionary) if isinstance(dictionary, BaseEstimator) else dictionary


def _require_samples(array: Array) -> None:
    """What scikit-learn would say in a paragraph."""
    if array.ndim == 1:
        raise ValueError(f"states are (samples, dimensions), got shape {array.shape}. Reshape your data: z[:, None].")
    wrong = ~np.isfinite(array) if array.dtype.kind in "fc" and array.ndim == 2 else np.zeros((1, 1), dtype=bool)
    if wrong.any():
        raise ValueError(
            f"{int(wrong.sum())} of {array.size} values are NaN, infinity or masked, the first in row "
            f"{int(wrong.any(axis=1).argmax())}: spectral.without_gaps(z) cuts a trajectory there"
        )


class EDMD(TransformerMixin, BaseEstimator):
    """Koopman matrix, eigenvalues, eigenfunctions, modes, residuals and forecasts from data.

    Parameters
    ----------
    dictionary
        Identity, Monomials, RandomFourier, Nystrom, Observables, Lift, Delays, LearnedDictionary, any scikit-learn
        transformer, a torch module or a function of an (m, d) array. None: monomials of degree 2, or the states
        themselves where there are more than 30 of them.
    ridge
        Tikhonov damping, relative to observables of unit root mean square and one sample.
    rank
        Keep at most so many directions of the lifted data (truncated SVD; of the states as they are, of other
        observables in units of their root mean square). "auto": those above white noise (Gavish & Donoho 2014).
    rtol
        Drop directions whose singular value is below this share of the largest. None: rounding level.
    chunk
        Samples lifted at a time. None: as many as make 64 MB.
    dt
        Time between samples, in the units in which rates and frequencies are wanted.
    device
        Where torch does the large products ("cuda"); None: NumPy does.
    """

    n_features_in_: int

    def __init__(
        self,
        dictionary: Any = None,
        ridge: float = 0.0,
        rank: int | str | None = None,
        rtol: float | None = None,
        chunk: int | None = None,
        dt: float = 1.0,
        device: str | None = None,
    ):
        self.dictionary = dictionary
        self.ridge = ridge
        self.rank = rank
        self.rtol = rtol
        self.chunk = chunk
        self.dt = dt
        self.device = device

    def fit(self, X: Any, y: Any = None, inputs: Any = None, control: Any = None) -> EDMD:
        """Fit one trajectory (m, d), a list of trajectories, or pairs: a tuple (X, Y), or y with X's shape.

        A `y` of any other width is a target in scikit-learn's sense, and ignored as its conventions ask. `inputs` are
        held fixed along a trajectory; `control` has a row for each step (lists of these for lists of trajectories).
        """
        return self._absorb(X, y, inputs, control, stream=False)

    def partial_fit(self, X: Any, y: Any = None, inputs: Any = None, control: Any = None) -> EDMD:
        """Add more data: memory stays O(N^2). No pair is formed between two calls."""
        return self._absorb(X, y, inputs, control, stream=True)

    def _absorb(self, X: Any, y: Any, inputs: Any, control: Any, stream: bool) -> EDMD:
        self._check_parameters()
        reset = not (stream and hasattr(self, "dictionary_"))
        kind, parts = self._parts(X, y, reset)
        held, steering = held_inputs(inputs, kind, parts), controls(control, kind, parts)
        widths = tuple(0 if part is None else part.shape[1] for part in (held[0], steering[0]))
        chosen = _fresh(as_dictionary(self.dictionary, parts[0].shape[1])) if reset else self.dictionary_
        X_, Y = self._stretches(kind, parts, held, steering, chosen)
        if reset:
            self.n_inputs_, self.n_controls_ = widths
            self._begin(chosen, X_, Y)
            self._triangle = Triangle(self.device, leading=not stream)
        elif widths != (self.n_inputs_, self.n_controls_):
            raise ValueError(
                f"this model was fitted with {self.n_inputs_} inputs and {self.n_controls_} controls; "
                f"got {widths[0]} and {widths[1]}"
            )
        elif self._triangle.leading:
            self._open()
        if reset and not stream:
            self._narrow(X_, Y)
        for block in self._blocks(X_, Y):
            self._triangle.add(self._columns(block))
        self.n_samples_seen_ = self._triangle.rows
        self._data = None if stream else (X_, Y)  # as given, not copied
        self._cache: dict[str, Any] = {}
        return self

    def _parts(self, X: Any, y: Any, first: bool) -> tuple[str, list[Array]]:
        """How the data are laid out, and each array of theirs, checked."""
        kind, raw = layout(X, y)
        parts: list[Array] = []
        for i, part in enumerate(raw):
            if kind == "many" and np.ndim(part) == 2 and np.shape(part)[0] < 2:
                raise ValueError(f"trajectory {i} has {np.shape(part)[0]} sample(s); a pair needs at least 2")
            parts.append(self._numbers(part, first and i == 0, 1 if kind == "pairs" else 2))
        return kind, parts

    def _narrow(self, X: list[Stretch], Y: list[Stretch]) -> None:
        """Where there are fewer samples than observables, only what the samples span is fitted."""
        if sum(run.states.shape[0] for run in X) < self.n_observables_:
            self._basis = row_space(np.concatenate([self._lift(run.seen) for run in (*X, *Y)]))

    def _open(self) -> None:
        """After fit(), room for more samples: all of R, of all observables."""
        assert self._data is not None
        self._triangle, self._basis = Triangle(self.device), None
        for block in self._blocks(*self._data):
            self._triangle.add(self._columns(block))

    def _check_parameters(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f"ridge must be >= 0; got {self.ridge}")
        rank: Any = self.rank
        if rank is not None and rank != "auto" and not (isinstance(rank, Integral) and int(rank) >= 1):
            raise ValueError(f'rank must be a whole number >= 1, "auto" or None; got {self.rank!r}')
        if not (np.isfinite(self.dt) and self.dt > 0):
            raise ValueError(f"dt is the time between two samples and must be > 0; got {self.dt}")

    def _numbers(self, part: Any, first: bool, least: int) -> Array:
        """Finite float64 or complex128, as wide as what was fitted."""
        if self._plainly_good(part, first, least):
            return part
        part = unmasked(part)
        array: Any = np.asarray(part)
        _require_samples(array)
        wanted: Any = np.float64
        if not np.iscomplexobj(array):
            return validate_data(self, part, reset=first, dtype=wanted, ensure_min_samples=least)  # type: ignore[return-value]
        validate_data(self, array.real, reset=first, dtype=wanted, ensure_min_samples=least)
        check_array(array.imag, dtype=wanted)
        return array.astype(np.complex128, copy=False)

    def _plainly_good(self, part: Any, first: bool, least: int) -> bool:
        """What scikit-learn's checks, at half a millisecond a trajectory, would let pass unchanged."""
        if type(part) is not np.ndarray or part.dtype != np.float64 or part.ndim != 2 or part.shape[0] < least:
            return False
        if hasattr(self, "feature_names_in_") or not part.shape[1]:
            return False
        flat = part.ravel(order="K")
        with np.errstate(all="ignore"):  # half the price of looking at each; an overflow is looked at again
            if not np.isfinite(np.dot(flat, flat)):
                return False
        if first:
            self.n_features_in_ = part.shape[1]
        return part.shape[1] == self.n_features_in_

    def _stretches(
        self, kind: str, parts: list[Array], held: list[Array | None], control: list[Array | None], dictionary: Any
    ) -> tuple[list[Stretch], list[Stretch]]:
        """What the dictionary sees of trajectories, or of the two sides of pairs: then the second list has one too."""
        past = dictionary if isinstance(dictionary, Delays) else None
        if kind != "pairs":
            return stretches(parts, held, control, past), []
        if past is not None:
            raise ValueError("delays need trajectories: pairs have no past")
        u = held[0]
        X, Y = (Stretch(z, z if u is None else np.hstack([z, u]), control[0]) for z in parts)
        return [X], [Y]

    def _begin(self, dictionary: Any, X: list[Stretch], Y: list[Stretch]) -> None:
        """Fit the dictionary."""
        if hasattr(dictionary, "fit_pairs"):
            now, after = (X[0].seen, Y[0].seen) if Y else [
                np.concatenate([run.seen[cut] for run in X]) for cut in (slice(-1), slice(1, None))
            ]  # fmt: skip
            dictionary.fit_pairs(now, after)
        else:
            both = [run.seen for run in (*X, *Y)]
            enough = len(both) == 1 or isinstance(dictionary, (Identity, Monomials))  # these look at the width alone
            dictionary.fit(both[0] if enough else np.concatenate(both))
        self.dictionary_, self._basis = dictionary, None
        self.n_observables_ = self._lift(X[0].seen[:1]).shape[1]

    def _blocks(self, X: list[Stretch], Y: list[Stretch]) -> Iterator[LiftedPairs]:
        rows = self.chunk or max(ENTRIES // self.n_observables_, 8 * self.n_observables_)
        return lifted_pairs(X[0], Y[0].seen, self._coordinates, rows) if Y else lifted_runs(X, self._coordinates, rows)

    def _columns(self, block: LiftedPairs) -> Columns:
        lead = block.now
        states = block.states if self._state_columns is None else np.empty((lead.shape[0], 0))
        if block.control is not None:
            lead = np.hstack([block.control, lead])
        return Columns(lead, block.after, states)

    @property
    def _state_columns(self) -> Array | None:
        """Where among the observables the states are, if they are known to be."""
        columns = getattr(self.dictionary_, "state_columns_", None)
        return None if columns is None else columns[: self.n_features_in_]

    def _lift(self, seen: Array) -> Array:
        out = np.asarray(self.dictionary_.transform(seen))
        out = out.astype(np.complex128 if np.iscomplexobj(out) else np.float64, copy=False)
        if isinstance(self.dictionary_, Identity):
            return out
        if not np.isfinite(out).all():
            raise ValueError("the dictionary gave NaN or infinity; scale the states, or lower its degree")
        return out

    def _coordinates(self, seen: Array) -> Array:
        phi = self._lift(seen)
        return phi if self._basis is None else phi @ self._basis

    @property
    def solution_(self) -> Solution:
        check_is_fitted(self, "dictionary_")
        if "solution" not in self._cache:
            N = self.n_observables_ if self._basis is None else self._basis.shape[1]
            B, columns = self._basis, self._state_columns
            inside = columns if B is None or columns is None else np.empty(0, dtype=int)
            scaled = B is None and not isinstance(self.dictionary_, Identity)
            where = ColumnLayout(self.n_controls_, N, self.n_features_in_, inside)
            settings = Settings(self.ridge, self.rank, self.rtol, scaled, self.n_observables_)
            found = solve(self._triangle, where, settings, self._misfit if self._triangle.leading else None)
            if B is not None:
                found = replace(found, up=found.up @ B.conj().T, down=B @ found.down)
                found = found if columns is None else replace(found, decode=found.up[:, columns])
            self._cache["solution"] = found
        return self._cache["solution"]

    def _misfit(self, down: Array, core: Array, control: Array) -> Array:
        """T with T^H T = E^H E / m, E = psi(Y) - psi(X) core - u control, on the samples that were fitted."""
        if self._data is None:
            raise ValueError("residuals need the samples, or a model that was fed by partial_fit alone; fit again")
        G, size = np.zeros((core.shape[0],) * 2, dtype=core.dtype), 0.0
        for block in self._blocks(*self._data):
            psi = block.now @ down
            E = block.after @ down - psi @ core
            if block.control is not None:
                E -= block.control @ control
            G, size = G + gram_matrix(E), size + float(np.vdot(psi, psi).real)
        m, r = self.n_samples_seen_, core.shape[0]
        if not self.n_controls_ and abs(size / m - r) > 1e-3 * r and self.solution_.spectrum is None:
            raise ValueError("the data were changed after fit(), which keeps no copy of them; fit again")
        return root(G) / np.sqrt(m)

    @property
    def koopman_matrix_(self) -> Array:
        """A with phi(z_{l+1}) = A phi(z_l), N x N."""
        s = self.solution_
        return ((s.down @ s.core) @ s.up).T

    @property
    def control_matrix_(self) -> Array:
        """B with phi(z_{l+1}) = A phi(z_l) + B u_l, N x p."""
        s = self.solution_
        return (s.control @ s.up).T

    @property
    def rank_(self) -> int:
        """How many directions of the lifted data were kept; below N, phi is redundant on these data."""
        return self.solution_.core.shape[0]

    @property
    def _spectrum(self) -> tuple[Array, Array]:
        if "eigen" not in self._cache:
            w, v = np.linalg.eig(self.solution_.core)
            order = np.lexsort((-np.imag(w), -np.round(np.abs(w), 12)))
            self._cache["eigen"] = (w[order].astype(complex), v[:, order].astype(complex))
        return self._cache["eigen"]

    @property
    def eigenvalues_(self) -> NDArray[Any]:
        """`rank_` eigenvalues, largest modulus first."""
        return self._spectrum[0]

    @property
    def residuals_(self) -> Array:
        """ResDMD residual of each eigenpair: ||g(f(z)) - lambda g(z)|| / ||g||. Large means spurious."""
        return self.solution_.residuals(*self._spectrum)

    @property
    def modes_(self) -> NDArray[Any]:
        """(d, rank_): z = sum_i eigenfunction_i(z) modes_[:, i]."""
        return np.linalg.lstsq(self._spectrum[1], self.solution_.decode.astype(complex), rcond=None)[0].T

    @property
    def rates_(self) -> NDArray[Any]:
        """log(eigenvalues_) / dt: growth + 2 pi i frequency, in the units of dt."""
        return continuous.rates(self.eigenvalues_, self.dt)

    @property
    def frequencies_(self) -> Array:
        """Turns a unit of time; a conjugate pair has both signs."""
        return np.imag(self.rates_) / (2 * np.pi)

    @property
    def growth_rates_(self) -> Array:
        """Exponential growth a unit of time; negative: decay."""
        return np.real(self.rates_)

    @property
    def generator_(self) -> Array:
        """L with d/dt phi = L phi and exp(L dt) = A, on the directions kept, N x N."""
        s = self.solution_
        return ((s.down @ continuous.logarithm(s.core, self.dt)) @ s.up).T

    def mode_table(self, X: Any = None, inputs: Any = None) -> ModeTable:
        """Frequency, growth, lifetime, amplitude and residual of each mode; amplitudes are those along X."""
        return continuous.mode_table(self, X, inputs)

    def pseudospectrum(self, points: Any) -> Array:
        """min_g ||K g - z g|| / ||g|| over the dictionary at each complex z: an upper bound of the true one."""
        return resdmd.pseudospectrum(self.solution_, points)

    def residuals_on(self, X: Any, y: Any = None, inputs: Any = None) -> Array:
        """Residuals of the eigenpairs on other data than were fitted: what a spurious pair cannot keep small."""
        return resdmd.residuals_on(self, X, y, inputs)

    def _seen(self, X: Any, inputs: Any) -> tuple[Array, Array]:
        """States, and what the dictionary sees of them; with delays, those that have their whole past."""
        check_is_fitted(self, "dictionary_")
        Z = self._numbers(X, False, 1)
        u = held_inputs(inputs, "one", [Z])[0]
        if (0 if u is None else u.shape[1]) != self.n_inputs_:
            raise ValueError(
                f"this model was fitted with {self.n_inputs_} inputs; got {0 if u is None else u.shape[1]}"
            )
        seen = Z
        if isinstance(self.dictionary_, Delays):
            past = self.dictionary_.history
            seen, Z, u = self.dictionary_.windows(Z), Z[past:], None if u is None else u[past:]
        return Z, seen if u is None else np.hstack([seen, u])

    def transform(self, X: Any, inputs: Any = None) -> Array:
        """phi(X), one row per sample (with delays: per sample that has its past)."""
        return self._lift(self._seen(X, inputs)[1])

    def eigenfunctions(self, X: Any, inputs: Any = None) -> NDArray[Any]:
        """g_i(X), one column per eigenvalue."""
        return self.transform(X, inputs) @ (self.solution_.down @ self._spectrum[1])

    def _steered(self, control: Any, steps: int) -> Array:
        """(steps, r): what the control adds to psi at each step."""
        given = 0 if control is None else np.shape(control)[0]
        if not self.n_controls_ and control is None:
            return np.zeros((steps, self.rank_))
        if given < steps or not self.n_controls_:
            raise ValueError(f"{steps} steps of a model with {self.n_controls_} controls; got {given} rows of control")
        (u,) = controls(np.asarray(control)[:steps], "pairs", [np.empty((steps, 0))])
        assert u is not None
        if u.shape[1] != self.n_controls_:
            raise ValueError(f"this model was fitted with {self.n_controls_} controls; got {u.shape[1]}")
        return u @ self.solution_.control

    def predict(self, X: Any, inputs: Any = None, control: Any = None) -> Array:
        """The state one step later, one row per sample."""
        s, phi = self.solution_, self.transform(X, inputs)
        return (phi @ (s.down @ s.core) + self._steered(control, phi.shape[0])) @ s.decode

    def forecast(self, X: Any, steps: int, inputs: Any = None, relift: bool = False, control: Any = None) -> Array:
        """(steps + 1, ...) states starting at X; `relift` maps to the state and back at each step.

        X is one state (d,), or several (n, d). A model with delays takes a history (m, d) and goes on from its end.
        """
        one = np.ndim(X) == 1 or isinstance(self.dictionary_, Delays)
        Z, seen = self._seen(np.atleast_2d(X), inputs)
        if isinstance(self.dictionary_, Delays):
            if relift:
                raise ValueError("relift=True needs a model without delays: a state alone has no past to lift")
            Z, seen = Z[-1:], seen[-1:]
        s, out, push = self.solution_, [Z], self._steered(control, steps)
        psi = self._lift(seen) @ s.down
        for l in range(steps):
            psi = psi @ s.core + push[l]
            out.append(psi @ s.decode)
            if relift:
                psi = self.transform(check_array(out[-1]), inputs) @ s.down
        result = np.stack(out)
        return result[:, 0] if one else result

    def forecast_errors(self, X: Any, steps: int, inputs: Any = None, control: Any = None) -> Array:
        """(steps + 1, d): root mean square error of forecasts that many steps ahead, from starts all along X."""
        return horizon.forecast_errors(self, X, steps, inputs, control)

    def score(self, X: Any, y: Any = None, inputs: Any = None) -> float:
        """R^2 of one-step predictions along the trajectory X, or of y from X where it has X's shape; 1 is perfect."""
        from sklearn.metrics import r2_score

        kind, parts = layout(X, y)
        if kind == "many":
            raise ValueError("score takes one trajectory, or pairs (X, y)")
        past = self.dictionary_.history if isinstance(self.dictionary_, Delays) else 0
        now, after = (parts[0], np.asarray(parts[1])) if kind == "pairs" else (parts[0][:-1], np.asarray(X)[1 + past :])
        return float(r2_score(after, self.predict(now, inputs)))

    def verdict(self, noise: float | None = None, trust: float | None = None, strict: bool = False) -> Verdict:
        """Does the system settle, oscillate or blow up? The constant observable is discounted.

        `noise` defaults to the misfit on pairs that were held out; where that is not rounding and the data are
        trajectories, exponentials are fitted to them as a whole and the verdict has a `confidence`. `trust` leaves out
        eigenpairs with a larger residual than this, and the verdict is on the rest alone. `strict`: only what is
        certain. The whitened observables are analysed, the answer is given in terms of phi. See `judgement.py`.
        """
        from .judgement import judge

        return judge(self, noise, trust, strict)

    def _kept(self) -> Any:
        """What a verdict needs of the data; None after partial_fit, which keeps none, and with controls."""
        from .judgement import MOST_ROWS, Kept

        if self._data is None or self.n_controls_:
            return None
        X, Y = self._data
        rows = min(MOST_ROWS, max(ENTRIES // self.n_observables_, 8))
        found: list[LiftedPairs] = []
        for block in lifted_pairs(X[0], Y[0].seen, self._lift, rows) if Y else lifted_runs(X, self._lift, rows):
            found.append(block)
            if sum(len(b.now) for b in found) >= MOST_ROWS:
                break
        columns = (np.concatenate([getattr(b, name) for b in found]) for name in ("now", "after", "states"))
        return Kept(*columns, runs=None if Y or self.n_inputs_ else [run.states for run in X])

    def _trusted(self, trust: float) -> Array:
        """Orthonormal basis of the span of the eigenfunctions with residual <= trust."""
        chosen = self._spectrum[1][:, self.residuals_ <= trust]
        if not chosen.size:
            raise ValueError(f"no eigenpair has a residual <= {trust}; the smallest is {self.residuals_.min():.1e}")
        if not np.iscomplexobj(self.solution_.core):
            chosen = np.hstack([np.real(chosen), np.imag(chosen)])
        U, sigma, _ = np.linalg.svd(chosen, full_matrices=False)
        return U[:, sigma > 1e-10 * sigma[0]]

    def _without_constant(self) -> Array:
        """psi -> phi in units of its root mean square, without the constant observable and those that are zero."""
        s = self.solution_
        size = np.linalg.norm(s.up, axis=0)
        up = s.up.T[size > 0] / size[size > 0, None]
        assert s.constant is not None
        return up[np.abs(np.abs(up @ s.constant) - 1) > IN_SPAN * 100] if self.rank_ > 1 else up[:0]

    def plot_summary(
        self, X: Any = None, inputs: Any = None, trust: float | None = None, control: Any = None
    ) -> Figure:
        """Spectrum, growth and frequency, residuals, modes, and along the trajectory X reconstruction and forecast."""
        from .summary import plot_edmd

        return plot_edmd(self, X, inputs, trust, control)
