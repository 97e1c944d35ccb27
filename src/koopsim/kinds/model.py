"""What is asked of a kind of model, and of a kind of lift mu; each default suits a plain feedforward model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from koopsim.config import LiftConfig, ModelConfig, Run
from koopsim.errors import KoopsimError
from koopsim.kinds.given import SequenceShape, Shape
from koopsim.kinds.preset import Preset
from koopsim.registry import LIFTS, MODELS
from koopsim.spaces import Parameter
from koopsim.words import Look

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class ModelKind:
    """A kind of model."""

    config: ClassVar[type[ModelConfig]]
    stackable: ClassVar[bool] = False  # knows torch.vmap: the trials of a search can train as one batched model
    has_solver: ClassVar[bool] = False  # its forward iterates until it has converged: what a SIM is measured against
    has_limit: ClassVar[bool] = False  # it has a limit operator U V, whose spectrum can be looked at
    can_take_over: ClassVar[bool] = False  # nothing but weights and buffers tells a new one from a trained one
    from_files: ClassVar[bool] = True  # a file can build it; False of modules in somebody's own code
    order: ClassVar[int] = 100  # of models in tables; the paper's come first

    def build(self, config: Any) -> nn.Module:
        """The untrained module."""
        raise NotImplementedError

    def presets(self) -> dict[str, Preset]:
        """Runs by name, besides those that its tasks have for it."""
        return {}

    # ------------------------------------------------ how it is called

    def slug(self, config: Any) -> str:
        """Its word in a preset's name, after the task's: "sim-two"."""
        return self.config.__name__.removesuffix("Config").lower()

    def title(self, config: Any) -> str:
        """Its name in tables and charts."""
        return self.config.__name__.removesuffix("Config")

    def look(self, config: Any, best: bool = False) -> Look:
        """How it is shown; `best`: trained by a recipe of our own."""
        return Look(self.title(config) + (" best" if best else ""))

    def limit_dim(self, config: Any) -> int | None:
        """N, the rows of its limit operator, where it has one."""
        return None

    # ------------------------------------------------ how it fits what it is given

    def for_images(self, config: Any, shape: Shape, outputs: int) -> ModelConfig:
        """The same model for images of this shape, with so many classes: by default itself, where it is one already."""
        if self._takes(config, shape, outputs):
            return config
        raise KoopsimError(
            f"{self.title(config)} does not look at images of {' x '.join(map(str, shape))} in {outputs} classes; a "
            "kind that says for_images(config, shape, outputs) fits its models to them (docs/extending.md)."
        )

    def _takes(self, config: Any, shape: Shape, outputs: int) -> bool:
        """Whether the model as it is answers two such images with so many numbers each."""
        import torch

        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return tuple(self.build(config).eval()(torch.zeros(2, *shape)).shape) == (2, outputs)
        except (KoopsimError, RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            return False  # what it says of images that it does not take is for whoever gives it some

    def for_rows(self, config: Any, inputs: int, outputs: int) -> ModelConfig:
        """The same model for rows of so many numbers, with so many answers."""
        raise KoopsimError(f"{self.title(config)} does not take rows of a table.")

    def for_sequences(self, config: Any, shape: SequenceShape, outputs: int) -> ModelConfig:
        """The same model for such sequences, with so many outputs a step."""
        raise KoopsimError(f"{self.title(config)} does not read sequences.")

    def coarser(self, config: Any, factor: float) -> ModelConfig:
        """The same model where its inputs lie `factor` times closer together in what they mean: small pictures."""
        return config

    def smoke(self, run: Run) -> Run:
        """What the model changes of a run that is to end in seconds, after the task has made it small."""
        return run

    def example(self, config: Any, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, dict[int, str]]:
        """An input to trace the model with, of so many samples (sequences: so long), and its free axes by name."""
        raise KoopsimError(f"{self.title(config)} has no example input: its kind says nothing of what it takes.")

    # ------------------------------------------------ what a search varies

    def parameters(self, config: Any) -> dict[str, Parameter]:
        """What a search varies besides the recipe, by path."""
        return {}

    def sizes(self, config: Any, values: Parameter) -> dict[str, Parameter]:
        """Those widths that the paper searches over in image regression, each drawn from `values`."""
        return {}

    def common(self, config: Any) -> ModelConfig:
        """The model with all that may differ between the members of a stack (but weights) set to one value."""
        return config

    def with_bandwidth(self, config: Any, bandwidth: float) -> ModelConfig:
        """The model with this bandwidth of its Fourier features."""
        raise KoopsimError("This model has no bandwidth: it has no Fourier features. Take a two-tier preset.")

    # ------------------------------------------------ image regression

    def bytes_a_point(self, config: Any, short: int, full: int) -> int:
        """Memory that training takes for each point; `short` and `full`: bytes of a product's and of other numbers."""
        raise KoopsimError(f"{self.title(config)} does not take points; image regression needs a SIM.")

    def learns_phases(self, config: Any) -> bool:
        """Whether what it learns ends in a sine: three digits of a phase of hundreds of radians are not enough."""
        return False


class LiftKind:
    """A kind of lift mu."""

    config: ClassVar[type[LiftConfig]]
    widths: ClassVar[tuple[str, ...]] = ()  # entries of the configuration that a search over sizes varies

    def build(self, config: Any, dim: int) -> nn.Module:
        """The untrained module, ending in `dim` features."""
        raise NotImplementedError

    def example(self, config: Any, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, dict[int, str]]:
        """An input of the lift, as `ModelKind.example`."""
        raise KoopsimError(f"{self.config.__name__} has no example input: its kind says nothing of what it takes.")

    def for_sequences(self, config: Any, shape: SequenceShape) -> LiftConfig:
        """The same lift for such sequences."""
        raise KoopsimError(f"{self.config.__name__} does not read sequences.")

    def for_images(self, config: Any, shape: Shape) -> LiftConfig:
        """The same lift for images of this shape."""
        raise KoopsimError(f"{self.config.__name__} does not look at images.")

    def for_rows(self, config: Any, inputs: int) -> LiftConfig:
        """The same lift for rows of so many numbers."""
        raise KoopsimError(f"{self.config.__name__} does not take rows of a table; an MLP does.")

    def bytes_a_point(self, config: Any, features: int, full: int) -> int:
        """As `ModelKind.bytes_a_point`: the lift's share, with so many Fourier features behind it."""
        raise KoopsimError(f"{self.config.__name__} does not lift points; image regression needs an MLP.")


def model_kind(config: ModelConfig) -> ModelKind:
    """What is known of a model's configuration."""
    return MODELS[type(config).__name__]


def lift_kind(config: LiftConfig) -> LiftKind:
    return LIFTS[type(config).__name__]
