"""Where ranges of searches over tables come from: random draws from wide ranges, on tables that are in no figure.

    python benchmarks/table_tuning.py --out results/tables-tuning.json [--draws 40] [--seeds 2]

Of each draw: the score on a quarter of the training rows, as a search sees it, and on a quarter held out of all. The
effect of a choice is the mean of the latter over tables and seeds, each table's scores put on one scale: 0 is its
median, 1 its best tenth. table_sets.py keeps the parts of the ranges that do best here, of SIMs and of MLPs alike.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import loguniform
from sklearn import datasets
from sklearn.base import clone
from sklearn.model_selection import ParameterSampler, train_test_split
from table_sets import Rows, model
from threadpoolctl import threadpool_limits

from koopsim.runs import environment, write_json


def letters(seed: int, rows: int = 1500) -> Rows:
    """Ten letters at 8 x 8, turned, moved and noisy."""
    random, font = np.random.default_rng(seed), ImageFont.load_default(size=22)
    X, y = [], random.integers(10, size=rows)
    for letter in y:
        picture = Image.new("L", (32, 32))
        at = 8 + 1.2 * random.normal(), 3 + 1.2 * random.normal()
        ImageDraw.Draw(picture).text(at, "ABEGHKNRSX"[letter], fill=255, font=font)
        picture = picture.rotate(12 * random.normal(), resample=Image.Resampling.BILINEAR)
        X.append(np.asarray(picture.resize((8, 8), Image.Resampling.BOX), float).ravel() / 16)
    return np.array(X) + random.normal(size=(rows, 64)), y


def medical(seed: int, rows: int = 500) -> Rows:
    """Two classes of six factors, seen as 25 skew columns."""
    random = np.random.default_rng(seed)
    f = random.normal(size=(rows, 6))
    X = f @ random.normal(size=(6, 25)) + 0.5 * random.normal(size=(rows, 25))
    z = 2.5 * f[:, 0] + 1.5 * f[:, 1] + 0.6 * f[:, 2] ** 2 - 0.5
    return np.exp(0.4 * X), (z + 0.7 * random.logistic(size=rows) > 0).astype(int)


def steps(seed: int, rows: int = 1000) -> Rows:
    """Steps along the axes, of which one is a pair's; four columns say nothing."""
    random = np.random.default_rng(seed)
    X = random.uniform(-1, 1, size=(rows, 8))
    y = np.floor(2 * X[:, 0]) + 1.5 * (X[:, 1] > 0.3) * (X[:, 2] > -0.4) - (np.abs(X[:, 3]) < 0.3)
    return X, y + 0.25 * random.normal(size=rows)


def weak(seed: int, rows: int = 450) -> Rows:
    """A linear answer under more noise than answer."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 10)) @ (np.eye(10) + 0.3 * random.normal(size=(10, 10)))
    y = X @ random.normal(size=10) + 0.5 * X[:, 0] * X[:, 1]
    return X, y + 1.2 * y.std() * random.normal(size=rows)


def blobs(seed: int) -> Rows:
    return datasets.make_classification(
        800, 15, n_informative=6, n_redundant=3, n_classes=4, n_clusters_per_class=1, flip_y=0.05, random_state=seed
    )


CLASSES: dict[str, Callable[[int], Rows]] = {"letters": letters, "medical": medical, "blobs": blobs}
NUMBERS: dict[str, Callable[[int], Rows]] = {"steps": steps, "weak": weak}
WIDE: dict[str, dict[str, Any]] = {
    "SIM": {
        "tier": ["single", "single", "two", "rff"], "width": [64, 128, 256], "layers": [1, 2], "hidden": [32, 64],
        "learning_rate": loguniform(1e-3, 2e-2), "weight_decay": loguniform(1e-3, 10), "average": [0.9, 0.97, 0.99],
        "early_stopping": [True, True, False], "epochs": [40, 100],
    },
    "MLP": {
        "hidden_layer_sizes": [(100,), (200,), (50, 50), (100, 100)], "activation": ["relu", "tanh"],
        "alpha": loguniform(1e-5, 10), "learning_rate_init": loguniform(3e-4, 2e-2), "max_iter": [100, 200, 400],
        "early_stopping": [False, True],
    },
}  # fmt: skip


def tried(name: str, table: str, seed: int, draws: int) -> list[dict[str, Any]]:
    """Each draw's two scores on one table."""
    classes = table in CLASSES
    X, y = (CLASSES | NUMBERS)[table](seed + 100)
    a, b, p, q = train_test_split(X, y, test_size=0.25, random_state=seed, stratify=y if classes else None)
    c, d, r, s = train_test_split(a, p, test_size=0.25, random_state=seed)
    prefix = "" if name == "SIM" else "mlpclassifier__" if classes else "regressor__mlpregressor__"
    rows = []
    for draw in ParameterSampler(WIDE[name], draws, random_state=7):
        own = model(name, classes, seed).set_params(**{prefix + key: value for key, value in draw.items()})
        with threadpool_limits(1):
            seen, held = clone(own).fit(c, r).score(d, s), clone(own).fit(a, p).score(b, q)
        told = {key: list(value) if isinstance(value, tuple) else value for key, value in draw.items()}
        rows.append({"model": name, "table": table, "seed": seed, "draw": told, "seen": seen, "held": held})
    return rows


def effects(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each choice, of numbers of each third of their range: the mean over tables, on the scale of the docstring."""
    scaled, found = [], {}
    for key in sorted({(row["table"], row["seed"]) for row in rows}):
        own = [row for row in rows if (row["table"], row["seed"]) == key]
        middle, best = np.quantile([row["held"] for row in own], [0.5, 0.9])
        scaled += [(row["draw"], float(np.clip((row["held"] - middle) / (best - middle + 1e-9), -3, 3))) for row in own]
    for name in scaled[0][0]:
        values = [draw[name] for draw, _ in scaled]
        several = isinstance(values[0], float) and len(set(values)) > 4
        edges = np.quantile(values, [1 / 3, 2 / 3]) if several else []
        means = defaultdict(list)
        for draw, score in scaled:
            value = draw[name]
            part = int(np.searchsorted(edges, value)) if several else 0
            words = ("up to {:.2g}", "from {:.2g} to {:.2g}", "above {:.2g}")[part] if several else "{}"
            means[words.format(*(edges[max(0, part - 1) : part + 1] if several else [value]))].append(score)
        found[name] = {label: round(float(np.mean(own)), 3) for label, own in sorted(means.items())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", nargs="+", default=list(CLASSES | NUMBERS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    done = {(row["model"], row["table"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        for table in options.tables:
            for name in WIDE:
                if (name, table, seed) in done:
                    continue
                rows += tried(name, table, seed, options.draws)
                told = {name: effects([row for row in rows if row["model"] == name]) for name in WIDE if rows}
                wall = time.perf_counter() - began
                found = {"what": __doc__, "effects": told, "rows": rows, "wall_seconds": wall}
                write_json(options.out, found | {"environment": environment()})
                print(name, table, seed, f"{wall:.0f} s", flush=True)


if __name__ == "__main__":
    main()
