"""EDMD here, in deeptime and in PyDMD on the same data: seconds, and their ratio in one run.

    python benchmarks/spectral_edmd.py [--repeats 5] [--out results/spectral-edmd.json]

Each fit ends with eigenvalues. Peers that are not installed are skipped. PyDMD has no monomial dictionary: it
is timed on exact DMD of the same lifted pairs, lifting not counted, against EDMD with the identity on them.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from koopsim.runs import environment, write_json

SIZES = ((2, 8, 20_000), (4, 4, 50_000), (6, 3, 100_000), (5, 6, 50_000))


def seconds(work, repeats: int) -> float:
    """Best of several."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def ours(X, Y, degree):
    from koopsim.spectral import EDMD, Monomials

    return np.abs(EDMD(Monomials(degree)).fit((X, Y)).eigenvalues_)


def identity(P, Q):
    from koopsim.spectral import EDMD, Observables

    return np.abs(EDMD(Observables(_same)).fit((P, Q)).eigenvalues_)


def _same(z):
    return z


def deeptime(X, Y, degree):
    from deeptime.basis import Monomials
    from deeptime.decomposition import EDMD

    return np.abs(EDMD(Monomials(degree, X.shape[1])).fit((X, Y)).fetch_model().eigenvalues)


def pydmd(P, Q):
    from pydmd import DMD

    return np.abs(DMD(svd_rank=-1, exact=True).fit(P.T, Q.T).eigs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    rows = []
    for d, degree, m in SIZES:
        from koopsim.spectral import Monomials

        X = rng.uniform(-1, 1, (m, d))
        Y = np.tanh(X @ rng.standard_normal((d, d)) * 0.4)
        basis = Monomials(degree).fit(X)
        row = {"states": d, "degree": degree, "samples": m, "observables": len(basis.terms_)}
        row["koopsim"] = seconds(lambda X=X, Y=Y, k=degree: ours(X, Y, k), options.repeats)
        try:
            row["deeptime"] = seconds(lambda X=X, Y=Y, k=degree: deeptime(X, Y, k), options.repeats)
            row["koopsim / deeptime"] = row["koopsim"] / row["deeptime"]
        except ImportError:
            pass
        try:
            P, Q = np.ascontiguousarray(basis.transform(X)), np.ascontiguousarray(basis.transform(Y))
            theirs = seconds(lambda P=P, Q=Q: pydmd(P, Q), options.repeats)
            row["koopsim, lifted"] = seconds(lambda P=P, Q=Q: identity(P, Q), options.repeats)
            row["pydmd, lifted"] = theirs
            row["koopsim / pydmd, lifted"] = row["koopsim, lifted"] / theirs
        except ImportError:
            pass
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    if options.out:
        result = {"what": __doc__, "rows": rows, "threads": os.environ.get("OMP_NUM_THREADS", "all")}
        result["peers"] = {p: version(p) for p in ("deeptime", "pydmd") if find_spec(p)}
        write_json(options.out, result | {"environment": environment()})


if __name__ == "__main__":
    main()
