"""The example input of every kind of model: of the sizes asked for, by its generator alone, and taken by the model."""

import pytest
import torch

from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.presets import PRESETS

ONE_EACH = {
    (name.split("/")[0], type(p.run.model), type(getattr(p.run.model, "lift", None))): name
    for name, p in PRESETS.items()
}.values()


def example(config, batch, length, seed=0):
    return model_kind(config).example(config, batch, length, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ONE_EACH)
def test_an_example_is_of_the_sizes_asked_for_and_the_model_takes_it(name):
    config = PRESETS[name].run.model
    if model_kind(config).has_solver:
        with pytest.raises(KoopsimError, match="does not export: its solver runs until"):
            example(config, 3, 12)
        return
    x, axes = example(config, 3, 12)
    longer, _ = example(config, 5, 15)
    named = {axes[i]: (x.shape[i], longer.shape[i]) for i in axes}
    assert named["batch"] == (3, 5)
    assert named.get("length", (12, 15)) == (12, 15)
    for axis in range(x.ndim):
        assert axis in axes or x.shape[axis] == longer.shape[axis]
    assert torch.equal(x, example(config, 3, 12)[0])
    assert not torch.equal(x, example(config, 3, 12, 1)[0])
    if name.split("/")[0] in ("copy", "table", "tag", "classify", "forecast", "digits"):
        with torch.no_grad():
            assert len(build(config).eval()(x)) == 3
