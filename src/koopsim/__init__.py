"""koopsim: Stable Invariant Models for PyTorch, infinitely deep in theory, feedforward in practice.

    koopsim.build("copy/sim-single")        an untrained model of the paper, by name
    koopsim.SIM(lift=..., ...)              your own
    koopsim.load("cifar10/sim-single")      a trained one of the zoo, of a run directory, of a file
    koopsim.train("digits/sim-single")      what `koopsim train` does; so fit, search and reproduce
    koopsim.train(model, (x, y))            any module of yours, any data
    koopsim.deploy(model, shapes)           for answering: fused, captured, any batch, any thread
    koopsim.sklearn.SIMClassifier()         tables, by scikit-learn's contract; so SIMRegressor
    koopsim.spectral.analyze(A)             does it settle, oscillate or blow up?

Names are imported when they are first used, so that `import koopsim` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_WHERE = {
    "build": "koopsim.models",
    "fit": "koopsim.fitting",
    "reproduce": "koopsim.reproduction",
    "search": "koopsim.searching.carrying_out",
    "train": "koopsim.learning",
    "Learning": "koopsim.tasks.own",
    "Recipe": "koopsim.config",
    "SIM": "koopsim.nn",
    "count_parameters": "koopsim.nn",
    "deploy": "koopsim.deployment",
    "load": "koopsim.zoo",
    "KoopsimError": "koopsim.errors",
    "load_plugin": "koopsim.registry",
}
_ROOMS = (
    "bridge", "config", "datasets", "engine", "implicit", "kinds", "nn", "presets", "registry", "report", "sklearn",
    "spectral", "tasks", "zoo",
)  # fmt: skip

__all__ = [
    "SIM", "KoopsimError", "Learning", "Recipe", "__version__", "build", "count_parameters", "deploy", "fit", "load",
    "load_plugin", "reproduce", "search", "train", *_ROOMS,
]  # fmt: skip  # pyright: ignore

if TYPE_CHECKING:
    from koopsim.config import Recipe
    from koopsim.deployment import deploy
    from koopsim.errors import KoopsimError
    from koopsim.fitting import fit
    from koopsim.learning import train
    from koopsim.models import build
    from koopsim.nn import SIM, count_parameters
    from koopsim.registry import load_plugin
    from koopsim.reproduction import reproduce
    from koopsim.searching.carrying_out import search
    from koopsim.tasks.own import Learning
    from koopsim.zoo import load


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in _ROOMS:
        return import_module(f"koopsim.{name}")
    raise AttributeError(f"module 'koopsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
