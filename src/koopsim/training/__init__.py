"""A run from its first step to its result, through whatever stops it on the way.

    configuration -> epochs of steps -> metrics.jsonl, checkpoint -> result.json

A run that was killed at any moment goes on from its last checkpoint and ends with the same numbers as one that was not:
the order of the data depends on seed and epoch alone, and lines of metrics.jsonl that the checkpoint does not know of
are dropped and written again. Members that do not fit the device together train in groups, one after the other.

session.py  where, and who hears of it    course.py  groups, epochs, checkpoints    following.py  the other processes
mirrored.py  its files at a URL           this file  how a run begins, goes on and ends
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from koopsim.config import Run, to_dict
from koopsim.engine.as_it_was import torch_as_it_was
from koopsim.engine.checkpoint import models_of, read_run
from koopsim.engine.drive import drive
from koopsim.engine.memory import device_memory
from koopsim.engine.threads import few_threads
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.kinds import task_kind
from koopsim.nn.transforms import import_ahead
from koopsim.runs import RUN_FILES, RunDirectory, write_json
from koopsim.tasks import Task, build_task
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.tasks.fits import refuse_misfits
from koopsim.tasks.inputs import note_inputs
from koopsim.training.course import Training
from koopsim.training.following import follow
from koopsim.training.mirrored import fetched, mirror_of
from koopsim.training.session import Listener, Session, unheard

__all__ = [
    "Listener", "Session", "Training", "fetched", "load_run", "mirror_of", "resume_run", "settled_run", "start_run",
    "train_run", "unheard",
]  # fmt: skip

log = logging.getLogger(__name__)


def start_run(
    run: Run, out: Path, name: str, session: Session, overwrite: bool = False, task: Task | None = None
) -> dict[str, Any]:
    """A new run in `out`; data that is missing, broken or not for this model stops here, before anything is written.

    `task`: the run's own, where no configuration can build it.
    """
    if not session.world.first:
        return follow(out, session, task)
    import_ahead(session.device)
    run = settled_run(run, session) if task is None else run
    with folders.held(out):
        RunDirectory.refuse_taken(out, overwrite)
        if session.mirror is not None and not overwrite and session.mirror.there():
            raise KoopsimError(
                f"{session.mirror.url} already holds a run: go on with 'koopsim train --resume {out} --storage "
                f"{session.mirror.url}', or add --overwrite to start again."
            )
        with folders.replacing(out, overwrite):
            task = task or build_task(run.task, session.device)
            refuse_misfits(run, task)
            directory = RunDirectory.create(out, run, name, overwrite)
            if session.mirror is not None:
                session.mirror.drop(RUN_FILES if overwrite else ())  # or an older result were taken for this run's
                session.mirror.push(out)
        return train_run(run, directory, name, session, task=task)


def resume_run(out: Path, session: Session, task: Task | None = None) -> dict[str, Any]:
    """Go on with the run in `out`, by its own configuration; a finished one is read.

    `task`: as in `start_run`; its data has to be what the run was begun on, finished or not.
    """
    if not session.world.first:
        return follow(out, session, task)
    if session.mirror is not None:
        fetched(out, session.mirror)
    folders.refuse_replaced(out, "train")
    directory = RunDirectory(out)
    name, run = directory.read_config()
    if directory.result_file.exists():
        if task is not None:  # what was given in Python may be other data than its numbers are of
            directory.check_data(fingerprint_of(task))
        session.world.told(None)
        return directory.read_result()
    import_ahead(session.device)
    return train_run(run, directory, name, session, resume=True, task=task)


def settled_run(run: Run, session: Session) -> Run:
    """The run with what depends on this machine decided, so that it goes on alike on another one; it is said."""
    config, told = task_kind(run.task).settled(run.task, device_memory(session.device))
    if told:
        session.listen({"event": "note", "text": told})
    return run if config == run.task else replace(run, task=config)


@torch_as_it_was()
def train_run(
    run: Run, directory: RunDirectory, name: str, session: Session, resume: bool = False, task: Task | None = None
) -> dict[str, Any]:
    """Train `run` in `directory` and return its result; the listener hears of progress and of each epoch."""
    with directory.held():
        task = build_task(run.task, session.device) if task is None else task
        if resume:
            refuse_misfits(run, task)
        fingerprint = fingerprint_of(task)
        directory.check_data(fingerprint, note=True)
        note_inputs(directory.path, task)
        session.world.told({"run": to_dict(run), "resume": resume, "fingerprint": fingerprint})
        session.world.all_well()
        training = Training(run, directory, session, task)
        if resume:
            training.resume()
        log.info("%s: %s in %s on %s", name, "goes on" if resume else "begins", directory.path, session.device)
        work = task.work(run) if session.device.type == "cpu" else None
        with nullcontext() if work is None else few_threads(work):
            drive(training)
            result = training.result(name)
        before = directory.read_looks()[-1:] if resume else []  # killed between its look and its result: one look
        if "test" in result and [look["test"] for look in before] != [result["test"]]:
            directory.note_look(name, result["test"])
        write_json(directory.result_file, result)
        if session.mirror is not None:
            session.mirror.push(directory.path)
        log.info("%s: finished after %.1f s of training", name, result["train_seconds"])
    return result


def load_run(
    path: Path | str, device: torch.device | str = "cpu", make: Callable[[Run], nn.Module] | None = None
) -> nn.Module:
    """The trained model of a run directory in eval mode; of a set of pictures the list of their networks.

    `make`: an untrained one, where it is a module of somebody's own.
    """
    directory = RunDirectory(path)
    _, run = directory.read_config()
    parts, far, *_ = read_run(directory.checkpoint_file, run)
    if task_kind(run.task).many and far["done"] < far["groups"]:
        raise KoopsimError(f"{directory.path} is unfinished: koopsim train --resume {directory.path}.")
    models = [m for g in sorted(parts) for m in models_of(run, parts[g], directory.checkpoint_file, make)]
    if not models:
        raise KoopsimError(f"{directory.checkpoint_file} holds no model.")
    return (nn.ModuleList(models) if task_kind(run.task).many else models[0]).to(device).eval()
