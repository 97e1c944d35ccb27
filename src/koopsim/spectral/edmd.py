"""Extended dynamic mode decomposition: a Koopman matrix from trajectories.

    phi(z_{l+1}) = A phi(z_l),     A = argmin sum ||phi(z_{l+1}) - A phi(z_l)||^2        paper, section 2.2
    (K g)(z, x) = g(f(z, x), x)    with inputs x held fixed                             paper, eq. (4)

Eigenfunctions g_i(z) = phi(z) . v_i grow by lambda_i a step, the state is z = sum_i g_i(z) modes_i, and each
pair (lambda_i, v_i) has a residual that is small only if it is a true one (`regression.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from .analysis import analyze
from .constant import discount
from .dictionary import as_dictionary
from .regression import EPS, IN_SPAN, Solution, Triangle, solve
from .trajectories import blocks, held_inputs, layout
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]  # float64


def _fresh(dictionary: Any) -> Any:
    """An unfitted copy, as scikit-learn does; things it cannot clone are used as they are."""
    return clone(dictionary) if isinstance(dictionary, BaseEstimator) else dictionary


class EDMD(TransformerMixin, BaseEstimator):
    """Koopman matrix, eigenvalues, eigenfunctions, modes, residuals and forecasts from data.

    Parameters
    ----------
    dictionary
        Monomials, RandomFourier, Nystrom, Observables, Lift, any scikit-learn transformer, a torch module or
        a function of an (m, d) array. None: monomials of degree 2.
    ridge
        Tikhonov damping, relative to observables of unit root mean square and one sample.
    rank
        Keep at most so many directions of the lifted data (truncated SVD).
    rtol
        Drop directions whose singular value is below this share of the largest. None: rounding level.
    chunk
        Samples lifted at a time. None: about four times the number of columns.
    """

    n_features_in_: int

    def __init__(
        self,
        dictionary: Any = None,
        ridge: float = 0.0,
        rank: int | None = None,
        rtol: float | None = None,
        chunk: int | None = None,
    ):
        self.dictionary = dictionary
        self.ridge = ridge
        self.rank = rank
        self.rtol = rtol
        self.chunk = chunk

    def fit(self, X: Any, y: Any = None, inputs: Any = None) -> EDMD:
        """Fit one trajectory (m, d), a list of trajectories, or pairs: a tuple (X, Y), or y with X's shape.

        A `y` of any other width is a target in scikit-learn's sense, and ignored as its conventions ask.
        """
        return self._absorb(X, y, inputs, reset=True)

    def partial_fit(self, X: Any, y: Any = None, inputs: Any = None) -> EDMD:
        """Add more data: memory stays O(N^2). No pair is formed between two calls."""
        return self._absorb(X, y, inputs, reset=not hasattr(self, "dictionary_"))

    def _absorb(self, X: Any, y: Any, inputs: Any, reset: bool) -> EDMD:
        if not self.ridge >= 0:
            raise ValueError(f"ridge must be >= 0; got {self.ridge}")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be >= 1; got {self.rank}")
        kind, raw = layout(X, y)
        parts: list[Array] = []
        for i, part in enumerate(raw):
            if kind == "many" and np.ndim(part) == 2 and np.shape(part)[0] < 2:
                raise ValueError(f"trajectory {i} has {np.shape(part)[0]} sample(s); a pair needs at least 2")
            first = reset and i == 0
            least = 1 if kind == "pairs" else 2
            parts.append(validate_data(self, part, reset=first, dtype=np.float64, ensure_min_samples=least))  # type: ignore[arg-type]
        held = held_inputs(inputs, kind, parts)
        width = 0 if held[0] is None else held[0].shape[1]
        if reset:
            self.n_inputs_ = width
            every = np.concatenate([p if u is None else np.hstack([p, u]) for p, u in zip(parts, held, strict=True)])
            self.dictionary_ = _fresh(as_dictionary(self.dictionary)).fit(every)
            self._triangle = Triangle()
        elif width != self.n_inputs_:
            raise ValueError(f"this model was fitted with {self.n_inputs_} inputs; got {width}")
        for z, now, after in blocks(kind, parts, held, self.chunk or self._rows(parts[0], held[0])):
            lifted, next_ = self._lift(now), self._lift(after)
            self.n_observables_ = lifted.shape[1]
            self._triangle.add(lifted, next_, z, np.ones((z.shape[0], 1)))
        self.n_samples_seen_ = self._triangle.rows
        self._cache: dict[str, Any] = {}
        return self

    def _rows(self, z: Array, u: Array | None) -> int:
        sample = self._lift(z[:1] if u is None else np.hstack([z[:1], u[:1]]))
        return max(1024, 4 * (2 * sample.shape[1] + z.shape[1] + 1))

    def _lift(self, seen: Array) -> Array:
        out = np.asarray(self.dictionary_.transform(seen), dtype=np.float64)
        if not np.all(np.isfinite(out)):
            raise ValueError("the dictionary gave NaN or infinity; scale the states, or lower its degree")
        return out

    @property
    def solution_(self) -> Solution:
        check_is_fitted(self, "dictionary_")
        if "solution" not in self._cache:
            N, d = self.n_observables_, self.n_features_in_
            self._cache["solution"] = solve(self._triangle, N, d, self.ridge, self.rank, self.rtol)
        return self._cache["solution"]

    @property
    def koopman_matrix_(self) -> Array:
        """A with phi(z_{l+1}) = A phi(z_l), N x N."""
        s = self.solution_
        return (s.down @ s.core @ s.up).T

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

    def _seen(self, X: Any, inputs: Any) -> tuple[Array, Array]:
        check_is_fitted(self, "dictionary_")
        Z: Any = validate_data(self, X, reset=False, dtype=np.float64)
        u = held_inputs(inputs, "one", [Z])[0]
        if (0 if u is None else u.shape[1]) != self.n_inputs_:
            raise ValueError(
                f"this model was fitted with {self.n_inputs_} inputs; got {0 if u is None else u.shape[1]}"
            )
        return Z, Z if u is None else np.hstack([Z, u])

    def transform(self, X: Any, inputs: Any = None) -> Array:
        """phi(X), one row per sample."""
        return self._lift(self._seen(X, inputs)[1])

    def eigenfunctions(self, X: Any, inputs: Any = None) -> NDArray[Any]:
        """g_i(X), one column per eigenvalue."""
        return self.transform(X, inputs) @ (self.solution_.down @ self._spectrum[1])

    def predict(self, X: Any, inputs: Any = None) -> Array:
        """The state one step later, one row per sample."""
        s = self.solution_
        return self.transform(X, inputs) @ (s.down @ s.core @ s.decode)

    def forecast(self, X: Any, steps: int, inputs: Any = None, relift: bool = False) -> Array:
        """(steps + 1, ...) states starting at X; `relift` maps to the state and back at each step."""
        one = np.ndim(X) == 1
        Z, _ = self._seen(np.atleast_2d(X), inputs)
        s, out = self.solution_, [Z]
        psi = self.transform(Z, inputs) @ s.down
        for _ in range(steps):
            psi = psi @ s.core
            out.append(psi @ s.decode)
            if relift:
                psi = self.transform(check_array(out[-1]), inputs) @ s.down
        result = np.stack(out)
        return result[:, 0] if one else result

    def verdict(self, noise: float | None = None, trust: float | None = None, strict: bool = False) -> Verdict:
        """Does the system settle, oscillate or blow up? The constant observable is discounted.

        `noise` defaults to the relative residual of the fit: a dictionary that is not closed is believed only
        that far. `trust` leaves out eigenpairs with a larger residual than this, and the verdict is on the
        rest alone. The whitened observables are analysed, the answer is given in terms of phi.
        """
        s = self.solution_
        basis = np.eye(self.rank_) if trust is None else self._trusted(trust)
        core = basis.T @ s.core @ basis
        condition = float(s.singular_values[0] / s.singular_values[-1])
        rounding = EPS * max(16 * condition, 64 * core.shape[0])  # the fit's own, then the analysis's
        level = min(max(s.misfit(basis, core), rounding), 0.99) if noise is None else noise
        verdict = analyze(core.T, level, strict=strict)
        nearest = np.abs(verdict.eigenvalues[:, None] - self.eigenvalues_).argmin(axis=1)
        verdict = replace(verdict, residuals=self.residuals_[nearest])
        up, down = s.up.T @ basis, basis.T @ s.down.T
        if s.constant is not None:
            delta = max(verdict.noise, IN_SPAN) * float(np.linalg.norm(core))
            verdict = discount(verdict, basis.T @ s.constant, delta, self._without_constant() @ basis)
        return verdict.in_coordinates(up, down)

    def _trusted(self, trust: float) -> Array:
        """Orthonormal basis of the span of the eigenfunctions with residual <= trust."""
        chosen = self._spectrum[1][:, self.residuals_ <= trust]
        if not chosen.size:
            raise ValueError(f"no eigenpair has a residual <= {trust}; the smallest is {self.residuals_.min():.1e}")
        U, sigma, _ = np.linalg.svd(np.hstack([np.real(chosen), np.imag(chosen)]), full_matrices=False)
        return U[:, sigma > 1e-10 * sigma[0]]

    def _without_constant(self) -> Array:
        """psi -> phi in units of its root mean square, without the constant observable and those that are zero."""
        s = self.solution_
        size = np.linalg.norm(s.up, axis=0)
        up = s.up.T[size > 0] / size[size > 0, None]
        assert s.constant is not None
        return up[np.abs(np.abs(up @ s.constant) - 1) > IN_SPAN * 100] if self.rank_ > 1 else up[:0]

    def plot_summary(self, X: Any = None, inputs: Any = None, trust: float | None = None) -> Figure:
        """Spectrum, leading modes, eigenfunctions, and a forecast against the trajectory X."""
        from .plots import plot_edmd

        return plot_edmd(self, X, inputs, trust)
