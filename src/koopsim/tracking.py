"""Training heard by trackers: TensorBoard, Weights & Biases, MLflow. Each is a listener, told of every epoch.

    with TensorBoard("runs/digits/tensorboard") as board:
        koopsim.train("digits/sim-single", "runs/digits", progress=board)

    koopsim train PRESET --tensorboard --wandb PROJECT --mlflow EXPERIMENT

They show what metrics.jsonl records; that file stays the truth. A missing package, a server that does not answer or a
login that is missing is said before hours of training, not after; one that fails later is left out.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from koopsim.errors import KoopsimError

ABOUT = ("event", "epoch", "step")  # what an epoch's line says besides figures
log = logging.getLogger(__name__)


class Tracker:
    """A listener that opens at the first epoch it hears of, or with its `with` where it is `early`; that closes it."""

    package, extra, title, early = "", "", "", True

    def __init__(self) -> None:
        if find_spec(self.package) is None:
            raise KoopsimError(f"{self.title} is not installed: pip install 'koopsim[{self.extra}]'.")
        self.open: Any = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] != "epoch":
            return
        step, figures = event["step"], {key: float(value) for key, value in event.items() if key not in ABOUT}
        if self.open is None:
            self.open = self.start(step)
        self.note(figures, step)

    def start(self, step: int) -> Any:
        raise NotImplementedError

    def note(self, figures: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self.early:
            try:
                self.open = self.start(0)
            except Exception as error:
                raise KoopsimError(f"{self.title} cannot be used: {' '.join(str(error).split())[:300]}") from error
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.open is not None:
            self.finish()
            self.open = None


class TensorBoard(Tracker):
    """Events in a folder: `tensorboard --logdir FOLDER`. A resumed run replaces what it does again."""

    package, extra, title, early = "tensorboard", "tensorboard", "TensorBoard", False

    def __init__(self, folder: Path | str):
        super().__init__()
        self.folder = str(folder)

    def start(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.folder, purge_step=step)

    def note(self, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self.open.add_scalar(name, value, step)
        self.open.flush()  # seen while it trains

    def finish(self) -> None:
        self.open.close()


class WeightsAndBiases(Tracker):
    """A run of a W&B project; `settings` is the configuration shown beside it, `mode` "offline" sends nothing."""

    package, extra, title = "wandb", "wandb", "Weights & Biases"

    def __init__(self, project: str, name: str | None = None, settings: dict[str, Any] | None = None, mode: Any = None):
        super().__init__()
        self.project, self.name, self.settings, self.mode = project, name, settings or {}, mode

    def start(self, step: int) -> Any:
        import wandb  # pyright: ignore[reportMissingImports]

        return wandb.init(project=self.project, name=self.name, config=self.settings, mode=self.mode)

    def note(self, figures: dict[str, float], step: int) -> None:
        self.open.log(figures, step=step, commit=True)  # now, not with the next epoch

    def finish(self) -> None:
        self.open.finish()


class MLflow(Tracker):
    """A run of an MLflow experiment, where MLFLOW_TRACKING_URI says."""

    package, extra, title = "mlflow", "mlflow", "MLflow"

    def __init__(self, experiment: str, name: str | None = None, settings: dict[str, Any] | None = None):
        super().__init__()
        self.experiment, self.name, self.settings = experiment, name, settings or {}

    def start(self, step: int) -> Any:
        import mlflow  # pyright: ignore[reportMissingImports]

        known = mlflow.set_experiment(self.experiment)
        begun = mlflow.start_run(run_name=self.name, experiment_id=known.experiment_id)
        mlflow.log_params(flat(self.settings))
        return begun

    def note(self, figures: dict[str, float], step: int) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        mlflow.log_metrics(figures, step=step)

    def finish(self) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        mlflow.end_run()


def together(*listeners: Any) -> Any:
    """Several listeners as one. A tracker that fails is left out from then on, and training goes on without it."""
    hearing = list(listeners)

    def listen(event: dict[str, Any]) -> None:
        for listener in list(hearing):
            try:
                listener(event)
            except Exception as error:
                if not isinstance(listener, Tracker):
                    raise
                hearing.remove(listener)
                log.warning("%s failed and is left out from here on: %s", listener.title, error)

    return listen


def flat(settings: dict[str, Any], head: str = "") -> dict[str, Any]:
    """A nested configuration as dotted names, as MLflow has them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{head}{key}.") if isinstance(value, dict) else {f"{head}{key}": value}
    return found
