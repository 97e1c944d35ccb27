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
        with torch.device("meta"):  # counts what would be allocated, and allocates nothing
            sizes = [*(built := model_kind(config).build(config)).parameters(), *built.buffers()]
        require_memory(COPIES * sum(t.numel() * t.element_size() for t in sizes), "This model asks for")
    return known(model_kind(config).build(config), config)
