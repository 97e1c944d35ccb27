"""A model: one hidden layer.            y = W_2 tanh(W_1 x + b_1) + b_2"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from koopsim.config import ClassificationConfig, ModelConfig, Recipe, Run
from koopsim.kinds import ModelKind, Preset, Shape, register
from koopsim.nn.saved import Model
from koopsim.words import Look


@dataclass(frozen=True)
class TanhConfig(ModelConfig):
    """One hidden layer of `width`, on whatever it is given laid out in a row."""

    inputs: int = 64
    width: int = 48
    outputs: int = 10


class TanhNetwork(Model):
    """(n, ...) -> (n, outputs)."""

    def __init__(self, inputs: int, width: int, outputs: int):
        super().__init__()
        self.hidden, self.output = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(x.flatten(1))))


@register
class TanhKind(ModelKind):
    config = TanhConfig
    stackable = True  # plain tensor code, so torch.vmap knows it: a search trains all its trials as one
    can_take_over = True

    def build(self, config: TanhConfig) -> TanhNetwork:
        return TanhNetwork(config.inputs, config.width, config.outputs)

    def presets(self) -> dict[str, Preset]:
        recipe = Recipe(batch_size=32, epochs=12, learning_rate=5e-3, schedule="onecycle")
        return {"digits/tanh": Preset(Run(TanhConfig(), ClassificationConfig("digits"), recipe))}

    def look(self, config: TanhConfig, best: bool = False) -> Look:
        return Look("tanh network", 3, "#a16207")

    def for_images(self, config: TanhConfig, shape: Shape, outputs: int) -> TanhConfig:
        return replace(config, inputs=shape[0] * shape[1] * shape[2], outputs=outputs)

    def example(self, config: TanhConfig, batch: int, length: int, random: torch.Generator):
        return torch.randn(batch, config.inputs, generator=random), {0: "batch"}
