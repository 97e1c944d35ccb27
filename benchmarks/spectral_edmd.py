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
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from koopsim.runs import environment, write_json

MOST_PYDMD = 3  # rounds: its largest fit takes most of a minute
SIZES = ((2, 8, 20_000), (4, 4, 50_000), (6, 3, 100_000), (5, 6, 50_000))


Times = dict[str, list[tuple[float, float]]]  # (wall clock, processor) seconds by round


def rounds(contenders: Mapping[str, Callable[[], object]], repeats: int) -> Times:
    """Time each contender in each round. They take turns, so that a busy machine is busy for all of them."""
    times: Times = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, work in contenders.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return times


def compared(times: Times) -> dict:
    """The best time of each; where there are two, the median of the ratios by round, their range, and the same median
    of processor time, which does not count waiting for a busy core."""
    row: dict = {name: min(wall for wall, _ in seconds) for name, seconds in times.items()}
    if len(times) == 2:
        name = " / ".join(times)
        wall, processor = ([a[i] / b[i] for a, b in zip(*times.values(), strict=True)] for i in (0, 1))
        row |= {name: median(wall), f"{name}, range": [min(wall), max(wall)], f"{name}, processor": median(processor)}
    return row


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
    peers = {p for p in ("deeptime", "pydmd") if find_spec(p)}
    tiny = rng.uniform(-1, 1, (50, 2))
    for work in (ours, deeptime if "deeptime" in peers else ours):
        work(tiny, 0.5 * tiny, 1)  # imports are no part of a fit
    for work in (identity, pydmd if "pydmd" in peers else identity):
        work(tiny, 0.5 * tiny)
    for d, degree, m in SIZES:
        from koopsim.spectral import Monomials

        X = rng.uniform(-1, 1, (m, d))
        Y = np.tanh(X @ rng.standard_normal((d, d)) * 0.4)
        basis = Monomials(degree).fit(X)
        row = {"states": d, "degree": degree, "samples": m, "observables": len(basis.terms_)}
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
