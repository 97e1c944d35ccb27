"""EDMD here, in deeptime and in PyDMD on the same data: seconds, and their ratio in one run.

    python benchmarks/spectral_edmd.py [--repeats 5] [--out results/spectral-edmd.json]

Each fit ends with eigenvalues. The contenders take turns, and the ratio is the median over the rounds. Peers
that are not installed are skipped. PyDMD has no monomial dictionary: it is timed on exact DMD of the same lifted
pairs, lifting not counted, against EDMD with the identity on them.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from koopsim.runs import environment, write_json

MOST_PYDMD = 3  # rounds: its largest fit takes most of a minute
SIZES = ((2, 8, 20_000), (4, 4, 50_000), (6, 3, 100_000), (5, 6, 50_000))


def rounds(contenders: dict, repeats: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round. They take turns, so that a busy machine is busy for all of them;
    the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(repeats + 1):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def compared(times: dict[str, list[float]]) -> dict:
    """The best time of each, and where there are two the median, smallest and largest ratio by round."""
    if len(times) == 1:
        return {name: min(seconds) for name, seconds in times.items()}
    (ours, a), (theirs, b) = times.items()
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    name = f"{ours} / {theirs}"
    return {ours: min(a), theirs: min(b), name: median(ratios), f"{name}, range": [min(ratios), max(ratios)]}


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
    parser.add_argument("--repeats", type=int, default=5)
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
        peers = {p for p in ("deeptime", "pydmd") if find_spec(p)}
        work = {"koopsim": lambda X=X, Y=Y, k=degree: ours(X, Y, k)}
        if "deeptime" in peers:
            work["deeptime"] = lambda X=X, Y=Y, k=degree: deeptime(X, Y, k)
        row |= compared(rounds(work, options.repeats))
        if "pydmd" in peers:
            P, Q = np.ascontiguousarray(basis.transform(X)), np.ascontiguousarray(basis.transform(Y))
            work = {
                "koopsim, lifted": lambda P=P, Q=Q: identity(P, Q),
                "pydmd, lifted": lambda P=P, Q=Q: pydmd(P, Q),
            }
            row |= compared(rounds(work, min(options.repeats, MOST_PYDMD)))
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    if options.out:
        result = {"what": __doc__, "rows": rows, "threads": os.environ.get("OMP_NUM_THREADS", "all")}
        result["peers"] = {p: version(p) for p in ("deeptime", "pydmd") if find_spec(p)}
        write_json(options.out, result | {"environment": environment()})


if __name__ == "__main__":
    main()
