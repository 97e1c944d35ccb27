"""A model as one file, with all that is needed to use it, and the base class whose models write it.

    file.safetensors     weights and buffers;  header "koopsim.model": configuration, name, what it takes (inputs.py)

    model.save("flowers.safetensors")        koopsim.load("flowers.safetensors").predict("a.png")

A trainer keeps all parameters of a model as views of one vector; here each is written by itself, so it does not matter
who trained the model. Loading never executes code: the file names a kind of model that is registered, and nothing else.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.config import ModelConfig, from_dict, to_dict
from koopsim.datasets.inputs import Inputs, inputs_from_dict
from koopsim.datasets.table_inputs import TableInputs
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.kinds import model_kind
from koopsim.predicting import Pictures, Predictions, predict
from koopsim.table_answers import TableAnswers, answer_table

HEADER = "koopsim.model"


class Model(nn.Module):
    """Base of this house's models: one that was built from a configuration can be saved, a classifier asked.

    config   what it was built from; None of one put together by hand
    takes    how pictures become its inputs, and its classes; None where no run has said so
    """

    config: ModelConfig | None = None
    takes: Inputs | None = None

    def save(self, path: Path | str, name: str = "") -> Path:
        """Write the model to `path`, whole or not at all; `koopsim.load(path)` reads it."""
        return save_model(path, self, self.config, self.takes, name)

    def predict(self, what: Pictures) -> Predictions | TableAnswers:
        """Of a classifier of pictures: files, Pillow images, bytes (n, channels, height, width). Of tables: a file."""
        if isinstance(self.takes, TableInputs):
            return answer_table(self, self.takes, what)  # pyright: ignore[reportArgumentType]
        return predict(self, what)


def save_model(
    path: Path | str, model: nn.Module, config: ModelConfig | None, takes: Inputs | None = None, name: str = ""
) -> Path:
    """Write a model and what it is; anyone's module will do whose configuration is registered."""
    path = Path(path)
    if config is None:
        raise KoopsimError(
            "This model was put together by hand, so no file can say how to build it again: make it by "
            "koopsim.build(config), or set model.config to a configuration that builds the same modules."
        )
    if path.suffix != ".safetensors":
        raise KoopsimError(f"The file is {path.name}; a saved model ends in .safetensors.")
    _require_same(model_kind(config).build(config), model, config)
    about = {"name": name, "model": to_dict(config), "takes": takes and takes.as_dict()}
    try:
        write_tensors(path, model.state_dict(), {HEADER: about})
    except OSError as error:
        raise KoopsimError(f"Cannot write {path}: {error.strerror}.") from error
    return path


@dataclass(frozen=True)
class Saved:
    """What a file holds."""

    name: str  # that was given to `save`, or else the file's
    config: ModelConfig
    takes: Inputs | None
    tensors: dict[str, Tensor]


def read_saved(path: Path | str) -> Saved:
    """What `save` wrote, checked."""
    path = Path(path)
    try:
        tensors, header = read_tensors(path, "model of koopsim")
    except FileNotFoundError:
        raise KoopsimError(f"There is no file {path}.") from None
    about = header.get(HEADER)
    if not isinstance(about, dict) or "model" not in about:
        raise KoopsimError(f"{path} holds no model of koopsim; model.save(path) writes one.")
    config = from_dict(ModelConfig, about["model"], f"{path}: model")
    said = about.get("takes")
    takes = None if said is None else inputs_from_dict(said, f"{path}: takes")
    return Saved(str(about.get("name") or path.stem), config, takes, tensors)


def load_saved(path: Path | str, device: torch.device | str = "cpu") -> nn.Module:
    """The model in a file that `save` wrote, in eval mode."""
    saved = read_saved(path)
    model = model_kind(saved.config).build(saved.config)
    require_match(model.state_dict(), saved.tensors, path, "model of another configuration than it says")
    model.to(next((t.dtype for t in saved.tensors.values() if t.is_floating_point()), torch.float32))
    model.load_state_dict(saved.tensors)
    require_fit(model.eval(), saved.takes, f"{path}: takes")
    return known(model, saved.config, saved.takes).to(device)


def known(model: nn.Module, config: ModelConfig, takes: Inputs | None = None) -> nn.Module:
    """The model with what it was built from and what it takes written on it."""
    for name, value in (("config", config), ("takes", takes)):
        setattr(model, name, value)
    return model


@torch.no_grad()
def require_fit(model: nn.Module, takes: Inputs | None, where: Path | str) -> None:
    """Refuse what was written of a model's inputs where it cannot be given them, or has too few answers.

    A copy of the model is shown a sample of zeros: whatever kind it is, and whatever it counts.
    """
    if takes is None:
        return
    given, answered = takes.FIELDS
    x, first = torch.from_numpy(takes.sample()), next(model.parameters())
    try:
        found = copy.deepcopy(model)(x.to(first.dtype) if x.is_floating_point() else x)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        shape = " x ".join(map(str, x.shape[1:]))
        raise KoopsimError(
            f"{where}: {given!r} makes inputs of {shape}, which the network does not take ({why})."
        ) from error
    if found.shape[-1] < takes.outputs:
        raise KoopsimError(
            f"{where}: {answered!r} needs {takes.outputs} outputs, and the network has {found.shape[-1]}."
        )


def _require_same(built: nn.Module, model: nn.Module, config: Any) -> None:
    """A configuration that builds other modules than these would be found out only by whoever loads the file."""
    own, theirs = ({k: tuple(t.shape) for k, t in m.state_dict().items()} for m in (built, model))
    if own != theirs:
        wrong = sorted(k for k in own.keys() | theirs.keys() if own.get(k) != theirs.get(k))
        raise KoopsimError(
            f"The model is not what its {type(config).__name__} builds: the first tensor that differs is {wrong[0]!r}."
        )
