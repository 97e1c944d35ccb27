"""Invariant densities against closed forms, and four cells without a fixed point to go to, distilled.

    python benchmarks/invariant_sets.py [--out results/invariant-sets.json] [--images docs/images] [--epochs 120]

Densities: L1 error and seconds (median of five) of `invariant_density` on one orbit of 100,000 points of the logistic
map, from three starts. Cells: flip, limit cycle, chaos and bistable (`koopsim.bridge.cells`), 1,000 inputs of which the
last fifth is held out; MMD to the invariant measure and error of long-time averages over the states' spread, by the
trained SIM and by the closed form, on 200 further inputs.
"""

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import numpy as np

from koopsim.bridge import DistillWarning, Lessons, closed_measure, compare_measures, distill, plot_distilled
from koopsim.bridge.cells import Bistable, Chaos, Flip, LimitCycle, example_inputs
from koopsim.implicit import DEQ
from koopsim.runs import environment, write_json
from koopsim.spectral import invariant_density

HERE = Path(__file__).parents[1]


def logistic(start: float, images: Path | None, points: int = 100_000) -> dict:
    x = np.empty(points + 1)
    x[0] = start
    for k in range(points):
        x[k + 1] = 4 * x[k] * (1 - x[k])
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        density = invariant_density(x)
        seconds.append(time.perf_counter() - began)
    t = np.sin(np.pi * (np.arange(400_000) + 0.5) / 800_000) ** 2  # nodes that are even under the true density
    error = float(np.mean(np.abs(density.evaluate(t)[0] * np.pi * np.sqrt(t * (1 - t)) - 1)))
    if images:
        density.plot().savefig(images / "logistic-density.png", dpi=80)
    return {"start": start, "points": points, "boxes": len(density.transitions_.numbers), "l1_error": error,
            "seconds": float(np.median(seconds)), "mixing_rate": density.mixing_rate_}  # fmt: skip


def cell(kind: type, images: Path, epochs: int) -> dict:
    deq, x, new = DEQ(kind(), max_steps=100), example_inputs(1000, 1), example_inputs(200, 2)
    began = time.perf_counter()
    sim, report = distill(deq, x, lessons=Lessons(epochs=epochs))
    row = {"cell": kind.__name__, "distill_seconds": time.perf_counter() - began, **dataclasses.asdict(report)}
    closed = None
    if report.target == "invariant-set":
        began = time.perf_counter()
        closed = closed_measure(deq, x[:300])
        row["closed_seconds"] = time.perf_counter() - began
        row["compared"] = compare_measures(deq, new, sim, closed)
        row["closed_mixing_rate"] = closed.mixing_rate
    plot_distilled(deq, new, sim, report, closed).savefig(images / f"set-{kind.__name__.lower()}.png", dpi=80)
    print(kind.__name__, report, row.get("compared"), sep="\n", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "invariant-sets.json")
    parser.add_argument("--images", type=Path, default=HERE / "docs" / "images")
    parser.add_argument("--epochs", type=int, default=120)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DistillWarning)  # it is in the reports
    densities = [logistic(start, options.images if start == 0.3 else None) for start in (0.3, 0.123, 0.771)]
    print(*densities, sep="\n", flush=True)
    cells = [cell(kind, options.images, options.epochs) for kind in (Flip, LimitCycle, Chaos, Bistable)]
    result = {"what": __doc__, "epochs": options.epochs, "seed": 0, "logistic": densities, "cells": cells}
    write_json(options.out, result | {"environment": environment()})


if __name__ == "__main__":
    main()
