"""The same search on a Ray cluster: one process a trial, as the paper did it.

    Tuner( trial i -> reports (t, metric),  ASHA )            Liaw et al., 2018; Li et al., 2020

Ray only chooses when and where a trial runs: trial i is drawn by koopsim, as everywhere. A trial is checkpointed every
epoch, so one whose machine dies goes on elsewhere; the driver keeps every report in reports.jsonl, from which a search
that was killed gets back what Ray forgets (the rungs of ASHA). Where the disk is full it ends at once, and what Ray has
kept of it is thrown away, for that may be half-written: trials that were under way begin again. No telemetry, no
dashboard, a small object store.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from pathlib import Path
from typing import Any

from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.searching.cluster import ray, start_ray
from koopsim.searching.directory import RAY_FOLDER, TUNE_FOLDER
from koopsim.searching.ray_worker import NO_ROOM, payload_of, train_trial
from koopsim.searching.reports import ReportedSearch, read_reports
from koopsim.searching.trial import Trial

try:
    from ray import tune  # pyright: ignore[reportMissingImports]
    from ray.tune.schedulers import ASHAScheduler  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise KoopsimError("The ray backend needs Ray Tune: pip install 'koopsim[tune]'.") from error

RETRIES = 10  # of a trial whose process or machine died; a dead machine may be tried a few times before it is noticed

_listener: list[Any] = []  # the running search; Ray pickles its callbacks, and this must not go along


class RaySearch(ReportedSearch):
    """A search under Ray Tune, where it stands, and how it goes on."""

    def run(self) -> list[Trial]:
        """Go on to the end; Ctrl-C saves and raises `Stopped`."""
        storage = folders.make_inside(self.directory.path, RAY_FOLDER).resolve()
        if not all(t.over for t in self.trials):
            with contextlib.redirect_stdout(io.StringIO()):  # Ray talks there; ours is for results
                start_ray(self.cluster.address)
                _listener[:] = [self]
                try:
                    self._tuner(storage).fit()
                except Exception as error:
                    full = self.full or _full(error, storage)
                    if full is None:
                        raise
                    if full.errno in NO_ROOM:
                        folders.remove_inside(self.directory.path, RAY_FOLDER)
                    raise full from error
                finally:
                    _listener.clear()
                    ray.shutdown()
        self.save()
        if not all(t.over for t in self.trials):
            raise Stopped
        return self.trials

    def _tuner(self, storage: Path) -> Any:
        gpus = self.cluster.gpus_per_trial
        if gpus is None:
            gpus = 0.25 if ray.cluster_resources().get("GPU") else 0
        resources = {"cpu": self.cluster.cpus_per_trial, "gpu": gpus}
        payload = payload_of(self.search, self.over)
        trainable = tune.with_resources(functools.partial(train_trial, payload=payload), resources)
        if tune.Tuner.can_restore(str(storage / TUNE_FOLDER)):
            return tune.Tuner.restore(str(storage / TUNE_FOLDER), trainable=trainable, resume_unfinished=True)
        space = self.search.space
        scheduler = RememberingASHA(
            str(self.reports_file.resolve()),
            metric=space.metric,
            mode=space.mode,
            time_attr="t",
            max_t=space.max_t,
            grace_period=space.grace,
            reduction_factor=space.reduction,
        )
        waiting = [t.index for t in self.trials if not t.over]  # values that cannot go together never start
        return tune.Tuner(
            trainable,
            param_space={"index": tune.grid_search(waiting)},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, reuse_actors=True, max_concurrent_trials=self.search.at_once
            ),
            run_config=tune.RunConfig(
                name=TUNE_FOLDER,
                storage_path=str(storage),
                verbose=0,
                callbacks=[Teller()],
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
            ),
        )

    # ------------------------------------------------------------ reports

    def no_room(self, number: int, where: str | None) -> None:
        """What a trial says that could not be saved: the search ends."""
        self.full = OSError(number, os.strerror(number), where or str(self.directory.ray_folder))
        raise self.full


def _full(error: BaseException | None, storage: Path) -> OSError | None:
    """The full disk behind an error of Ray's own, if there is one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return OSError(error.errno, os.strerror(error.errno), str(storage))
        error = error.__cause__ or error.__context__
    return None


class Teller(tune.Callback):
    """Hands what Ray's driver hears to the running search."""

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        index = trial.config["index"]
        if "no_room" in result:
            _listener[0].no_room(result["no_room"], result["where"])
        elif "ended" in result:
            _listener[0].hear({"index": index, "ended": result["ended"], "reason": result["reason"]})
        elif "t" in result:
            _listener[0].hear({"index": index, **{key: result[key] for key in result["reported"]}})

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        _listener[0].hear({"index": trial.config["index"], "ended": "complete", "reason": ""})

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        reason = f"its process died {RETRIES} times or more"
        _listener[0].hear({"index": trial.config["index"], "ended": "failed", "reason": reason})


class RememberingASHA(ASHAScheduler):
    """Ray's ASHA; a restored search finds its rungs again from what was reported, which Ray itself does not keep."""

    def __init__(self, reports: str, **settings: Any):
        super().__init__(**settings)
        self.reports = reports

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        metric = str(self._metric)
        for report in read_reports(Path(self.reports), metric):
            if report["index"] == trial.config["index"] and "t" in report and report["t"] < self._max_t:
                bracket = self._trial_info[trial.trial_id]
                bracket.on_result(trial, report["t"], self._metric_op * report[metric])
