"""The verdict: which of the four cases, and everything the paper's equations (7) and (8) need.

    fixed-point      lim A^l = P_1                                                   eq. (7)
    invariant-set    A^l -> P_1 + (-1)^l P_-1 + sum over pairs of rotations by l Delta   eq. (8)

J1 = `fixed`, J2 = `flipping`, J3 = `rotating` are the index sets of the paper's Figure 2, as indices into
`eigenvalues`. Angles are Delta = atan2(Im, Re): the paper's arctan(beta / alpha) loses the quadrant.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .powers import Propagator, recognised, total
from .resolvent import Complex

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Case = Literal["origin", "fixed-point", "invariant-set", "divergent", "undecided"]

MEANING: dict[Case, str] = {
    "origin": "every start goes to the origin",
    "fixed-point": "every start settles at a point",
    "invariant-set": "every start ends in a bounded set and keeps moving there",
    "divergent": "some start grows without bound",
    "undecided": "the noise leaves more than one case open",
}


MOST_REASONS = 12  # that a summary shows
EXPONENT = 709.0  # of the largest number there is
KNOWN_PHASE = 0.1  # radians that the phase of a rotation may be off by and still say where it is


class Rotation(NamedTuple):
    """An element of J3: a conjugate pair (one index for a complex matrix) and its angle per step."""

    indices: tuple[int, ...]
    eigenvalue: complex
    angle: float


class Snap(NamedTuple):
    """Eigenvalues taken to be on the unit circle because the noise allows it. They may be off it by `error`."""

    indices: tuple[int, ...]
    eigenvalue: complex  # as computed: the mean, for several
    taken: complex  # what it is taken to be
    distance: float  # between the two
    error: float  # how far the noise can move it


class JordanBlock(NamedTuple):
    """A defective eigenvalue on the unit circle: powers of A grow like l^(size - 1)."""

    eigenvalue: complex
    size: int


@dataclass(frozen=True)
class Projector:
    """Spectral projector of one cluster on (or near) the unit circle."""

    kind: str
    eigenvalue: complex
    indices: tuple[int, ...]
    norm: float  # ||P||: the factor by which noise in A reaches the eigenvalue
    separation: float  # sep(T11, T22): noise above sep / (4 ||P||) could mix this cluster with the rest
    error: float  # bound on the error of the cluster's block
    _V: Complex = field(repr=False)
    _W: Complex = field(repr=False)
    _mirrored: bool = field(repr=False)
    _real: bool = field(repr=False)

    @property
    def matrix(self) -> NDArray:
        """P as an n x n array; for a pair of a real matrix the real projector onto both."""
        P = self._V @ self._W
        if not self._real:
            return P
        return 2 * np.real(P) if self._mirrored else np.real(P)


@dataclass(frozen=True)
class Verdict:
    """What `analyze` found. `str(verdict)` is a summary, `reasons` the argument in plain English."""

    case: Case
    certain: bool  # True: holds for every matrix within the noise. False: rests on the assumption in `reasons`
    noise: float
    distance: float | None  # relative: a matrix this close has this verdict exactly; None where none was looked for
    eigenvalues: Complex
    snapped: tuple[Snap, ...]  # what was taken to be on the unit circle; empty where the verdict is certain
    fixed: tuple[int, ...]
    flipping: tuple[int, ...]
    rotating: tuple[Rotation, ...]
    defective: tuple[JordanBlock, ...]
    projectors: tuple[Projector, ...]
    limit: NDArray | None  # lim A^l where it exists
    cesaro: NDArray | None  # lim (1/L) sum_{l<L} A^l where it exists
    rotation: NDArray | None  # A on its unit-circle subspace, zero elsewhere: A^l -> rotation^l
    period: int | None  # steps after which the end state repeats; None where there is no such number
    reasons: tuple[str, ...]
    residuals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    confidence: float | None = None  # of a statement from noisy data; None: a proof, or an assumption that is stated
    constant: int | None = None  # index into `eigenvalues` of the constant observable's 1, if it was discounted
    point: NDArray | None = None  # the one lifted point every start ends at, if `constant` leaves just one
    _terms: tuple[Any, ...] = field(default=(), repr=False)
    _basis: tuple[NDArray, NDArray] | None = field(default=None, repr=False)
    _angle_error: tuple[float, float] = field(default=(1.0, 0.0), repr=False)  # share of a cluster's; at least

    @property
    def angles(self) -> NDArray[np.float64]:
        """Delta_j for each element of J3, radians per step."""
        return np.array([r.angle for r in self.rotating])

    def at(self, l: int, phi0: ArrayLike | None = None) -> NDArray:
        """A^l, or A^l phi0, for any l >= 0 up to 1e18 and beyond; infinite entries where it overflows.

        Eigenvalues found to be on the unit circle are used as exactly there. A rotation's phase is off by
        l times the error of its angle, which for huge l is the whole circle unless the angle is a simple
        fraction of a turn (see `period`): from where it is more than 0.1 radians on, a warning says so.
        """
        M, s = self._scaled_at(l, phi0)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(M == 0, M, M * np.exp(min(s, EXPONENT)) * np.exp(max(s - EXPONENT, 0.0)))

    def scaled_at(self, l: int, phi0: ArrayLike | None = None) -> tuple[NDArray, float]:
        """(M, s) with A^l (phi0) = M exp(s): the same as `at`, without overflow."""
        return self._scaled_at(l, phi0)

    def _scaled_at(self, l: int, phi0: ArrayLike | None) -> tuple[NDArray, float]:
        if isinstance(l, bool) or l != int(l) or l < 0:
            raise ValueError(f"l must be a whole number >= 0; got {l!r}")
        start = None if phi0 is None else np.asarray(phi0)
        n = self.eigenvalues.size if self._basis is None else len(self._basis[0])
        if start is not None and (start.ndim not in (1, 2) or len(start) != n):
            raise ValueError(f"phi0 must have {n} rows, one per observable; got shape {start.shape}")
        self._warn_of_phases(int(l))
        real = self._terms[0].real and (start is None or not np.iscomplexobj(start))
        if self._basis is None:
            return total(self._propagators, int(l), start, real)
        up, down = self._basis
        M, s = total(self._propagators, int(l), down if start is None else down @ start, real)
        return up @ M, s

    def _warn_of_phases(self, l: int) -> None:
        """Of rotations by angles that are not known well enough for so many steps."""
        share, least = self._angle_error
        turning = [t for t in self._propagators if t.turns is not None and not recognised(t.turns)]
        errors = sorted((max(share * t.error, least), float(t.turns or 0)) for t in turning)
        lost = [(error, turns) for error, turns in errors if error and l > KNOWN_PHASE / error]
        if not lost:
            return
        (error, turns), more = lost[-1], len(lost) - 1
        mu = np.exp(2j * np.pi * turns)
        warnings.warn(
            f"The angle of the eigenvalue {mu.real:.6g}{mu.imag:+.6g}i is known to {error:.1e} radians a step: from "
            f"l = {KNOWN_PHASE / error:.1e} on the size of its part is known, and its phase is not"
            + (f" ({more} more eigenvalues likewise)." if more else "."),
            stacklevel=4,
        )

    def in_coordinates(self, up: NDArray, down: NDArray) -> Verdict:
        """The same verdict for phi = up psi, given the one for psi = down phi: A = up A_psi down."""

        def carried(M: NDArray | None) -> NDArray | None:
            return None if M is None else up @ M @ down

        return replace(
            self,
            limit=carried(self.limit),
            cesaro=carried(self.cesaro),
            rotation=carried(self.rotation),
            point=None if self.point is None else up @ self.point,
            projectors=tuple(replace(p, _V=up @ p._V, _W=p._W @ down) for p in self.projectors),
            _basis=(up, down),
        )

    @cached_property
    def _propagators(self) -> list[Propagator]:
        from .assembly import all_terms

        return all_terms(*self._terms)

    def discount(self, constant: int | ArrayLike, delta: float) -> Verdict:
        """The verdict on the state: the constant observable's own eigenvalue 1 is not counted.

        If that was the only eigenvalue on the circle, every start ends at one and the same lifted `point`:
        the origin if all its other observables vanish, a fixed point if not. A Jordan block that the
        constant is part of is a drift (z' = z + c), and stays what it is: divergence.
        """
        from .constant import discount

        return discount(self, constant, delta)

    def withheld(self) -> Verdict:
        """Undecided, whatever was found on the unit circle: for those who accept no assumption."""
        note = f"Strict: {self.case} was found, but does not hold for every matrix within the noise."
        reasons = self.reasons if self.case == "undecided" else (*self.reasons, note)
        none = replace(self, certain=False, confidence=None, limit=None, cesaro=None, rotation=None, period=None)
        return replace(none, case="undecided", reasons=reasons)

    def plot(self, ax: Any = None) -> Figure:
        """The spectrum against the unit circle, coloured as the paper's Figure 2."""
        from .plots import plot_verdict

        return plot_verdict(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the n x n arrays, ready for JSON."""

        def number(z: complex) -> list[float]:
            return [float(np.real(z)), float(np.imag(z))]

        return {
            "case": self.case,
            "certain": self.certain,
            "confidence": self.confidence,
            "noise": self.noise,
            "distance": self.distance,
            "snapped": [
                {
                    "indices": list(s.indices),
                    "eigenvalue": number(s.eigenvalue),
                    "taken": number(s.taken),
                    "distance": s.distance,
                    "error": s.error,
                }
                for s in self.snapped
            ],
            "period": self.period,
            "constant": self.constant,
            "eigenvalues": [number(z) for z in self.eigenvalues],
            "residuals": [float(r) for r in self.residuals],
            "fixed": list(self.fixed),
            "flipping": list(self.flipping),
            "rotating": [
                {"indices": list(r.indices), "eigenvalue": number(r.eigenvalue), "angle": r.angle}
                for r in self.rotating
            ],
            "defective": [{"eigenvalue": number(b.eigenvalue), "size": b.size} for b in self.defective],
            "projectors": [
                {
                    "kind": p.kind,
                    "eigenvalue": number(p.eigenvalue),
                    "indices": list(p.indices),
                    "norm": p.norm,
                    "separation": p.separation if np.isfinite(p.separation) else None,
                    "error": p.error,
                }
                for p in self.projectors
            ],
            "reasons": list(self.reasons),
        }

    def __str__(self) -> str:
        n = self.eigenvalues.size
        how = ", certainly" if self.certain else f", with {self.confidence:.2%} confidence" if self.confidence else ""
        lines = [f"{self.case}: {MEANING[self.case]}{how}"]
        lines.append(
            f"  {n} eigenvalues, spectral radius {np.abs(self.eigenvalues).max():.9g}; "
            f"J1 {len(self.fixed)}, J2 {len(self.flipping)}, J3 {len(self.rotating)}"
            + (f"; {len(self.defective)} defective" if self.defective else "")
        )
        shown = list(self.reasons)
        if len(shown) > MOST_REASONS:
            middle = len(shown) - MOST_REASONS
            shown = [*shown[: MOST_REASONS - 2], f"... {middle + 1} more, in `reasons`.", shown[-1]]
        return "\n".join(lines + [f"  - {r}" for r in shown])
