"""How often is the verdict right? Matrices, matrices with a declared noise, and EDMD on data, each many thousand times.

    python benchmarks/spectral_verdicts.py [--cases 10000] [--seed 16180] [--minutes 40] [--out FILE]

The cases, and what makes one decidable, are those of tests/spectral: `matrix_cases.py`, `data_cases.py`. Each answer is
counted as right, undecided or wrong; once as it is, once `strict` (what was not certain counts as undecided). Certain
answers of `origin` are also put to the test that made them: no point of the circle within the noise of the spectrum.
A case that raises counts as wrong and certain.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "spectral"))

import data_cases  # noqa: E402
import matrix_cases  # noqa: E402

from koopsim.runs import environment, write_json  # noqa: E402
from koopsim.spectral import EDMD, analyze  # noqa: E402
from koopsim.spectral.noise import balanced  # noqa: E402


def matrix(rng: np.random.Generator, noises: tuple[float, ...]) -> tuple[str, bool, str, bool, set[str]]:
    """(said, certain, truth, decidable, tags) of one matrix."""
    pick = rng.random()
    if pick < 0.03:
        case = matrix_cases.large_case(rng, noises)
    elif pick < 0.15:
        near = tuple(n for n in noises if n <= 1e-12)
        case = matrix_cases.random_case(rng, matrix_cases.near_miss_blocks, near)
    else:
        case = matrix_cases.random_case(rng, noises=noises, graded=0.1 if noises == (0.0,) else 0.0)
    verdict = analyze(case.A, noise=case.noise or None)
    certain = verdict.certain
    if certain and verdict.case == "origin":
        A = case.A if case.noise else balanced(case.A)[0]  # rounding is that of each entry: the same in other units
        delta = verdict.noise * np.linalg.norm(A)
        circle = np.exp(1j * np.r_[np.linspace(0, np.pi, 60), np.angle(verdict.eigenvalues)])
        reached = min(np.linalg.svd(A - z * np.eye(len(A)), compute_uv=False)[-1] for z in circle)
        if reached <= delta:  # a matrix within the noise has an eigenvalue on the circle
            return "origin", True, "not certain", not case.ambiguous, case.tags | {"certain, but reached"}
    return verdict.case, certain, case.truth, not case.ambiguous, case.tags | {f"noise {case.noise:g}"}


def data(rng: np.random.Generator) -> tuple[str, bool, str, bool, set[str]]:
    case = data_cases.data_case(rng)
    verdict = EDMD(case.dictionary).fit(case.data).verdict()
    truth = verdict.case if verdict.case in case.allowed - {"undecided"} else case.truth
    return verdict.case, verdict.certain, truth, case.decidable, {case.kind, f"truth {case.truth}"}


STUDIES = {
    "matrices": lambda rng: matrix(rng, (0.0,)),
    "declared noise": lambda rng: matrix(rng, matrix_cases.NOISES[1:]),
    "EDMD on data": data,
}


def answer(task: tuple[str, int, int]) -> tuple[int, str, bool, str, bool, set[str]]:
    """One case; each has a seed of its own, so that it can be looked at alone. One that raises is said "failed"."""
    name, seed, i = task
    try:
        return i, *STUDIES[name](np.random.default_rng([seed, i]))
    except Exception as error:
        return i, "failed", True, "an answer", True, {f"{type(error).__name__}: {error}"}


def study(answers: Iterator[tuple[int, str, bool, str, bool, set[str]]], until: float) -> dict:
    """Shares by group."""
    table: dict[str, Counter] = defaultdict(Counter)
    wrong, done = [], 0
    for i, said, certain, truth, decidable, tags in answers:
        if time.perf_counter() > until:
            break
        done += 1
        mark = "right" if said == truth else "undecided" if said == "undecided" else "wrong"
        strict = mark if certain else "undecided"
        for key in ("all", "decidable" if decidable else "not decidable", *tags):
            table[key][mark] += 1
            table[key]["strict " + strict] += 1
            table[key]["undecided, though decidable"] += decidable and mark == "undecided"
            table[key]["decidable"] += decidable
        if mark == "wrong":
            wrong.append(
                {
                    "case": i,
                    "truth": truth,
                    "said": said,
                    "certain": certain,
                    "decidable": decidable,
                    "tags": sorted(tags),
                }
            )
    return {
        "cases": done,
        "wrong, certain": sum(w["certain"] for w in wrong),
        "wrong, decidable": sum(w["decidable"] for w in wrong),
        "undecided, of decidable": table["all"]["undecided, though decidable"] / max(table["all"]["decidable"], 1),
        "counts": {key: dict(sorted(table[key].items())) for key in sorted(table)},
        "wrong": wrong,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10000, help="of each study")
    parser.add_argument("--seed", type=int, default=16180)
    parser.add_argument("--minutes", type=float, default=40.0, help="after which each study still running stops")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=sorted(STUDIES), default=None)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "spectral-verdicts.json")
    options = parser.parse_args()
    started = time.perf_counter()
    result = {
        "what": __doc__,
        "seed": options.seed,
        "seeds_looked_at_while_tuning": list(range(100)) + [777, 778, 2023, 27182, 31415],
    }
    for name in STUDIES:
        if options.only in (None, name):
            began = time.perf_counter()
            tasks = ((name, options.seed, i) for i in range(options.cases))
            with Pool(options.jobs) as pool:
                result[name] = study(pool.imap_unordered(answer, tasks, 20), began + 60 * options.minutes)
            result[name]["wall_seconds"] = round(time.perf_counter() - began, 1)
            print(name, {k: v for k, v in result[name].items() if k not in ("counts", "wrong")}, flush=True)
            for w in result[name]["wrong"]:
                print("   ", w)
    write_json(
        options.out, result | {"wall_seconds": round(time.perf_counter() - started, 1), "environment": environment()}
    )


if __name__ == "__main__":
    main()
