"""Sequences: SIMs beside a GRU and a DEQ of as many parameters, and the simple forecasts one should beat.

    python benchmarks/sequences.py --out results/sequences.json --jobs 16 [--epochs 30]

Three generated systems to be foretold (a noisy oscillator, Lorenz, seasonal counts) and one to be named (gestures of
lengths that differ), five seeds each. The data of a seed is drawn anew, the same for all models. Each has the same
effort: the same windows, the same number of epochs, and the better of three learning rates by the validation part (one
seed chooses for all); its size is the one whose parameters come nearest to the SIM's. The test part is looked at once,
by the chosen rate. Simple forecasts: the last value, the value a season ago, and ridge regression from the window.
"""

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from koopsim.engine.drive import pick_device
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task
from koopsim.training import Session, start_run

RATES = (1e-3, 3e-3, 1e-2)
SEASON = {"oscillator": 16, "lorenz": 15, "counts": 24}  # steps: a swing, about a turn, a day
SETTINGS = {
    "oscillator": {"samples": 4000, "ahead": 16, "context": 64},
    "lorenz": {"samples": 4000, "ahead": 16, "context": 64},
    "counts": {"samples": 24 * 7 * 20, "ahead": 24, "context": 168},
    "gestures": {"samples": 1000},
}
MODELS = ("sim-single", "sim-two", "gru", "deq")


@dataclass(frozen=True)
class Job:
    data: str
    model: str
    seed: int
    rate: float
    epochs: int
    device: str


def run_for(job: Job):
    """The run of a job: the preset on this data, the model as large as the SIM."""
    goal = "classify" if job.data == "gestures" else "forecast"
    base = run_of(f"{goal}/{job.model}")
    task = replace(base.task, data=job.data, seed=job.seed, **SETTINGS[job.data])
    takes = build_task(task).takes
    fitted = model_kind(base.model).for_sequences(base.model, takes.shape, takes.outputs)
    sim = run_of(f"{goal}/sim-single").model
    wanted = count_parameters(build(model_kind(sim).for_sequences(sim, takes.shape, takes.outputs)))
    fitted = as_large(fitted, job.model, wanted)
    recipe = replace(base.recipe, learning_rate=job.rate, epochs=job.epochs)
    return replace(base, model=fitted, task=task, recipe=recipe, seed=job.seed)


def as_large(model, name: str, wanted: int):
    """The GRU or DEQ whose number of parameters is nearest to the one wanted."""
    if name == "gru":
        sizes = [replace(model, hidden=h) for h in range(8, 200)]
    elif name == "deq":
        sizes = [replace(model, model_dim=d, inner_dim=2 * d) for d in range(8, 120, 2)]
    else:
        return model
    return min(sizes, key=lambda m: abs(count_parameters(build(m)) - wanted))


def trained(job: Job) -> dict:
    """One run, and its figures."""
    torch.set_num_threads(1)
    run = run_for(job)
    with tempfile.TemporaryDirectory() as folder:
        result = start_run(run, Path(folder) / "run", f"{job.data}/{job.model}", Session(pick_device(job.device)))
    keys = ("valid", "test", "parameters", "train_seconds", "run")
    return {"data": job.data, "model": job.model, "seed": job.seed, "rate": job.rate} | {k: result[k] for k in keys}


def simple(data: str, seed: int) -> dict[str, float]:
    """Test RMSE of the simple forecasts, in the deviations that the models are judged in."""
    task = build_task(replace(run_of("forecast/sim-single").task, data=data, seed=seed, **SETTINGS[data]))
    L, h = task.config.context, task.config.ahead

    def windows(split: str) -> tuple[np.ndarray, np.ndarray]:
        starts = task.split(split)[0]
        own = task.aimed[starts + task.steps].double().numpy()
        return own[:, :L], own[:, L:]

    def rmse(forecast: np.ndarray, truth: np.ndarray) -> float:
        return float(np.sqrt(np.mean((forecast - truth) ** 2)))

    (x, y), (xs, ys) = windows("train"), windows("test")
    season = SEASON[data]
    ago = np.stack([xs[:, L - season + k % season] for k in range(h)], axis=1)
    found = {"last value": rmse(np.broadcast_to(xs[:, -1:], ys.shape), ys), "a season ago": rmse(ago, ys)}
    (xv, yv), best = windows("valid"), None
    A = np.column_stack([x.reshape(len(x), -1), np.ones(len(x))])
    B = y.reshape(len(y), -1)
    for penalty in 10.0 ** np.arange(-3, 4):  # chosen on the validation part, as the models' rates are
        W = np.linalg.solve(A.T @ A + penalty * np.eye(A.shape[1]), A.T @ B)

        def foretold(z: np.ndarray, W: np.ndarray = W) -> np.ndarray:
            return (np.column_stack([z.reshape(len(z), -1), np.ones(len(z))]) @ W).reshape(len(z), h, -1)

        off = rmse(foretold(xv), yv)
        if best is None or off < best[0]:
            best = (off, rmse(foretold(xs), ys))
    assert best is not None
    return found | {"ridge": best[1]}


def better(a: dict, b: dict) -> dict:
    key = "accuracy" if a["data"] == "gestures" else "rmse"
    first = a["valid"][key] >= b["valid"][key] if key == "accuracy" else a["valid"][key] <= b["valid"][key]
    return a if first else b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=list(SETTINGS))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    began, rows, tried = time.perf_counter(), [], []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        pairs = [(data, model) for data in arguments.data for model in arguments.models]

        def jobs(seed: int, rates: dict) -> list[Job]:
            return [
                Job(data, model, seed, rate, arguments.epochs, arguments.device)
                for data, model in pairs for rate in rates[data, model]
            ]  # fmt: skip

        def save() -> None:
            about = {"epochs": arguments.epochs, "rates": RATES, "jobs": arguments.jobs, "device": arguments.device}
            about |= {"wall_seconds": time.perf_counter() - began, "environment": environment()}
            told = {"summary": summary(rows, plain), "rows": rows, "tried": tried, "simple": plain}
            write_json(arguments.out, about | told)

        foretold = [d for d in arguments.data if d != "gestures"]
        plain = {data: list(pool.map(simple, [data] * arguments.seeds, range(arguments.seeds))) for data in foretold}
        chosen: dict = {}
        for row in pool.map(trained, jobs(0, dict.fromkeys(pairs, RATES))):
            key = row["data"], row["model"]
            chosen[key] = better(row, chosen[key]) if key in chosen else row
            tried.append({k: row[k] for k in ("data", "model", "seed", "rate", "valid")})
            print(row["data"], row["model"], row["rate"], row["valid"], flush=True)
        rows += chosen.values()
        save()
        rest = [job for s in range(1, arguments.seeds) for job in jobs(s, {k: (r["rate"],) for k, r in chosen.items()})]
        for row in pool.map(trained, rest):
            rows.append(row)
            save()
            print(row["data"], row["model"], row["seed"], row["test"], flush=True)
        save()


def summary(rows: list[dict], plain: dict) -> dict:
    """Mean and standard deviation over seeds, by data and model."""
    found: dict = {}
    for data in dict.fromkeys(row["data"] for row in rows):
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row for row in rows if (row["data"], row["model"]) == (data, model)]
            if own:
                figures = {key: spread([row["test"][key] for row in own]) for key in own[0]["test"]}
                more = {"parameters": own[0]["parameters"], "seconds": spread([r["train_seconds"] for r in own])}
                found.setdefault(data, {})[model] = figures | more
        for name in plain.get(data, [{}])[0]:
            found[data][name] = {"rmse": spread([own[name] for own in plain[data]])}
    return found


def spread(values: list[float]) -> list[float]:
    return [float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0]


if __name__ == "__main__":
    main()
