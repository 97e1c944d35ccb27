"""How long `analyze` takes on 500 x 500 matrices: CPU seconds on one thread. The promise is under 5.

    OMP_NUM_THREADS=1 python benchmarks/spectral_speed.py [--size 500] [--out results/spectral-speed.json]

Normal and non-normal (a random similarity of condition 1e3), with every eigenvalue on the unit circle, with Jordan
blocks only, and with nothing on it. CPU time, so that what else the machine does hardly counts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.linalg import block_diag

from koopsim.runs import environment, write_json
from koopsim.spectral import analyze


def rotation(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def matrices(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Some n x n matrices by name; n a multiple of 4."""
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    S = U * np.geomspace(1, 1e3, n) @ V
    inverse = np.linalg.inv(S)
    even, random = np.linspace(0.01, 3.13, n // 2), rng.uniform(0, np.pi, n // 2)
    pair = [np.kron(np.eye(2), rotation(t)) + np.kron(np.eye(2, k=1), np.eye(2)) for t in even[::2]]
    forms = {
        "on the circle, even angles": block_diag(*map(rotation, even)),
        "on the circle, random angles": block_diag(*map(rotation, random)),
        "Jordan blocks of size 2 at 1": block_diag(*[np.eye(2) + np.eye(2, k=1)] * (n // 2)),
        "Jordan blocks of size 2 at even angles": block_diag(*pair),
        "half at 1, half inside": np.diag(np.r_[np.ones(n // 2), rng.uniform(-0.9, 0.9, n // 2)]),
    }
    found = {f"condition 1e3, {name}": S @ J @ inverse for name, J in forms.items()}
    found["random, radius 0.9"] = 0.9 * rng.standard_normal((n, n)) / np.sqrt(n)
    found["orthogonal"] = U
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "spectral-speed.json")
    options = parser.parse_args()
    rows = []
    for name, A in matrices(options.size, np.random.default_rng(0)).items():
        start = time.process_time()
        verdict = analyze(A)
        rows.append({"matrix": name, "cpu_seconds": round(time.process_time() - start, 2), "case": verdict.case})
        print(rows[-1], flush=True)
    write_json(options.out, {"what": __doc__, "size": options.size, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
