"""Trained models of the paper: each under a megabyte, with a card that says where it is from.

    koopsim.load("cifar10/sim-single")          koopsim eval zoo:mnist/sim-two

A card (cards.json) holds the configuration, the recorded figure, the commit and machine it was measured on, the licence
of the data, and the weights' checksum, which is compared before anything is loaded. Weights are safetensors: loading
them never executes code. `make zoo` writes both from results/. The wheel has the models of the first examples inside;
the others are the package koopsim-zoo (`pip install 'koopsim[zoo]'`), files without code.
"""

import functools
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from koopsim.config import ModelConfig, Run, from_dict
from koopsim.datasets.inputs import FILE as INPUTS
from koopsim.datasets.inputs import Inputs, inputs_from_dict, read_inputs
from koopsim.engine.checkpoint import models_of, read_run
from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.learning import load_into
from koopsim.nn.saved import known, load_saved, read_saved, require_fit
from koopsim.runs import RunDirectory
from koopsim.training import load_run

FOLDER = Path(__file__).parent
PREFIX = "zoo:"


@functools.cache
def cards() -> dict[str, dict[str, Any]]:
    """Every model's card, by name."""
    return json.loads((FOLDER / "cards.json").read_text(encoding="utf-8"))


def card(name: str) -> dict[str, Any]:
    """What is known of a model: configuration, recorded figures, machine, data and its licence."""
    name = name.removeprefix(PREFIX)
    if name not in cards():
        raise KoopsimError(f"The zoo has no model {name!r}." + did_you_mean(name, cards()))
    return cards()[name]


def run_of_card(name: str) -> Run:
    """The configuration a model was trained with."""
    return from_dict(Run, card(name)["run"], f"card of {name}")


def load(what: Path | str, device: torch.device | str = "cpu", model: nn.Module | None = None) -> nn.Module:
    """A trained model in eval mode: of the zoo by its name ("cifar10/sim-single"), of a run directory, or of a file
    that `model.save` wrote. Of a set of pictures it is the list of their networks.

    model   of a run of your own module: one like it, which is copied
    """
    if not isinstance(what, (str, Path)):
        raise KoopsimError(f"This is {type(what).__name__}; expected a run directory, a file, or a name of the zoo.")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise KoopsimError(f"There is no device {device!r}; expected one such as cpu, cuda or cuda:1.") from None
    device = pick_device(str(device))
    if model is not None:
        return load_into(what, model, device)
    if Path(what).is_file():
        return load_saved(what, device)
    name = str(what).removeprefix(PREFIX)
    if not Path(what).is_dir() and name not in cards() and not str(what).startswith(PREFIX):
        raise KoopsimError(f"There is no run directory {what}, and no model of the zoo." + did_you_mean(name, cards()))
    if Path(what).is_dir():
        model = load_run(what)
        if isinstance(model, nn.ModuleList):
            return model.to(device)
        config, takes = _about(Path(what))
        require_fit(model, takes, Path(what) / INPUTS)
        return known(model, config, takes).to(device)
    run = run_of_card(name)
    return known(_of_the_zoo(name, device), run.model, inputs_of_card(name))


def config_of(what: Path | str) -> tuple[str, ModelConfig]:
    """(name, configuration) of what `load` would load."""
    if Path(what).is_file():
        saved = read_saved(what)
        return saved.name, saved.config
    if str(what).startswith(PREFIX):
        return str(what).removeprefix(PREFIX), run_of_card(str(what)).model
    name, run = RunDirectory(what).read_config()
    return name, run.model


def _about(folder: Path) -> tuple[ModelConfig, Inputs | None]:
    """(configuration, what it takes) of a run directory. A run that did not write it down yet learnt from data which
    a model of the zoo may have learnt from too.
    """
    _, run = RunDirectory(folder).read_config()
    inputs = read_inputs(folder)
    data = getattr(run.task, "dataset", None)
    same = [name for name in cards() if getattr(run_of_card(name).task, "dataset", object()) == data]
    return run.model, inputs or (inputs_of_card(same[0]) if same else None)


def inputs_of_card(name: str) -> Inputs | None:
    """How pictures become what the model takes; None of one that takes no pictures."""
    said = card(name).get("takes")
    return said and inputs_from_dict(said, f"card of {name}")


def weights_of(name: str) -> Path:
    """The file of a model's weights, compared with its checksum: in this package, or in koopsim-zoo."""
    file = FOLDER / card(name)["file"]
    extra = find_spec("koopsim_zoo")
    if not file.exists() and extra is not None and extra.submodule_search_locations:
        file = Path(extra.submodule_search_locations[0]) / card(name)["file"]
    if not file.exists():
        raise KoopsimError(f"The weights of {name} are in another package: pip install 'koopsim[zoo]'.")
    if hashlib.sha256(file.read_bytes()).hexdigest() != card(name)["sha256"]:
        raise KoopsimError(f"The weights of {name} in {file} are damaged; install koopsim and koopsim-zoo again.")
    return file


def _of_the_zoo(name: str, device: torch.device | str) -> nn.Module:
    """The model of a card, with its trained weights."""
    file, run = weights_of(name), run_of_card(name)
    parts, *_ = read_run(file, run)
    return models_of(run, parts[0], file)[0].to(device).eval()
