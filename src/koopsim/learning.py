"""koopsim.train: a preset, a run, or a module and data of your own, in a folder that says all of it.

    koopsim.train("copy/sim-single")
    koopsim.train(model, (x, y), "runs/mine", learning=Learning(Recipe(epochs=20)))

What was stopped goes on where it was when the same is asked for again, to the same bits; a finished run is read, if it
is of the same data and has the figures that are asked for. Of a module of your own the trained weights are put into it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from koopsim.config import Run
from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError
from koopsim.nn.own import own_config
from koopsim.presets import asked_run
from koopsim.progress import Progress
from koopsim.runs import RunDirectory
from koopsim.tasks.base import Task
from koopsim.tasks.own import Data, Learning, OwnTask
from koopsim.tracking import together
from koopsim.training import Listener, Session, load_run, resume_run, settled_run, start_run, unheard

__all__ = ["Learning", "train"]

PLAINLY = Learning()
LOSS_FIGURE = OwnTask.metric  # of every split, beside the metrics


def train(
    what: str | Run | nn.Module,
    data: Data | Path | str | None = None,
    out: Path | str | None = None,
    *,
    learning: Learning = PLAINLY,
    scale: str = "paper",
    overwrite: bool = False,
    device: str = "auto",
    progress: bool | Listener = True,
) -> dict[str, Any]:
    """Train a preset, a run, or a module on your own data, in the folder `out`; its result.

    what       "copy/sim-single", a `Run`, or any nn.Module
    data       of a module: a torch Dataset, or (inputs, ..., target) as tensors; of the others it is `out`
    learning   of a module: recipe, loss, metrics, validation and test data
    scale      of a preset: "paper", or "smoke", which ends in seconds
    progress   False: silent; a listener of yours, or a tracker of koopsim.tracking: it hears of epochs beside the bar
    """
    if isinstance(what, nn.Module):
        if not isinstance(learning, Learning):
            raise KoopsimError(f"learning is {type(learning).__name__}; expected koopsim.Learning(recipe, loss, ...).")
        if data is None or isinstance(data, (str, Path)):
            raise KoopsimError("koopsim.train(model, data) takes a torch Dataset, or a tuple (inputs, target).")
        place = pick_device(device)
        if LOSS_FIGURE in learning.metrics:
            raise KoopsimError(
                f"metrics has {LOSS_FIGURE!r}, which is the name of the loss's own figure; call the metric otherwise."
            )
        task = OwnTask(what, data, learning, place)
        task.refuse_misfits()
        name = f"own/{type(what).__name__}"
        on = "train" if "valid" in task.parts else "train+valid"
        run = Run(own_config(what), task.config, learning.recipe, learning.seed, on)
        folder = Path(out or Path("runs") / name)
        session = Session(place, learning.capture, learning.compile)
        with _heard(session, name, learning.recipe.epochs, progress) as session:
            result = _trained(run, folder, name, session, task, overwrite)
        trained = load_run(folder, make=task.model)
        what.load_state_dict(trained.state_dict())
        return result
    if data is not None and not isinstance(data, (str, Path)):
        raise KoopsimError("Data is given with a module: koopsim.train(model, data). A preset has its own.")
    name, run = asked_run(what, scale)
    folder = Path(out or data or Path("runs") / name)
    with _heard(Session(pick_device(device)), name, run.recipe.epochs, progress) as session:
        return _trained(run, folder, name, session, None, overwrite)


@contextmanager
def _heard(session: Session, name: str, epochs: int, progress: bool | Listener) -> Iterator[Session]:
    """The session with somebody who listens: a bar, and whoever was given."""
    with Progress(name, epochs) if progress else nullcontext(unheard) as shown:
        yield replace(session, listen=together(shown, progress) if callable(progress) else shown)


def _trained(
    run: Run, folder: Path, name: str, session: Session, task: Task | None, overwrite: bool
) -> dict[str, Any]:
    """Start it, or go on with it."""
    if RunDirectory(folder).config_file.exists() and not overwrite:
        if RunDirectory(folder).read_config()[1] not in (run, settled_run(run, session) if task is None else run):
            raise KoopsimError(f"{folder} holds another run; give another folder, or overwrite=True.")
        if task is not None:
            _refuse_missing_figures(run, folder, task)
        return resume_run(folder, session, task)
    return start_run(run, folder, name, session, overwrite, task)


def _refuse_missing_figures(run: Run, folder: Path, task: Task) -> None:
    """A finished run is not judged again: what is asked for now has to be in its result."""
    directory = RunDirectory(folder)
    if not isinstance(task, OwnTask) or not directory.result_file.exists():
        return
    result, wanted = directory.read_result(), (LOSS_FIGURE, *task.learning.metrics)
    missing = [
        f"no {split} data" if split not in result else f"no {name!r} on its {split} data"
        for split in task.reported(run) for name in wanted if name not in result.get(split, {})
    ]  # fmt: skip
    if missing:
        raise KoopsimError(
            f"The run in {folder} is finished, with {missing[0]}: that was not asked for when it was trained. Give "
            "another folder, or overwrite=True to train it again."
        )


def load_into(folder: Path | str, model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A copy of your own module with the weights of the run in `folder`, in eval mode."""
    _, run = RunDirectory(folder).read_config()
    if own_config(model) != run.model:
        raise KoopsimError(
            f"{folder} holds the weights of another model than this {type(model).__name__}: its class, or its tensors' "
            "names and shapes, are not those of the run."
        )
    return load_run(folder, device, lambda run: copy.deepcopy(model))
