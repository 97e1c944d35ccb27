"""Where a run stands, as one file: weights, optimiser, random state, and the epoch so far.

A checkpoint is a single safetensors file with a JSON header: it is replaced whole or not at all, and loading
anyone's checkpoint never executes code.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from koopsim.errors import KoopsimError
from koopsim.runs import write_atomically
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
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_atomically(path, save(plain, metadata={"position": json.dumps(asdict(position))}))


def load_checkpoint(path: Path, trainer: Trainer) -> Position:
    """Bring `trainer` to the state in the file; a broken or foreign file is refused before anything changes."""
    tensors, position = _read(path)
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
    write_atomically(path, save(kept, metadata={"position": json.dumps(asdict(position))}))


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    own = {f"model.{name}": t for name, t in model.state_dict().items()}
    theirs = {name: t for name, t in tensors.items() if name.startswith("model.")}
    wrong = sorted(own.keys() ^ theirs.keys()) or sorted(n for n in own if own[n].shape != theirs[n].shape)
    if wrong:
        raise KoopsimError(
            f"{path} is a checkpoint of another model: {len(wrong)} of {len(own)} tensors do not match, "
            f"the first is {wrong[0].removeprefix('model.')!r}. Load it with the configuration it was trained with."
        )
    model.load_state_dict({name.removeprefix("model."): t for name, t in theirs.items()})


def _read(path: Path) -> tuple[dict[str, Tensor], Position]:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        position = Position(**json.loads(header["position"]))
    except FileNotFoundError:
        raise KoopsimError(f"There is no checkpoint {path}: the run never reached one; start it again.") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise KoopsimError(f"{path} is not a whole koopsim checkpoint ({error}). It cannot be used.") from error
    if not math.isfinite(position.seconds):
        raise KoopsimError(f"{path} has a broken header.")
    return tensors, position
