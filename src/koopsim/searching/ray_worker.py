"""What a Ray worker does: one trial, an epoch at a time, with a checkpoint after each.

It gets the search as text and draws its trial itself, so that it may run on any machine that has koopsim and the data.
A worker is reused for trial after trial: each trial seeds itself, and the data stay.
"""

from __future__ import annotations

import errno
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from koopsim.config import Run, from_dict, to_dict
from koopsim.engine.stacked import Stacked
from koopsim.engine.subnormal import subnormals_are_zero
from koopsim.registry import load_plugin, named_plugins
from koopsim.runs import named
from koopsim.searching.directory import Search
from koopsim.searching.space import is_median, trial_run
from koopsim.searching.space_text import overridden, space_to_dict
from koopsim.searching.trial import Trial, checked, length, settled, why
from koopsim.spaces import BANDWIDTH, SearchSpace
from koopsim.tasks import build_task

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # the system's words for a full disk


def payload_of(search: Search, over: list[int]) -> str:
    """What a worker on another machine needs of the search, as text; and which trials have nothing left to do."""
    known = {"run": to_dict(search.base), "space": space_to_dict(search.space), "seed": search.seed}
    known |= {"name": search.name, "engine": search.engine, "over": over}
    return json.dumps(known | {"plugins": named_plugins()})


@functools.lru_cache(maxsize=1)  # a worker is reused: its data are already there
def prepared(payload: str, device: str) -> tuple[Search, Any]:
    """The search and its task, on this machine."""
    data = json.loads(payload)
    for module, folder in data["plugins"].items():  # named by the user who began the search
        load_plugin(module, folder)
    base, given = from_dict(Run, data["run"]), data["space"]
    space = overridden(SearchSpace({}, 1, given["max_t"], given["grace"]), base, given, "the search")
    search = Search(data["name"], base, space, data["seed"], engine=data["engine"])
    return search, build_task(base.task, device)


def train_trial(config: dict[str, Any], payload: str) -> None:
    """One trial, from its checkpoint if it has one, reporting every epoch.

    A loss that is not a number, and any error of the trial's own, is reported as its end: only a process or a
    machine that died makes Ray try again. A full disk is nobody's own: it is reported as that, and ends the search.
    """
    if config["index"] in json.loads(payload)["over"]:
        return
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with subnormals_are_zero(device):  # as in every training (engine/drive.py)
            _train(config["index"], payload, device)
    except _Ended as ended:
        from ray import tune  # pyright: ignore[reportMissingImports]

        tune.report({"ended": ended.status, "reason": str(ended)})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        from ray import tune  # pyright: ignore[reportMissingImports]

        tune.report({"no_room": error.errno, "where": error.filename})


class _Ended(Exception):
    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


def _train(index: int, payload: str, device: torch.device) -> None:
    try:
        search, task = prepared(payload, str(device))
        values = search.space.sample(search.seed, index)
        trial = Trial(index, values, trial_run(search.base, values, index))
        run = settled(trial, task, device)
        epochs = length(run, search.space.max_t)
        slots = Stacked([run], task, device, epochs)
        slots.part.adaptive = False  # as where trials share a device
        slots.warm_up()
        age = _load(slots)
    except Exception as error:
        raise _Ended(*why(error)) from error
    for t in range(age, epochs):
        try:
            slots.begin_epoch()
            slots.advance(0, slots.epoch_steps)
            slots.finish_epoch()
            figures = slots.figures(0)
            checked(figures, search.space.metric)
        except Exception as error:
            status, reason = why(error)
            raise _Ended(status, f"epoch {t + 1}: {reason}") from error
        report: dict[str, Any] = {"t": t + 1, **figures}
        if is_median(values.get(BANDWIDTH)):
            report["bandwidth"] = run.model.fourier.bandwidth  # pyright: ignore
        _report(report, slots, t + 1)


def _report(report: dict[str, Any], slots: Stacked, t: int) -> None:
    from ray import tune  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in slots.state().items()}
        file = Path(folder) / "trial.safetensors"
        with named(file):
            file.write_bytes(save(tensors, metadata={"t": str(t)}))
        tune.report({**report, "reported": list(report)}, checkpoint=tune.Checkpoint.from_directory(folder))


def _load(slots: Stacked) -> int:
    """The epochs done according to the checkpoint, which the slots are brought to; 0 without one."""
    from ray import tune  # pyright: ignore[reportMissingImports]

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder, safe_open(Path(folder) / "trial.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        t = int(file.metadata()["t"])
    slots.load(tensors, [t])
    return t
