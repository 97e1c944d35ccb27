"""What the report asks of the kinds behind a result: the registries answer, by the names that stand in files.

A result is JSON that anyone may have written: a kind that is not known here is a stranger, and its run is still shown
where nothing depends on what it is.
"""

from typing import Any

from koopsim import kinds
from koopsim.config import ModelConfig, from_dict
from koopsim.errors import KoopsimError
from koopsim.kinds import ModelKind, TaskKind, task_kinds
from koopsim.registry import MODELS, TASKS
from koopsim.words import Figure

Result = dict[str, Any]
STRANGER = ModelKind()


def task_kind_of(result: Result) -> TaskKind:
    return TASKS[result["run"]["task"]["kind"]]


def model_kind_of(result: Result) -> ModelKind:
    return MODELS.find(str(result["run"]["model"].get("kind"))) or STRANGER


def figures() -> dict[str, Figure]:
    """What runs are judged by, by the key it has in a result."""
    return {kind.judged.key: kind.judged for kind in task_kinds()}


def subject_of(run: dict[str, Any]) -> str:
    """The preset's name, told from a configuration: kept trials do not name it."""
    task, model = run["task"], run["model"]
    return f"{TASKS[task['kind']].slug(task)}/{_model_slug(model)}"


def _model_slug(model: dict[str, Any]) -> str:
    try:
        config = from_dict(ModelConfig, model, "model")
        return kinds.model_kind(config).slug(config)
    except KoopsimError:  # a stranger, or one of another version
        return str(model["kind"]).removesuffix("Config").lower()


def is_of(result: Result, task: type) -> bool:
    """Whether a run learnt a task of the kind that `task` configures."""
    return result["run"]["task"].get("kind") == task.__name__
