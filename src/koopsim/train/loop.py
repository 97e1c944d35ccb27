"""A run from its first step to its result, through whatever stops it on the way.

    configuration -> epochs of steps -> metrics.jsonl, checkpoint -> result.json

A run that was killed at any moment goes on from its last checkpoint and ends with the same numbers as one that
was not: the order of the data depends on seed and epoch alone, and lines of metrics.jsonl that the checkpoint
does not know of are dropped and written again.
"""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.config import Run, to_dict
from koopsim.errors import KoopsimError
from koopsim.kinds import task_kind
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.runs import RunDirectory, write_json
from koopsim.tasks import Task, build_task
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.tasks.inputs import note_inputs
from koopsim.train.state import Position, load_checkpoint, load_model, save_checkpoint
from koopsim.train.step import Trainer

CHUNK_SECONDS = 0.25  # how often the host looks: progress, Ctrl-C, a loss that is not a number
CHECKPOINT_SECONDS = 30.0  # between checkpoints inside an epoch; every epoch's end has one too

Listener = Callable[[dict[str, Any]], None]


class Stopped(Exception):
    """The run was asked to stop and has saved itself."""


def pick_device(name: str = "auto") -> torch.device:
    """'auto' is CUDA where there is one; a device that is not there is refused."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise KoopsimError(f"The device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def prepare(
    run: Run,
    device: torch.device,
    capture: bool | None = None,
    compile: bool = False,
    task: Task | None = None,
    room: int = 0,
) -> tuple[Task, Trainer]:
    """The task with its data on the device, and a trainer at the first step. A `task` at hand is used again."""
    model = untrained(run, device)
    torch.set_float32_matmul_precision("high" if run.precision == "tf32" else "highest")
    task = build_task(run.task, device) if task is None else task
    torch.backends.cudnn.benchmark = True  # convolutions: the first steps try out which kernels are fastest
    autocast = torch.bfloat16 if run.precision == "bf16" else None
    capture = device.type == "cuda" if capture is None else capture
    loss = functools.partial(task.loss, smoothing=run.recipe.label_smoothing)

    def inputs(x: Tensor, draws: Tensor | None) -> Tensor:
        return task.inputs(x, run.recipe, draws)

    data = task.split(run.train_on)
    return task, Trainer(model, loss, data, run.recipe, run.seed, autocast, capture, compile, inputs, room)


def untrained(run: Run, device: torch.device) -> nn.Module:
    """The model of a run before its first step: its weights depend on the seed alone."""
    torch.manual_seed(run.seed)
    return build(run.model).to(device, torch.float64 if run.precision == "float64" else torch.float32)


def train(
    run: Run,
    directory: RunDirectory,
    name: str,
    device: torch.device,
    resume: bool = False,
    capture: bool | None = None,
    listen: Listener = lambda event: None,
    task: Task | None = None,
) -> dict[str, Any]:
    """Train `run` in `directory` and return its result; `listen` hears of progress and of each epoch."""
    with directory.held():
        if task_kind(run.task).many:
            from koopsim.train.picture_runs import train_pictures

            return train_pictures(run, directory, name, device, resume, capture, listen)
        return _train(run, directory, name, device, resume, capture, listen, task)


def _train(
    run: Run,
    directory: RunDirectory,
    name: str,
    device: torch.device,
    resume: bool,
    capture: bool | None,
    listen: Listener,
    task: Task | None,
) -> dict[str, Any]:
    task, trainer = prepare(run, device, capture, task=task)
    directory.check_data(fingerprint_of(task), note=True)
    note_inputs(directory.path, task)
    position = Position()
    if resume and directory.checkpoint_file.exists():
        position = load_checkpoint(directory.checkpoint_file, trainer)
    if resume:
        directory.forget_metrics_after(position.epoch * trainer.steps_per_epoch)
    began = time.perf_counter()
    trainer.warm_up()
    set_up = time.perf_counter() - began
    with _stop_requests() as stop:
        while position.epoch < run.recipe.epochs:
            _epoch(run, task, trainer, position, directory, stop, listen)
    result = _result(run, name, task, trainer, position, directory) | {"set_up_seconds": set_up}
    write_json(directory.result_file, result)
    return result


def _epoch(
    run: Run,
    task: Task,
    trainer: Trainer,
    position: Position,
    directory: RunDirectory,
    stop: list[int],
    listen: Listener,
) -> None:
    """Train to the end of the current epoch, then write its line and its checkpoint."""
    if position.step == 0:
        trainer.start_epoch(position.epoch)
        trainer.tune()
    saved, chunk = time.monotonic(), 1
    while position.step < trainer.steps_per_epoch:
        last = min(position.step + chunk, trainer.steps_per_epoch)
        spent = _timed(trainer, position.step, last)
        _check_finite(trainer, position, last, run)
        position.step, position.seconds = last, position.seconds + spent
        chunk = max(1, min(2 * chunk, round(chunk * CHUNK_SECONDS / max(spent, 1e-6))))
        listen({"event": "progress", "step": position.epoch * trainer.steps_per_epoch + last, "steps": trainer.steps})
        if stop or time.monotonic() - saved > CHECKPOINT_SECONDS:
            save_checkpoint(directory.checkpoint_file, trainer, position)
            saved = time.monotonic()
        if stop:
            raise Stopped
    position.epoch, position.step = position.epoch + 1, 0
    line = _metrics(run, task, trainer, position)
    directory.append_metrics(line)
    save_checkpoint(directory.checkpoint_file, trainer, position)
    listen({"event": "epoch", **line})


def _timed(trainer: Trainer, first: int, last: int) -> float:
    began = time.perf_counter()
    trainer.run(first, last)
    if trainer.device.type == "cuda":
        torch.cuda.current_stream(trainer.device).synchronize()
    return time.perf_counter() - began


def _check_finite(trainer: Trainer, position: Position, last: int, run: Run) -> None:
    losses = trainer.losses[position.step : last]
    if bool(losses.isfinite().all()):
        return
    bad = position.step + int((~losses.isfinite()).nonzero()[0])
    step = position.epoch * trainer.steps_per_epoch + bad
    raise KoopsimError(
        f"The loss became {float(trainer.losses[bad])} at step {step} (epoch {position.epoch + 1}) with learning rate "
        f"{run.recipe.learning_rate:g}. Try a smaller --recipe.learning-rate or --recipe.clip-norm 1.0; "
        "the last checkpoint is from before this."
    )


def _metrics(run: Run, task: Task, trainer: Trainer, position: Position) -> dict[str, Any]:
    line: dict[str, Any] = {
        "epoch": position.epoch,
        "step": position.epoch * trainer.steps_per_epoch,
        "seconds": position.seconds,
        "train_loss": float(trainer.losses.double().mean()),
    }
    line |= {name: float(total) / trainer.steps_per_epoch for name, total in trainer.diagnostics.items()}
    if run.train_on == "train":
        line |= {f"valid_{key}": value for key, value in task.evaluate(trainer.result(), "valid").items()}
    return line


def _result(
    run: Run, name: str, task: Task, trainer: Trainer, position: Position, directory: RunDirectory
) -> dict[str, Any]:
    evaluated = "test" if run.train_on == "train+valid" else "valid"
    return {
        "name": name,
        "parameters": count_parameters(trainer.model),
        evaluated: task.evaluate(trainer.result(), evaluated),
        "train_seconds": position.seconds,
        "milliseconds_per_step": 1e3 * position.seconds / trainer.steps,
        "steps": trainer.steps,
        "captured": trainer.capture,
        "device": str(trainer.device),
        "metrics": directory.read_metrics(),
        "run": to_dict(run),
        "environment": directory.read_environment(),
    }


@contextlib.contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM so that the run can save itself first; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody can press Ctrl-C here
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load(path: Path | str, device: torch.device | str = "cpu") -> nn.Module:
    """The trained model of a run directory, in eval mode."""
    directory = RunDirectory(path)
    _, run = directory.read_config()
    if task_kind(run.task).many:  # a list of networks, one a picture
        from koopsim.train.picture_runs import load_pictures

        return load_pictures(run, directory, device)
    model = build(run.model)
    load_model(directory.checkpoint_file, model)
    dtype = torch.float64 if run.precision == "float64" else torch.float32
    return model.to(device, dtype).eval()
