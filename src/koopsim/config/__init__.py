"""What a model, a task, a recipe and a run are: frozen dataclasses, and their JSON.

    Run = model + task + recipe + seed        everything needed to repeat a number

Models, tasks and lifts are open (kinds_of.py). Those of the paper are here; a new one stands beside its code.
"""

from koopsim.config.checks import MOST, SEEDS, largest_number
from koopsim.config.kinds_of import LiftConfig, ModelConfig, TaskConfig
from koopsim.config.lifts import IdentityConfig, MLPConfig, TCNConfig, VGGConfig
from koopsim.config.models import DEQConfig, FourierConfig, FourierNetworkConfig, MonDEQConfig, SIMConfig, SolverConfig
from koopsim.config.run import SMALLEST, Recipe, Run, resolve_precision
from koopsim.config.tasks import ClassificationConfig, CopyMemoryConfig, ImageRegressionConfig
from koopsim.config.values import from_dict, to_dict

__all__ = [
    "MOST", "SEEDS", "SMALLEST", "ClassificationConfig", "CopyMemoryConfig", "DEQConfig", "FourierConfig",
    "FourierNetworkConfig", "IdentityConfig", "ImageRegressionConfig", "LiftConfig", "MLPConfig", "ModelConfig",
    "MonDEQConfig", "Recipe", "Run", "SIMConfig", "SolverConfig", "TCNConfig", "TaskConfig", "VGGConfig", "from_dict",
    "largest_number", "resolve_precision", "to_dict",
]  # fmt: skip
