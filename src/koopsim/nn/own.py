"""A module of somebody's own code, as files know it: by its class and its tensors, never by how it is built."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import nn

from koopsim.config import ModelConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import ModelKind, register


@dataclass(frozen=True)
class OwnModelConfig(ModelConfig):
    """A module of somebody's own code: its class, and a digest of its tensors' names, kinds and shapes."""

    module: str = ""
    digest: str = ""


def own_config(model: nn.Module) -> ModelConfig:
    """What files say of a module: this house's own configuration, or what it can be told from."""
    known = getattr(model, "config", None)
    if isinstance(known, ModelConfig):
        return known
    text = repr([(name, str(t.dtype), tuple(t.shape)) for name, t in model.state_dict().items()])
    return OwnModelConfig(type(model).__name__, hashlib.sha256(text.encode()).hexdigest()[:16])


@register
class OwnModelKind(ModelKind):
    """A module of somebody's own: known by its class, built by its own code alone."""

    config = OwnModelConfig
    from_files = False

    def build(self, config: OwnModelConfig) -> nn.Module:
        raise KoopsimError(
            f"This run's model is {config.module}, a module of your own code, which no file can build: give it to "
            "koopsim.train(model, data, folder) to go on, or to koopsim.load(folder, model=model)."
        )

    def slug(self, config: OwnModelConfig) -> str:
        return config.module or "module"

    def title(self, config: OwnModelConfig) -> str:
        return config.module or "module"
