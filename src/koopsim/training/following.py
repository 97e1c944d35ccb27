"""What the other processes of a run do: the same steps by the first one's configuration, and nothing written.

    rank 0: data checked, folder made -> told: run, resume?, fingerprint -> all_well -> the same steps everywhere

A process that does not see the same run, or has other data, says so before the first step, and none begins.
"""

from __future__ import annotations

import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from koopsim.config import Run, from_dict, to_dict
from koopsim.engine.as_it_was import torch_as_it_was
from koopsim.engine.drive import drive
from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory
from koopsim.tasks import Task, build_task
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.training.course import Training
from koopsim.training.session import Session


def follow(out: Path, session: Session, task: Task | None) -> dict[str, Any]:
    """What the other processes of a run do: the same steps by the first one's configuration, and nothing written."""
    world = session.world
    said = world.told(None)  # once the first one's folder is there
    if said is None:
        return {}
    run = from_dict(Run, said["run"])
    if session.mirror is not None:  # its own copy: `out` may be the first one's, or older
        with tempfile.TemporaryDirectory(prefix="koopsim-") as folder:
            session.mirror.fetch(Path(folder))
            return _steps(run, RunDirectory(folder), replace(session, mirror=None), task, said)
    return _steps(run, RunDirectory(out), session, task, said)


@torch_as_it_was()
def _steps(
    run: Run, directory: RunDirectory, session: Session, task: Task | None, said: dict[str, Any]
) -> dict[str, Any]:
    world, resume, fingerprint = session.world, said["resume"], said["fingerprint"]
    own, problem = f"Rank {world.rank} on {platform.node()}", ""
    try:
        if not directory.config_file.exists() or to_dict(directory.read_config()[1]) != said["run"]:
            where = directory.path.resolve()
            problem = f"{own} does not see the run of rank 0 in {where}; give an --out on a path that all machines "
            problem += "share, or a --storage URL."
        else:
            task = build_task(run.task, session.device) if task is None else task
            other = fingerprint_of(task) != fingerprint
            problem = f"{own} has other data than rank 0; give both the same." if other else ""
    except KoopsimError as error:
        problem = f"{own}: {error}"
    world.all_well(problem)
    assert task is not None
    training = Training(run, directory, session, task)
    if resume:
        training.resume()
    drive(training)
    return {}
