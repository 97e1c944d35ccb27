"""EDMD and DMD here and in deeptime, kooplearn and PyDMD on the same data: seconds, and the ratio to the best of them.

    OMP_NUM_THREADS=1 python benchmarks/spectral_edmd.py [--rounds 7] [--out results/spectral-edmd.json]

Every fit ends with eigenvalues. In each round every contender fits once, so that a busy machine is busy for all;
times are medians over the rounds, ratios medians of the ratios by round to the peer with the least median. `processor`
is the same ratio in processor time, which does not count waiting for a core. The last row is accuracy: the error of
the eigenvalues +-i under 1% noise, plain DMD beside optimised DMD with bagging.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from koopsim.runs import environment, write_json
from koopsim.spectral import EDMD, Identity, Monomials, OptimisedDMD

PEERS = ("deeptime", "kooplearn", "pydmd")
Contenders = dict[str, Callable[[], Any]]


def noisy_system(d: int, m: int, noise: float) -> np.ndarray:
    """A stable linear system, driven by noise; without noise it turns for ever."""
    rng = np.random.default_rng(0)
    A = (0.95 if noise else 1.0) * np.linalg.qr(rng.standard_normal((d, d)))[0]
    Z = np.zeros((m + 1, d))
    Z[0] = rng.standard_normal(d)
    for l in range(m):
        Z[l + 1] = A @ Z[l] + noise * rng.standard_normal(d)
    return Z


def identity(d: int, m: int, noise: float) -> Contenders:
    from deeptime.basis import Identity as Same
    from deeptime.decomposition import EDMD as Deeptime
    from kooplearn.linear_model import Ridge
    from pydmd import DMD

    Z = noisy_system(d, m, noise)
    X, Y = Z[:-1], Z[1:]
    return {
        "koopsim": lambda: EDMD(Identity()).fit((X, Y)).eigenvalues_,
        "deeptime": lambda: Deeptime(Same()).fit((X, Y)).fetch_model().eigenvalues,
        "kooplearn": lambda: Ridge(reduced_rank=False, alpha=None).fit(Z).eig(),
        "pydmd": lambda: DMD(svd_rank=-1).fit(X.T, Y.T).eigs,
    }


def snapshots(d: int = 4000, m: int = 100) -> Contenders:
    from pydmd import DMD

    rng, t = np.random.default_rng(0), np.arange(m)
    waves = np.stack([np.cos(0.3 * t), np.sin(0.3 * t), np.cos(0.8 * t), np.sin(0.8 * t)], axis=1)
    Z = waves @ rng.standard_normal((4, d)) + 1e-3 * rng.standard_normal((m, d))
    return {
        "koopsim": lambda: EDMD(Identity(), rank=4).fit(Z).modes_,
        "pydmd": lambda: DMD(svd_rank=4).fit(Z.T).modes,
    }


def duffing(degree: int, runs: int = 1000, steps: int = 10, dt: float = 0.25) -> Contenders:
    """x'' = -x'/2 + x - x^3 from random starts, by Runge and Kutta."""
    from deeptime.basis import Monomials as Powers
    from deeptime.decomposition import EDMD as Deeptime

    def f(z: np.ndarray) -> np.ndarray:
        return np.c_[z[:, 1], -0.5 * z[:, 1] + z[:, 0] - z[:, 0] ** 3]

    z, seen, h = np.random.default_rng(0).uniform(-2, 2, (runs, 2)), [], dt / 20
    for _ in range(steps + 1):
        seen.append(z)
        for _ in range(20):
            a = f(z)
            b = f(z + h / 2 * a)
            c = f(z + h / 2 * b)
            z = z + h / 6 * (a + 2 * b + 2 * c + f(z + h * c))
    X, Y = np.concatenate(seen[:-1]), np.concatenate(seen[1:])
    return {
        "koopsim": lambda: EDMD(Monomials(degree)).fit((X, Y)).eigenvalues_,
        "deeptime": lambda: Deeptime(Powers(degree, 2)).fit((X, Y)).fetch_model().eigenvalues,
    }


def compared(contenders: Contenders, rounds: int) -> dict[str, Any]:
    """Medians in seconds, and koopsim's ratio to the fastest peer."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            if turn:  # the first one warms up
                times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    seconds = {name: median(wall for wall, _ in taken) for name, taken in times.items()}
    best = min((name for name in seconds if name != "koopsim"), key=lambda name: seconds[name])
    wall, processor = ([a[i] / b[i] for a, b in zip(times["koopsim"], times[best], strict=True)] for i in (0, 1))
    return {"seconds": seconds, "best peer": best, "ratio": median(wall), "processor": median(processor),
            "range": [min(wall), max(wall)], "rounds": rounds}  # fmt: skip


def noise_row(seeds: int = 20) -> dict[str, Any]:
    """|error| of +-i, in units of a radian a unit of time: 2,000 samples 0.02 apart, 1% noise."""
    t, exact = np.arange(2000) * 0.02, np.array([1j, -1j])
    plain, bagged = [], []
    for seed in range(seeds):
        Z = np.c_[np.cos(t), np.sin(t)] + 0.01 * np.random.default_rng(seed).standard_normal((2000, 2))
        plain.append(float(np.abs(EDMD(Identity(), dt=0.02).fit(Z).rates_ - exact).max()))
        bagged.append(float(np.abs(OptimisedDMD(2, bags=20, seed=seed).fit(Z, times=t).rates_ - exact).max()))
    return {"what": "+-i, 1% noise", "dmd": median(plain), "optimised": median(bagged), "worst": max(bagged)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    missing = [peer for peer in PEERS if find_spec(peer) is None]
    if missing:
        print(f"spectral_edmd.py compares with {', '.join(PEERS)}; not installed: {', '.join(missing)}.")
        return
    warnings.simplefilter("ignore")
    rows, began = [], time.perf_counter()
    cases: dict[str, tuple[Callable[..., Contenders], tuple[Any, ...], float]] = {
        f"identity d={d} m={m}{'' if noise else ', no noise'}": (identity, (d, m, noise), 1.0)
        for noise in (0.1, 0.0) for d, m in ((20, 20_000), (100, 10_000), (400, 5_000))
    }  # fmt: skip
    cases["snapshots d=4000 m=100 rank 4"] = (snapshots, (), 1.0)
    cases |= {f"Duffing, {n} monomials, 10,000 pairs": (duffing, (k,), 0.5) for k, n in ((8, 45), (15, 136))}
    for name, (make, arguments, wanted) in cases.items():
        rows.append({"what": name, "wanted": wanted, **compared(make(*arguments), options.rounds)})
        print({k: rows[-1][k] for k in ("what", "best peer", "ratio", "processor")}, flush=True)
    rows.append(noise_row())
    print(rows[-1])
    if options.out:
        result = {"what": __doc__, "rows": rows, "threads": os.environ.get("OMP_NUM_THREADS", "all"),
                  "peers": {p: version(p) for p in PEERS}, "seconds": time.perf_counter() - began}  # fmt: skip
        write_json(options.out, result | {"environment": environment()})


if __name__ == "__main__":
    main()
