"""Tables: SIMs beside perceptrons, linear models and trees; how long a fit takes; a search of stacked trials.

    python benchmarks/tables.py study --jobs 16 [--seeds 5] [--trials 30] --out results/tables-study.json
    python benchmarks/tables.py speed [--device cuda] --out results/tables-speed.json
    python benchmarks/tables.py turns --epochs 4 --theirs 7 --out results/tables-turns.json
    python benchmarks/tables.py search --device cuda --out results/h200/tables-search.json

study    of each table and seed a quarter of the rows is the test; a search holds a quarter of the others out. Ranks are
         of the four models on each table, by the mean over seeds (accuracy or R^2); 1 is best
speed    seconds of a whole fit, the median of five; 100,000 x 20 at equal epochs, the first captured step included
turns    at equal batches of 200 SIM and MLPRegressor in turns, processor time of one core, the median of --theirs fits
search   100 trials of the engine, one stack, each of all its epochs, twice: the first compiles kernels; and
         RandomizedSearchCV of MLPRegressor on one core, some of its trials, times as many as there are. Both learn from
         70,000 rows in batches of one size, are judged on 10,000, and train nothing again at the end
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import loguniform, rankdata
from sklearn import datasets
from sklearn.model_selection import RandomizedSearchCV, ShuffleSplit, train_test_split
from sklearn.neural_network import MLPRegressor
from table_sets import MODELS, TABLES, classifies, model, space
from threadpoolctl import threadpool_limits

from koopsim.engine import feeds, gradients
from koopsim.runs import environment, write_json
from koopsim.sklearn import SIMClassifier, SIMRegressor

QUARTER = 0.25


def one(table: str, name: str, seed: int, trials: int) -> dict[str, Any]:
    """A model with its defaults (no trials), or the best of a search, on one table and seed."""
    warnings.simplefilter("ignore")  # a perceptron that stopped at max_iter says so every time
    classes = classifies(table)
    X, y = TABLES[table](seed)
    a, b, p, q = train_test_split(X, y, test_size=QUARTER, random_state=seed, stratify=y if classes else None)
    found = model(name, classes, seed)
    if trials:
        once = ShuffleSplit(1, test_size=QUARTER, random_state=seed)
        found = RandomizedSearchCV(found, space(name, classes), n_iter=trials, cv=once, random_state=seed)
    began = time.perf_counter()
    with threadpool_limits(1):
        found.fit(a, p)
    seconds = time.perf_counter() - began
    best = {key: str(value) for key, value in found.best_params_.items()} if trials else {}
    row = {"table": table, "model": name, "seed": seed, "trials": trials, "score": float(found.score(b, q))}
    return row | {"seconds": seconds, "best": best}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of each table and model, and its rank among the models."""
    found = []
    for trials in sorted({row["trials"] for row in rows}):
        for table in TABLES:
            own = {m: [r for r in rows if (r["table"], r["model"], r["trials"]) == (table, m, trials)] for m in MODELS}
            means = {m: statistics.mean(r["score"] for r in of) for m, of in own.items()}
            ranks = dict(zip(MODELS, rankdata([-means[m] for m in MODELS]).tolist(), strict=True))
            for m, of in own.items():
                spread = statistics.stdev(r["score"] for r in of) if len(of) > 1 else 0.0
                seconds = statistics.median(r["seconds"] for r in of)
                found.append({"table": table, "model": m, "trials": trials, "mean": means[m], "spread": spread,
                              "rank": ranks[m], "seconds": seconds, "seeds": len(of)})  # fmt: skip
    return found


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Every model on every table, seed by seed; what is done is in the file, and is not done again."""
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if options.earlier is not None and not rows:
        rows = carried(json.loads(options.earlier.read_text()), options.models)
    done = {(row["table"], row["model"], row["seed"], row["trials"]) for row in rows}
    each = [
        (t, m, s, n) for s in range(options.seeds) for n in (options.trials, 0) for m in options.models for t in TABLES
    ]
    asked = [job for job in each if job not in done]
    work = Parallel(options.jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")
    found = told_of(rows)
    for row in work(delayed(one)(*job) for job in asked):
        rows.append(cast(dict[str, Any], row))
        found = told_of(rows)
        save(options, found)
    return found


def carried(earlier: dict[str, Any], models: list[str]) -> list[dict[str, Any]]:
    """The rows of models that are not run again, each saying of which commit it is."""
    commit = earlier["environment"]["commit"]
    return [row | {"of_commit": commit} for row in earlier["rows"] if row["model"] not in models]


def told_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The findings on the seeds that are through, every model on every table with and without a search."""
    whole = len(TABLES) * len(MODELS) * len({row["trials"] for row in rows})
    counts = Counter(row["seed"] for row in rows)
    told = summary([row for row in rows if counts[row["seed"]] == whole])
    ranks = {
        f"{m}, {'search of ' + str(n) if n else 'defaults'}": statistics.mean(
            r["rank"] for r in told if (r["model"], r["trials"]) == (m, n)
        )
        for n in sorted({r["trials"] for r in told})
        for m in MODELS
    }
    return {"mean_ranks": ranks, "summary": told, "rows": rows, "tuned_on": "other tables and seeds, see table_sets.py"}


def timed(fit: Callable[[], Any], times: int = 5) -> dict[str, float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        fit()
        found.append(time.perf_counter() - began)
    return {"median_seconds": statistics.median(found), "least": min(found), "most": max(found), "times": times}


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """A whole fit, from arrays to a model that answers."""
    warnings.simplefilter("ignore")
    X, y = datasets.load_breast_cancer(return_X_y=True)
    SIMClassifier(epochs=1).fit(X, y)  # what a process does once is not the fit's
    rows: list[dict[str, Any]] = []

    def add(**row: Any) -> None:
        rows.append(row)
        print(row, flush=True)
        save(options, {"rows": rows})

    add(what="SIMClassifier(), breast cancer, cpu", **timed(lambda: SIMClassifier(random_state=0).fit(X, y)))
    if options.device != "cpu":
        small = SIMClassifier(random_state=0, device=options.device)
        add(what=f"SIMClassifier(), breast cancer, {options.device}", **timed(lambda: small.fit(X, y)))
    X, y = datasets.make_friedman1(options.rows, n_features=20, noise=1.0, random_state=0)
    y = (y - y.mean()) / y.std()
    epochs, device = options.epochs, options.device
    plain = {"max_iter": epochs, "n_iter_no_change": epochs, "tol": 0.0, "random_state": 0}
    threads = [1] if os.environ.get("OMP_NUM_THREADS") == "1" else [None]  # torch reads it once, when it is loaded
    for count in threads:
        told = {"rows": options.rows, "epochs": epochs, "threads": count or "all"}
        with threadpool_limits(count):
            for batch in ("auto", 200):
                sim = SIMRegressor(epochs=epochs, batch_size=batch, early_stopping=False, device=device, random_state=0)
                took = timed(lambda each=sim: each.fit(X, y), 3)
                add(what=f"SIMRegressor, {device}", batch=batch, **told, **took, r2=sim.score(X, y))
            mlp = MLPRegressor(**plain)
            took = timed(lambda each=mlp: each.fit(X, y), 3 if epochs <= 20 else 1)
            add(what="MLPRegressor, cpu", batch=200, **told, **took, r2=mlp.score(X, y))
    return {"rows": rows}


def turns(options: argparse.Namespace) -> dict[str, Any]:
    """Fits at scikit-learn's batch in turns, by processor time, which a busy machine disturbs least."""
    warnings.simplefilter("ignore")
    X, y = datasets.make_friedman1(options.rows, n_features=20, noise=1.0, random_state=0)
    y = (y - y.mean()) / y.std()
    epochs, batch = options.epochs, options.batch
    sim = SIMRegressor(epochs=epochs, batch_size=batch, early_stopping=False, random_state=0)
    mlp = MLPRegressor(max_iter=epochs, n_iter_no_change=epochs, tol=0.0, batch_size=batch, random_state=0)

    def by_tape() -> None:
        with mock.patch.object(gradients, "writable", return_value=False), mock.patch.object(feeds, "LITTLE", 0):
            sim.fit(X, y)

    ways: dict[str, Callable[[], Any]] = {
        "SIM": lambda: sim.fit(X, y), "SIM, as before, by autograd": by_tape, "MLP": lambda: mlp.fit(X, y)
    }  # fmt: skip
    sim.fit(X[:1000], y[:1000])
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with threadpool_limits(1):
        for _ in range(options.theirs):
            for name, fit in ways.items():
                began = time.process_time()
                fit()
                spent[name].append(time.process_time() - began)
    median = {name: statistics.median(own) for name, own in spent.items()}
    r2 = {"SIM": float(sim.score(X, y)), "MLP": float(mlp.score(X, y))}
    told = {"rows": options.rows, "epochs": epochs, "batch": batch, "processor_seconds": spent, "median": median}
    ratios = {f"{name} / MLP": own / median["MLP"] for name, own in median.items() if name != "MLP"}
    return told | {"ratios": ratios, "r2": r2, "load": os.getloadavg()}


def search(options: argparse.Namespace) -> dict[str, Any]:
    """A stack of trials on a device, beside scikit-learn's trials one after the other on a core."""
    warnings.simplefilter("ignore")
    X, y = datasets.make_friedman1(options.rows, n_features=20, noise=1.0, random_state=0)
    first = _stack(options, X, y)
    ours = _stack(options, X, y)
    told = {
        "table": f"friedman 1, {options.rows} x 20", "epochs": options.epochs, "batch": options.batch,
        "trials": options.trials, "device": options.device, "first_seconds": first["whole"],
        "stack_seconds": ours["whole"], "of_it_training": ours["training"], "best_loss": ours["best_loss"],
    }  # fmt: skip
    print(told, flush=True)
    save(options, told)  # ours is not lost where theirs takes too long
    mlp = MLPRegressor(
        max_iter=options.epochs, n_iter_no_change=options.epochs, tol=0.0, batch_size=options.batch, random_state=0
    )
    theirs = {"alpha": loguniform(1e-5, 1), "learning_rate_init": loguniform(3e-4, 2e-2)}
    once = ShuffleSplit(1, train_size=0.7, test_size=0.1, random_state=0)  # as many rows as ours
    scaled = (y - y.mean()) / y.std()
    began = time.perf_counter()
    with threadpool_limits(1):
        RandomizedSearchCV(mlp, theirs, n_iter=options.theirs, cv=once, refit=False, random_state=0).fit(X, scaled)
    each = (time.perf_counter() - began) / options.theirs
    whole = each * options.trials
    return told | {
        "their_seconds_a_trial": each, "their_trials_measured": options.theirs, "their_seconds": whole,
        "times_faster": whole / ours["whole"], "times_faster_first": whole / first["whole"],
    }  # fmt: skip


def _stack(options: argparse.Namespace, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Seconds of a search from the table's file to its pictures, nobody stopped early, nothing trained again."""
    from koopsim.config import Recipe, Run
    from koopsim.engine.drive import pick_device
    from koopsim.kinds import model_kind
    from koopsim.searching.carrying_out import How, start_search
    from koopsim.searching.directory import Search
    from koopsim.spaces import LogUniform, SearchSpace
    from koopsim.tasks.table import MODELS as OURS
    from koopsim.tasks.table import TableConfig
    from koopsim.training import Session

    epochs = options.epochs
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "friedman.npz"
        np.savez(file, x=X, y=y)
        shape = model_kind(OURS["sim-single"]).for_rows(OURS["sim-single"], 20, 1)
        recipe = Recipe(options.batch, epochs, 8e-3, "cosine", weight_decay=0.1)
        run = Run(shape, TableConfig(str(file), ("y",), "regression"), recipe, train_on="train")
        drawn = {"recipe.learning_rate": LogUniform(1e-3, 3e-2), "recipe.weight_decay": LogUniform(1e-2, 10.0)}
        whole = SearchSpace(drawn, options.trials, epochs, epochs, 2, "loss", "min")
        how = How(Session(pick_device(options.device)), retrain=0)
        began = time.perf_counter()
        result = start_search(Search("friedman", run, whole, 0), Path(folder) / "search", how)
        seconds = time.perf_counter() - began
    return {"whole": seconds, "training": float(result["seconds"]), "best_loss": float(result["best"]["loss"])}


def save(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """What is known so far, as one file: a study that is stopped keeps its rows."""
    asked = {key: str(value) for key, value in vars(options).items() if key != "began"}
    wall = time.perf_counter() - options.began
    write_json(
        options.out, {"what": __doc__, "asked": asked, **found, "wall_seconds": wall, "environment": environment()}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("study", "speed", "turns", "search"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="of the study: those to run")
    parser.add_argument("--earlier", type=Path, help="a study whose rows of the other models are taken over")
    parser.add_argument("--trials", type=int, help="of a search; 30 in the study, 100 of a stack")
    parser.add_argument("--theirs", type=int, default=5, help="trials of RandomizedSearchCV that are measured")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.trials = options.trials or {"study": 30, "search": 100}.get(options.what, 0)
    options.began = time.perf_counter()
    found = {"study": study, "speed": speed, "turns": turns, "search": search}[options.what](options)
    save(options, found)
    print({key: value for key, value in found.items() if key not in ("rows", "summary")})


if __name__ == "__main__":
    main()
