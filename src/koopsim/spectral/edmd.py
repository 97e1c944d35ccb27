"""Extended dynamic mode decomposition: a Koopman matrix from trajectories.

    phi(z_{l+1}) = A phi(z_l) + B u_l,   A, B = argmin sum ||phi(z_{l+1}) - A phi(z_l) - B u_l||^2   paper, eq. (3)
    (K g)(z, x) = g(f(z, x), x)          with inputs x held fixed                                   paper, eq. (4)

Eigenfunctions g_i(z) = phi(z) . v_i grow by lambda_i a step, the state is z = sum_i g_i(z) modes_i, and each
pair (lambda_i, v_i) has a residual that is small only if it is a true one (`regression.py`). With the identity for phi
this is dynamic mode decomposition, with a control u DMDc (Proctor et al. 2016), with `Delays` Hankel-DMD.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from . import continuous, horizon, resdmd
from .delays import Delays
from .dictionary import as_dictionary
from .intake import checked_parts, checked_states, stretches_of
from .lifted import Lifted, unfitted
from .regression import Solution
from .trajectories import controls, held_inputs, layout
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .continuous import ModeTable

Array = NDArray[Any]  # float64, or complex128 for complex states
ALIKE = 12  # decimal places in which moduli are compared: a conjugate pair must not be ordered by rounding


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
        kind, parts = checked_parts(self, X, y, reset)
        held, steering = held_inputs(inputs, kind, parts), controls(control, kind, parts)
        widths = tuple(0 if part is None else part.shape[1] for part in (held[0], steering[0]))
        chosen = unfitted(as_dictionary(self.dictionary, parts[0].shape[1])) if reset else self.dictionary_
        samples = stretches_of(kind, parts, held, steering, chosen)
        if reset:
            self._lifted = Lifted(chosen, *samples, self.chunk, self.device)
            self.dictionary_, self.n_observables_ = chosen, self._lifted.observables
            self.n_inputs_, self.n_controls_ = widths
        elif widths != (self.n_inputs_, self.n_controls_):
            raise ValueError(
                f"this model was fitted with {self.n_inputs_} inputs and {self.n_controls_} controls; "
                f"got {widths[0]} and {widths[1]}"
            )
        (self._lifted.add if stream else self._lifted.take)(*samples)
        self.n_samples_seen_ = self._lifted.triangle.rows
        self._cache: dict[str, Any] = {}
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What was looked at is found again from the data: it is not saved."""
        state: Any = super().__getstate__()
        return state | {"_cache": {}} if "_cache" in state else state

    def _check_parameters(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f"ridge must be >= 0; got {self.ridge}")
        if self.device is not None:
            _require_device(self.device)
        if self.chunk is not None and not (isinstance(self.chunk, Integral) and self.chunk >= 1):
            raise ValueError(f"chunk must be a whole number of rows >= 1, or None; got {self.chunk!r}")
        rank: Any = self.rank
        if rank is not None and rank != "auto" and not (isinstance(rank, Integral) and int(rank) >= 1):
            raise ValueError(f'rank must be a whole number >= 1, "auto" or None; got {self.rank!r}')
        if not (np.isfinite(self.dt) and self.dt > 0):
            raise ValueError(f"dt is the time between two samples and must be > 0; got {self.dt}")

    @property
    def solution_(self) -> Solution:
        check_is_fitted(self, "dictionary_")
        if "solution" not in self._cache:
            self._cache["solution"] = self._lifted.solved(self.ridge, self.rank, self.rtol, self.n_controls_)
        return self._cache["solution"]

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
        return len(self.solution_.core)

    @property
    def _spectrum(self) -> tuple[Array, Array]:
        check_is_fitted(self, "dictionary_")
        if "eigen" not in self._cache:
            w, v = np.linalg.eig(self.solution_.core)
            order = np.lexsort((-np.imag(w), -np.round(np.abs(w), ALIKE)))
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
        check_is_fitted(self, "dictionary_")
        return resdmd.residuals_on(self, X, y, inputs)

    def _seen(self, X: Any, inputs: Any) -> tuple[Array, Array]:
        """States, and what the dictionary sees of them; with delays, those that have their whole past."""
        check_is_fitted(self, "dictionary_")
        Z = checked_states(self, X)
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
        seen = self._seen(X, inputs)[1]
        return self._lifted.lift(seen)

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
        return (phi @ (s.down @ s.core) + self._steered(control, len(phi))) @ s.decode

    def forecast(self, X: Any, steps: int, inputs: Any = None, relift: bool = False, control: Any = None) -> Array:
        """(steps + 1, ...) states starting at X; `relift` maps to the state and back at each step.

        X is one state (d,), or several (n, d). A model with delays takes a history (m, d) and goes on from its end.
        """
        if not isinstance(steps, Integral) or steps < 0:
            raise ValueError(f"steps must be a whole number >= 0; got {steps!r}")
        check_is_fitted(self, "dictionary_")
        one = np.ndim(X) == 1 or isinstance(self.dictionary_, Delays)
        Z, seen = self._seen(np.atleast_2d(X), inputs)
        if isinstance(self.dictionary_, Delays):
            if relift:
                raise ValueError("relift=True needs a model without delays: a state alone has no past to lift")
            Z, seen = Z[-1:], seen[-1:]
        s, out, push = self.solution_, [Z], self._steered(control, steps)
        psi = self._lifted.lift(seen) @ s.down
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

        check_is_fitted(self, "dictionary_")
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

        check_is_fitted(self, "dictionary_")
        return judge(self, noise, trust, strict)

    def plot_summary(
        self, X: Any = None, inputs: Any = None, trust: float | None = None, control: Any = None
    ) -> Figure:
        """Spectrum, growth and frequency, residuals, modes, and along the trajectory X reconstruction and forecast."""
        from .summary import plot_edmd

        check_is_fitted(self, "dictionary_")
        return plot_edmd(self, X, inputs, trust, control)


def _require_device(device: str) -> None:
    import torch

    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"there is no device {device!r}; expected one such as cpu, cuda or cuda:1") from None
