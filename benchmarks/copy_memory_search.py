"""A grid of copy-memory trials on one device at once, judged on the validation split only.

    python benchmarks/copy_memory_search.py --model copy/sim-two --lr 5e-4 1e-3 --batch 1 5 --bandwidth 5 20 \
        --epochs 6 --out results/h200/search-sim-two.json --retrain results/h200/copy-sim-two.json

Each trial trains on the train split in a thread with its own CUDA stream, so that small models share the GPU.
The schedule is the one of the whole 20-epoch run: `--epochs` only says where the trial is cut. `--retrain` then
trains the best of them on train+valid for all epochs, as the paper does, and keeps the result.
"""

import argparse
import itertools
import json
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from koopsim.config import DEQConfig, Run, SolverConfig, to_dict
from koopsim.presets import run_of
from koopsim.runs import RunDirectory, environment, write_json
from koopsim.train import prepare, train


def grid(arguments: argparse.Namespace) -> list[Run]:
    base = run_of(arguments.model)
    base = replace(base, train_on="train", task=replace(base.task, horizon=arguments.horizon))
    runs = []
    axes = (arguments.lr, arguments.batch, arguments.bandwidth or [None], arguments.solver or [None], arguments.seeds)
    for lr, batch, bandwidth, solver, seed in itertools.product(*axes):
        model = base.model
        if bandwidth is not None:
            model = replace(model, fourier=replace(model.fourier, bandwidth=bandwidth))
        if solver is not None and isinstance(model, DEQConfig):
            settings = SolverConfig(solver, arguments.steps, arguments.tolerance)
            model = replace(model, forward=settings, backward=settings)
        recipe = replace(base.recipe, learning_rate=lr, batch_size=batch, epochs=arguments.total_epochs)
        runs.append(replace(base, model=model, recipe=recipe, seed=seed))
    return runs


class Trial:
    """One run on its own stream; `curve` has a line an epoch.

    A capture forbids other threads to touch the device, so a DEQ that recaptures as it goes (`adapt`) keeps here
    the solver steps it began with.
    """

    def __init__(self, run: Run, device: torch.device, compile: bool):
        self.run, self.device, self.curve, self.error = run, device, [], None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(self.stream):
            self.task, self.trainer = prepare(run, device, compile=compile)
            self.trainer.adaptive = False
            self.trainer.warm_up()

    def train(self, epochs: int, deadline: float) -> None:
        with torch.cuda.stream(self.stream):
            try:
                self._train(epochs, deadline)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                print(f"{self.label}  {self.error[:200]}", flush=True)

    def _train(self, epochs: int, deadline: float) -> None:
        trainer, began = self.trainer, time.monotonic()
        for epoch in range(epochs):
            trainer.start_epoch(epoch)
            for first in range(0, trainer.steps_per_epoch, 50):
                trainer.run(first, min(first + 50, trainer.steps_per_epoch))
                loss = float(trainer.losses[first])
                if loss != loss:
                    raise ArithmeticError(f"the loss is not a number in epoch {epoch + 1}")
                if time.monotonic() > deadline:
                    return
            line = {"epoch": epoch + 1, "seconds": time.monotonic() - began}
            line["train_loss"] = float(trainer.losses.double().mean())
            line |= {k: float(v) / trainer.steps_per_epoch for k, v in trainer.diagnostics.items()}
            line |= {f"valid_{k}": v for k, v in self.task.evaluate(trainer.model, "valid").items()}
            self.curve.append(line)
            print(f"{self.label}  {json.dumps({k: float(f'{v:.4g}') for k, v in line.items()})}", flush=True)

    @property
    def label(self) -> str:
        model, recipe = self.run.model, self.run.recipe
        extra = getattr(getattr(model, "fourier", None), "bandwidth", None) or getattr(
            getattr(model, "forward", None), "method", ""
        )
        return f"lr {recipe.learning_rate:g} batch {recipe.batch_size} {extra} seed {self.run.seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="copy/sim-single")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--bandwidth", type=float, nargs="+")
    parser.add_argument("--solver", nargs="+")
    parser.add_argument("--steps", type=int, default=30, help="of the solver, at most")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--horizon", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--total-epochs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop all trials after this long")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--retrain", type=Path, help="where the result of the best one goes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trials = [Trial(run, device, arguments.compile) for run in grid(arguments)]
    deadline = time.monotonic() + arguments.seconds
    threads = [threading.Thread(target=t.train, args=(arguments.epochs, deadline)) for t in trials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = [t for t in trials if t.curve]
    finished.sort(key=lambda t: t.curve[-1]["valid_loss"])
    for t in finished:
        last = t.curve[-1]
        print(f"{last['valid_loss']:.3e} after {last['epoch']} epochs, {last['seconds']:.0f} s: {t.label}")
    if arguments.out:
        rows = [{"run": to_dict(t.run), "curve": t.curve, "error": t.error} for t in trials]
        write_json(arguments.out, {"trials": rows, "environment": environment()})
    if arguments.retrain and finished:
        retrain(finished[0].run, arguments.model, device, arguments.retrain)


def retrain(run: Run, name: str, device: torch.device, out: Path) -> None:
    """The chosen configuration on train+valid, its result in `out` and its run directory beside it."""
    run = replace(run, train_on="train+valid")
    directory = RunDirectory.create(out.with_suffix(""), run, name, overwrite=True)
    result = train(run, directory, name, device, listen=lambda e: e["event"] == "epoch" and print(e, flush=True))
    write_json(out, result)
    print(f"{name}  test {result['test']}  {result['milliseconds_per_step']:.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()
