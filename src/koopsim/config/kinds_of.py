"""What is open: whoever subclasses `ModelConfig`, `TaskConfig` or `LiftConfig` has added a kind, which JSON names by
its class. A new one stands beside its code, and registers what the rest asks of it (kinds/)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from koopsim.errors import KoopsimError
from koopsim.registry import LIFTS, MODELS, TASKS, Registry


class Open:
    """The subclasses of such a class are the kinds that JSON may name, the plugins' among them."""

    kinds: ClassVar[dict[str, Any]]
    registry: ClassVar[Registry[Any]]

    def __init_subclass__(cls) -> None:
        if Open in cls.__bases__:
            cls.kinds = {}
            return
        before = cls.kinds.get(cls.__name__)
        if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
            raise KoopsimError(
                f"{cls.__module__} defines {cls.__name__}, which {before.__module__} does too; give it another name, "
                "for files know it by that."
            )
        cls.kinds[cls.__name__] = cls


@dataclass(frozen=True)
class LiftConfig(Open):
    """mu: from what a model is given to its features. Subclass it, and register a `LiftKind` (kinds/)."""

    registry: ClassVar = LIFTS
    alone: ClassVar[bool] = True  # False: it is nothing without Fourier features

    def features(self, lift_dim: int) -> int:
        """N, the number of features that psi or U V are given."""
        return lift_dim


@dataclass(frozen=True)
class ModelConfig(Open):
    """The shape of a model. Subclass it, and register a `ModelKind` (kinds/)."""

    registry: ClassVar = MODELS


@dataclass(frozen=True)
class TaskConfig(Open):
    """What is to be learnt, from which data. Subclass it, and register a `TaskKind` (kinds/)."""

    registry: ClassVar = TASKS
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float64", "tf32", "bf16")  # a run of it may have
    convolves: ClassVar[bool] = False  # most of its work are convolutions
    gains_by_bf16: ClassVar[bool] = False  # on processors that multiply it
