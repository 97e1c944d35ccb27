"""The registries are the test matrix: every model, task, lift and data set that is known is in some preset, and keeps
the contract there."""

import pytest
import torch
from contract import keeps_the_contract, small

from koopsim import datasets
from koopsim.config import ModelConfig
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.presets import PRESETS, run_of
from koopsim.registry import DATASETS, LIFTS, MODELS, TASKS


def matrix() -> list[str]:
    """Of presets that are the same kind of model on the same task once they are small, the one of fewest parameters."""
    found: dict[tuple, tuple[int, str]] = {}
    for name in PRESETS:
        run = small(run_of(name, "smoke"))
        key, own = (model_kind(run.model).slug(run.model), run.task), (size_of(run.model), name)
        found[key] = min(found.get(key, own), own)
    return [name for _, name in found.values()]


def size_of(model: ModelConfig) -> int:
    with torch.device("meta"):
        return count_parameters(build(model))


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", matrix())
def test_contract(name):
    keeps_the_contract(small(run_of(name, "smoke")))


def test_all_that_is_registered_is_in_the_matrix():
    runs = [preset.run for preset in PRESETS.values()]
    assert {k for k in MODELS if MODELS[k].from_files} == {type(run.model).__name__ for run in runs}
    assert {k for k in TASKS if TASKS[k].from_files} == {type(run.task).__name__ for run in runs}


@pytest.mark.parametrize("name", LIFTS)
def test_a_lift_ends_in_the_features_that_were_asked_for(name):
    kind = LIFTS[name]
    config = kind.config()
    dim = config.features(6)
    x, axes = kind.example(config, 3, 20, torch.Generator().manual_seed(0))
    lifted = kind.build(config, dim).eval()(x)
    assert (len(x), axes[0]) == (3, "batch")
    assert lifted.shape[-1] == dim
    assert lifted.isfinite().all()
    assert torch.equal(x, kind.example(config, 3, 20, torch.Generator().manual_seed(0))[0])


@pytest.mark.parametrize("name", [entry.name for entry in datasets.inventory() if entry.present])
def test_a_data_set_is_as_large_as_it_says(name):
    kind, images = DATASETS[name], datasets.load_images(name)
    assert images.shape == kind.shape
    assert {"train": len(images.train[1]), "test": len(images.test[1])} == kind.counts
    assert kind.label
    assert kind.title
