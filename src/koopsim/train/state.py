"""Where a run stands, as one file: weights, optimiser, random state, and the epoch so far.

A checkpoint is a single safetensors file with a JSON header: it is replaced whole or not at all, and loading
anyone's checkpoint never executes code.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.train.step import Trainer


@dataclass
class Position:
    """How far a run has come: whole epochs, steps into the next one, and training seconds spent."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


def save_checkpoint(path: Path, trainer: Trainer, position: Position) -> None:
    """Write the state of a run, atomically."""
    tensors = {f"model.{name}": t for name, t in trainer.model.state_dict().items()}
    tensors |= {"adam.mean": trainer.adam.mean, "adam.square": trainer.adam.square, "epoch.losses": trainer.losses}
    tensors |= {f"averaged.{name}": t for name, t in trainer.averaged.items()}
    if trainer.averaged:
        tensors |= {f"result.{name}": t for name, t in trainer.result().state_dict().items()}
    tensors |= {f"epoch.diagnostics.{name}": t for name, t in trainer.diagnostics.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if trainer.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(trainer.device)
    write_tensors(path, tensors, {"position": asdict(position)})


def load_checkpoint(path: Path, trainer: Trainer) -> Position:
    """Bring `trainer` to the state in the file; a broken or foreign file is refused before anything changes."""
    tensors, position = _read(path)
    if position.step >= max(1, trainer.steps_per_epoch) or position.epoch * trainer.steps_per_epoch > trainer.steps:
        raise KoopsimError(f"{path} is at epoch {position.epoch}, step {position.step}, which this run never reaches.")
    own = {"adam.mean": trainer.adam.mean, "adam.square": trainer.adam.square, "epoch.losses": trainer.losses}
    own |= {f"averaged.{name}": t for name, t in trainer.averaged.items()}
    own["random.cpu"] = torch.get_rng_state()
    require_match(own, {n: t for n, t in tensors.items() if n in own}, path, "checkpoint of another run")
    load_weights(trainer.model, tensors, path)
    with torch.no_grad():
        trainer.adam.mean.copy_(tensors["adam.mean"])
        trainer.adam.square.copy_(tensors["adam.square"])
        for name, average in trainer.averaged.items():
            average.copy_(tensors[f"averaged.{name}"])
        trainer.start_epoch(position.epoch)
        trainer.losses.copy_(tensors["epoch.losses"])
    for name, value in tensors.items():
        if name.startswith("epoch.diagnostics."):
            trainer.diagnostics[name.removeprefix("epoch.diagnostics.")] = value.to(trainer.device)
    run_step = position.epoch * trainer.steps_per_epoch + position.step
    trainer.counters.copy_(torch.tensor([run_step, position.step]))
    torch.set_rng_state(tensors["random.cpu"])
    if trainer.device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], trainer.device)
    return position


def load_model(path: Path, model: nn.Module) -> None:
    """The weights of a checkpoint into a model: their average, where one was kept."""
    tensors, _ = _read(path)
    averaged = {f"model.{n.removeprefix('result.')}": t for n, t in tensors.items() if n.startswith("result.")}
    tensors |= averaged
    load_weights(model, tensors, path)


def keep_model_only(path: Path) -> None:
    """Drop from a finished run's checkpoint all that only a resumed one would need: a third of it is left."""
    tensors, position = _read(path)
    results = {n.removeprefix("result."): t for n, t in tensors.items() if n.startswith("result.")}
    models = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    kept = {f"model.{name}": t for name, t in (results or models).items()}
    write_tensors(path, kept, {"position": asdict(position)})


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    theirs = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    require_match(model.state_dict(), theirs, path, "checkpoint of another model")
    model.load_state_dict(theirs)


def _read(path: Path) -> tuple[dict[str, Tensor], Position]:
    try:
        tensors, header = read_tensors(path, "koopsim checkpoint")
    except FileNotFoundError:
        raise KoopsimError(f"There is no checkpoint {path}: the run never reached one; start it again.") from None
    return tensors, position_of(header.get("position"), path)


def position_of(said: Any, path: Path) -> Position:
    """The header's position: two whole numbers and a time, none of them negative."""
    found = said if isinstance(said, dict) else {}
    wrong = [k for k in ("epoch", "step") if type(found.get(k)) is not int or not 0 <= found[k] < 2**53]
    seconds = found.get("seconds")
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        wrong.append("seconds")
    if wrong or found.keys() != {"epoch", "step", "seconds"}:
        raise KoopsimError(
            f"{path} is not a whole koopsim checkpoint: its header's position has no good "
            f"{(wrong or ['entries'])[0]!r}. It cannot be used."
        )
    return Position(found["epoch"], found["step"], float(found["seconds"]))
