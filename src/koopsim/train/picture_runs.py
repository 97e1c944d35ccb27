"""A run of image regression: a set of pictures from its first step to its result.

    configuration -> groups of pictures that fit the device -> metrics.jsonl, checkpoint -> result.json

A set too large for the device is cut into groups that train one after the other. The batch is full and nothing is drawn
on the way, so a run that was stopped goes on from its checkpoint to the same numbers.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.config import (
    ImageRegressionConfig,
    Run,
    to_dict,
)
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.nn import count_parameters
from koopsim.runs import RunDirectory, write_json
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.tasks.image_regression import ImageRegression, psnr_of
from koopsim.train.pictures import Member, build_member, bytes_of, population_of
from koopsim.train.population import Population, groups

REPORTED = ("valid", "test")  # the paper trains on a quarter of the pixels and never on the one that chooses


def train_pictures(
    run: Run,
    directory: RunDirectory,
    name: str,
    device: torch.device,
    resume: bool = False,
    capture: bool | None = None,
    listen: Callable[[dict[str, Any]], None] = lambda event: None,
) -> dict[str, Any]:
    """Train a network for each picture of the run's task, in `directory`, and return the result."""
    trainer = _Pictures(run, directory, device, device.type == "cuda" if capture is None else capture)
    directory.check_data(fingerprint_of(trainer.task), note=True)
    if resume:
        if directory.checkpoint_file.exists():
            trainer.load()
        directory.forget_metrics_after(trainer.step)
    trainer.train(listen)
    result = trainer.result(name)
    write_json(directory.result_file, result)
    return result


def load_pictures(run: Run, directory: RunDirectory, device: torch.device | str) -> nn.ModuleList:
    """The trained networks of a run, in the order of the task's pictures."""
    trainer = _Pictures(run, directory, torch.device(device), capture=False)
    trainer.load()
    if len(trainer.done) < len(trainer.groups):
        raise KoopsimError(f"{directory.path} is unfinished: koopsim train --resume {directory.path}.")
    return trainer.models().eval()


class _Pictures:
    """A run of image regression: where it stands, and how it goes on."""

    def __init__(self, run: Run, directory: RunDirectory, device: torch.device, capture: bool):
        task = run.task
        assert isinstance(task, ImageRegressionConfig)
        self.run, self.directory, self.device, self.capture = run, directory, device, capture
        self.task = ImageRegression(task, device)
        self.steps = run.recipe.epochs * task.steps_an_epoch
        pixels = len(self.task.split(run.train_on)[0])
        count = len(self.task.names)
        self.members = [Member(p, run.model, run.recipe.learning_rate, run.seed * 1_000_003 + p) for p in range(count)]
        self.groups = groups(count, bytes_of(run.model, pixels, run.precision), device, task.at_once)
        self.done: list[dict[str, Tensor]] = []  # the state of finished groups
        self.now: Population | None = None
        self.epoch, self.seconds, self.waiting = 0, 0.0, {}

    @property
    def step(self) -> int:
        """Steps taken, over all groups."""
        return len(self.done) * self.steps + self.epoch * self.task.config.steps_an_epoch

    def train(self, listen: Callable[[dict[str, Any]], None]) -> None:
        from koopsim.train.loop import CHECKPOINT_SECONDS, Stopped, _stop_requests

        saved = time.monotonic()
        with _stop_requests() as stop:
            while len(self.done) < len(self.groups):
                population = self._population()
                while self.epoch < self.run.recipe.epochs:
                    self._epoch(population, listen, stop)
                    if stop or time.monotonic() - saved > CHECKPOINT_SECONDS:
                        self.save()
                        saved = time.monotonic()
                    if stop:
                        raise Stopped
                self.done.append({name: t.detach().cpu().clone() for name, t in population.state().items()})
                self.now, self.epoch = None, 0
                del population  # its memory is the next one's
                self.save()

    def _population(self) -> Population:
        members = [self.members[p] for p in self.groups[len(self.done)]]
        run = self.run
        population = population_of(self.task, members, run.recipe, run.precision, run.train_on, self.capture)
        if self.waiting:
            _put(population, self.waiting)
            self.waiting = {}
        population.warm_up()
        self.now = population
        return population

    def _epoch(self, population: Population, listen: Callable[[dict[str, Any]], None], stop: list[int]) -> None:
        """A hundred steps or so, then a line. The host looks in between only to show how far it is."""
        per_epoch = self.task.config.steps_an_epoch
        began, total = time.perf_counter(), len(self.groups) * self.steps
        for first in range(0, per_epoch, 10):
            population.run(min(10, per_epoch - first))
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            listen({"event": "progress", "step": self.step + min(first + 10, per_epoch), "steps": total})
        self.seconds += time.perf_counter() - began
        self.epoch += 1
        group = self.groups[len(self.done)]
        losses = population.losses[:, self.epoch * per_epoch - 1].double().cpu()
        for p, value in zip(group, losses.tolist(), strict=True):
            if not np.isfinite(value):
                raise KoopsimError(
                    f"The loss of {self.task.names[p]} became {value} by step {self.epoch * per_epoch} with learning "
                    f"rate {self.run.recipe.learning_rate:g}. Try a smaller --recipe.learning-rate"
                    + (", or --precision bf16." if self.run.precision == "fp16" else ".")
                )
        line: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": self.seconds}
        line |= {
            "train_loss": float(losses.mean()),
            "train_psnr": float(np.mean([psnr_of(v) for v in losses.tolist()])),
        }
        if self.run.train_on == "train":
            psnrs = self.task.psnrs(population.models(), "valid", group)
            line["valid_psnr"] = float(np.mean(psnrs))
        if len(self.groups) > 1:
            line["group"] = len(self.done) + 1
        self.directory.append_metrics(line)
        listen({"event": "epoch", **line})

    def models(self) -> nn.ModuleList:
        """The networks of the finished groups."""
        found, average = nn.ModuleList(), self.run.recipe.average
        for group, state in zip(self.groups, self.done, strict=False):
            flat = state["averaged"] / (1 - average**self.steps) if average else state["flat"]
            for row, p in enumerate(group):
                model = build_member(self.members[p], self.run.precision)
                nn.utils.vector_to_parameters(flat[row], model.parameters())
                for name, buffer in model.named_buffers():
                    buffer.copy_(state[f"buffer.{name}"][row])
                found.append(model)
        return found.to(self.device)

    def save(self) -> None:
        """Where the run stands, atomically; Adam's moments only of the group in training."""
        tensors = {f"group{g}.{n}": t for g, state in enumerate(self.done) for n, t in state.items() if _lasting(n)}
        if self.now is not None:
            state = self.now.state()
            tensors |= {f"group{len(self.done)}.{n}": t.detach().cpu().clone().contiguous() for n, t in state.items()}
        position = {"done": len(self.done), "epoch": self.epoch, "seconds": self.seconds, "groups": len(self.groups)}
        write_tensors(self.directory.checkpoint_file, tensors, {"pictures": position})

    def load(self) -> None:
        path = self.directory.checkpoint_file
        try:
            tensors, header = read_tensors(path, "koopsim checkpoint")
        except FileNotFoundError:
            raise KoopsimError(f"There is no checkpoint {path}: the run never reached one; start it again.") from None
        total = len(self.members)
        done, count = self._take_position(header.get("pictures"), total)
        self.groups = [range(total * i // count, total * (i + 1) // count) for i in range(count)]  # as it was begun
        states = [
            {k.split(".", 1)[1]: t for k, t in tensors.items() if k.startswith(f"group{g}.")} for g in range(done + 1)
        ]
        for group, state in zip(self.groups, states[:done], strict=False):
            self._check_done(group, state)
        self.done, self.waiting = states[:done], states[done]

    def _take_position(self, said: Any, total: int) -> tuple[int, int]:
        """(groups done, groups in all) of the header, checked; epoch and seconds are taken from it."""
        path, found = self.directory.checkpoint_file, said if isinstance(said, dict) else {}
        most = {"done": total, "epoch": self.run.recipe.epochs, "groups": total}
        wrong = [k for k in most if type(found.get(k)) is not int or not 0 <= found[k] <= most[k]]
        seconds = found.get("seconds")
        if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            wrong.append("seconds")
        if wrong or not found["groups"] or found["done"] > found["groups"]:
            name = (wrong or ["groups"])[0]
            raise KoopsimError(f"{path} is not a whole koopsim checkpoint: its header has no good {name!r}.")
        self.epoch, self.seconds = found["epoch"], float(found["seconds"])
        return found["done"], found["groups"]

    def _check_done(self, group: range, state: dict[str, Tensor]) -> None:
        """The weights of a finished group have the shapes of its networks."""
        model = build_member(self.members[group[0]], self.run.precision)
        flat = nn.utils.parameters_to_vector(model.parameters()).expand(len(group), -1)
        own = {"averaged" if self.run.recipe.average else "flat": flat}
        own |= {f"buffer.{n}": b.expand(len(group), *b.shape) for n, b in model.named_buffers()}
        theirs = {n: t for n, t in state.items() if n in own}
        require_match(own, theirs, self.directory.checkpoint_file, "checkpoint of another run")

    def result(self, name: str) -> dict[str, Any]:
        models = list(self.models())
        total = self.steps * len(self.groups)
        return {
            "name": name,
            "parameters": count_parameters(models[0]),
            **{split: self.task.evaluate(models, split) for split in REPORTED},
            "pictures": list(self.task.names),
            "train_seconds": self.seconds,
            "milliseconds_per_step": 1e3 * self.seconds / total,
            "steps": total,
            "captured": self.capture,
            "device": str(self.device),
            "metrics": self.directory.read_metrics(),
            "run": to_dict(self.run),
            "environment": self.directory.read_environment(),
        }


def _lasting(name: str) -> bool:
    return name in ("flat", "averaged") or name.startswith("buffer.")


@torch.no_grad()
def _put(population: Population, state: dict[str, Tensor]) -> None:
    own = population.state()
    require_match(own, state, "The checkpoint", "checkpoint of another run")
    for key, tensor in own.items():
        tensor.copy_(state[key])
