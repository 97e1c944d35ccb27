"""deeptime and PyDMD on the same work: a Koopman matrix and its eigenvalues from the same pairs.

A peer that is not installed is left out, and said so (`pip install 'koopsim[bench]'`).
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch

from koopsim.bench.peers import EXTRA
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting
from koopsim.bench.timing import Maker, Timing, measure
from koopsim.errors import KoopsimError


def edmd_rows(setting: Setting) -> list[Comparison]:
    """A fit that ends with eigenvalues, on a CPU in float64: monomials, or the same lifted pairs for PyDMD."""
    if not find_spec("deeptime") and not find_spec("pydmd"):
        raise KoopsimError(f"Neither deeptime nor pydmd is installed: {EXTRA}.")
    from koopsim.spectral import EDMD, Monomials, Observables

    found, rng = [], np.random.default_rng(0)
    for states, degree, samples in setting.sizes.edmd:
        X = rng.uniform(-1, 1, (samples, states))
        Y = np.tanh(X @ rng.standard_normal((states, states)) * 0.4)
        basis = Monomials(degree).fit(X)
        P, Q = (np.ascontiguousarray(basis.transform(Z)) for Z in (X, Y))
        work = f"EDMD, {states} states, {P.shape[1]} monomials, {samples:,} pairs"

        def ours(X=X, Y=Y, degree=degree) -> None:
            _ = EDMD(Monomials(degree)).fit((X, Y)).eigenvalues_

        def lifted(P=P, Q=Q) -> None:
            _ = EDMD(Observables(_same)).fit((P, Q)).eigenvalues_

        if find_spec("deeptime"):
            found.append(_peers("edmd", work, ours, "deeptime", lambda X=X, Y=Y, k=degree: _deeptime(X, Y, k), setting))
        if find_spec("pydmd"):
            theirs = lambda P=P, Q=Q: _pydmd(P, Q)  # noqa: E731
            found.append(_peers("edmd", f"{work}, lifted before", lifted, "pydmd", theirs, setting))
    return found


def _peers(
    row: str, work: str, ours: Callable[[], None], peer: str, theirs: Callable[[], None], setting: Setting
) -> Comparison:
    makers: dict[str, Maker] = {"koopsim": lambda: ours, peer: lambda: theirs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timings: dict[str, Timing] = measure(makers, torch.device("cpu"), setting.sizes.turns)
    return Comparison(row, work, Side("koopsim", timings["koopsim"]), Side(peer, timings[peer]))


def _same(z: np.ndarray) -> np.ndarray:
    return z


def _deeptime(X: np.ndarray, Y: np.ndarray, degree: int) -> None:
    from deeptime.basis import Monomials  # pyright: ignore
    from deeptime.decomposition import EDMD  # pyright: ignore

    model = EDMD(Monomials(degree, X.shape[1])).fit((X, Y)).fetch_model()
    _ = model.eigenvalues  # pyright: ignore


def _pydmd(P: np.ndarray, Q: np.ndarray) -> None:
    from pydmd import DMD  # pyright: ignore

    _ = DMD(svd_rank=-1, exact=True).fit(P.T, Q.T).eigs
