"""From a preset's name, or a configuration, to a module.

koopsim.build("copy/sim-single")        koopsim.build(SIMConfig(...))
"""

from torch import nn

from koopsim.config import ModelConfig
from koopsim.kinds import model_kind
from koopsim.nn.saved import known
from koopsim.presets import preset


def build(what: str | ModelConfig) -> nn.Module:
    """The untrained module of a preset ("copy/deq") or of a model's configuration."""
    config = preset(what).model if isinstance(what, str) else what
    return known(model_kind(config).build(config), config)
