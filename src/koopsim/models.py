"""From a preset's name, or a configuration, to a module.

koopsim.build("copy/sim-single")        koopsim.build(SIMConfig(...))
"""

import torch
from torch import nn

from koopsim.config import ModelConfig, largest_number
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.kinds import model_kind
from koopsim.nn.saved import known
from koopsim.presets import preset

LARGE = 4096  # a model with no larger number in its configuration fits anywhere
COPIES = 4  # weights, gradient, and Adam's two moments


def build(what: str | ModelConfig) -> nn.Module:
    """The untrained module of a preset ("copy/deq") or of a model's configuration."""
    config = preset(what).model if isinstance(what, str) else what
    if not isinstance(config, ModelConfig):
        raise KoopsimError(f"build was given {config!r}; expected a preset's name, or a model's configuration.")
    if largest_number(config) > LARGE:
        require_memory(COPIES * _bytes(config), "This model asks for")
    return known(model_kind(config).build(config), config)


def _bytes(config: ModelConfig) -> int:
    """What its parameters and buffers would take, without taking it."""
    try:
        with torch.device("meta"):
            built = model_kind(config).build(config)
    except RuntimeError as error:  # more than 64 bits can count
        raise KoopsimError(f"This model is too large to be built: {str(error).splitlines()[0]}.") from error
    return sum(t.numel() * t.element_size() for t in (*built.parameters(), *built.buffers()))
