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
import logging
import os
import time
from pathlib import Path
from typing import Any

from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import json_text, read_lines
from koopsim.files.writing import append_line
from koopsim.searching.directory import RAY_FOLDER, Cluster, Search, SearchDirectory
from koopsim.searching.overview import Pace, event_of
from koopsim.searching.ray_worker import NO_ROOM, payload_of, train_trial
from koopsim.searching.results import trials_csv
from koopsim.searching.space import with_values
from koopsim.searching.trial import Trial, draw_trials, length
from koopsim.spaces import BANDWIDTH
from koopsim.training import Listener, unheard

try:
    for name, value in {  # read when Ray is imported, so set before it
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of the user stay what they were
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that diverged reports no metric
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports.jsonl is the record
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }.items():
        os.environ.setdefault(name, value)
    import ray  # pyright: ignore[reportMissingImports]  (an extra)
    from ray import tune  # pyright: ignore[reportMissingImports]
    from ray.tune.schedulers import ASHAScheduler  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise KoopsimError("The ray backend needs Ray Tune: pip install 'koopsim[tune]'.") from error

NAME = "tune"  # of Ray's experiment inside the search's folder
OBJECT_STORE = 256 * 2**20  # bytes; trials exchange nothing but their reports
RETRIES = 10  # of a trial whose process or machine died; a dead machine may be tried a few times before it is noticed

_listener: list[Any] = []  # the running search; Ray pickles its callbacks, and this must not go along


class RaySearch:
    """A search under Ray Tune, where it stands, and how it goes on."""

    def __init__(
        self,
        search: Search,
        directory: SearchDirectory,
        cluster: Cluster = Cluster(),  # noqa: B008  (frozen)
        listen: Listener = unheard,
    ):
        self.search, self.directory, self.cluster, self.listen = search, directory, cluster, listen
        self.trials = draw_trials(search.base, search.space, search.seed)
        self.reports_file = directory.reports_file
        self.full: OSError | None = None  # why there is no going on
        self.pace = Pace()
        self.began = time.time()
        self._read_reports()
        self.over = [t.index for t in self.trials if t.over]  # Ray may have been killed before it took note of some

    @property
    def elapsed(self) -> float:
        return time.time() - self.began

    def run(self) -> list[Trial]:
        """Go on to the end; Ctrl-C saves and raises `Stopped`."""
        storage = folders.make_inside(self.directory.path, RAY_FOLDER).resolve()
        if not all(t.over for t in self.trials):
            with contextlib.redirect_stdout(io.StringIO()):  # Ray talks there; ours is for results
                self._start_ray()
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

    def _start_ray(self) -> None:
        threads = {"env_vars": {"OMP_NUM_THREADS": "1"}}  # a trial is small: a second thread costs more than it brings
        try:
            if self.cluster.address:
                ray.init(self.cluster.address, runtime_env=threads, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    "local",  # a new one, even where another is running or left its address behind
                    runtime_env=threads,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            where = self.cluster.address or "this machine"
            raise KoopsimError(
                f"No Ray cluster at {where}: {first} Start one with 'ray start --head'; one with a token needs "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here too (docs/search.md)."
            ) from error

    def _tuner(self, storage: Path) -> Any:
        gpus = self.cluster.gpus_per_trial
        if gpus is None:
            gpus = 0.25 if ray.cluster_resources().get("GPU") else 0
        resources = {"cpu": self.cluster.cpus_per_trial, "gpu": gpus}
        payload = payload_of(self.search, self.over)
        trainable = tune.with_resources(functools.partial(train_trial, payload=payload), resources)
        if tune.Tuner.can_restore(str(storage / NAME)):
            return tune.Tuner.restore(str(storage / NAME), trainable=trainable, resume_unfinished=True)
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
                name=NAME,
                storage_path=str(storage),
                verbose=0,
                callbacks=[Teller()],
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
            ),
        )

    # ------------------------------------------------------------ reports

    def hear(self, report: dict[str, Any]) -> None:
        """A report of a trial, or its end: kept first, then told."""
        if report["index"] in self.over:
            return
        report = {"seconds": self.elapsed, **report}
        try:
            append_line(self.reports_file, json_text(report, str(self.reports_file), indent=None))
        except OSError as error:
            self.full = error
            raise
        trial = self._apply(report)
        self.listen(event_of(trial, self.trials, self.search.space, report["seconds"], self.pace))

    def no_room(self, number: int, where: str | None) -> None:
        """What a trial says that could not be saved: the search ends."""
        self.full = OSError(number, os.strerror(number), where or str(self.directory.ray_folder))
        raise self.full

    def _apply(self, report: dict[str, Any]) -> Trial:
        trial = self.trials[report["index"]]
        if "ended" in report:
            status, reason = report["ended"], report["reason"]
            if status == "complete":
                whole = trial.t >= length(trial.run, self.search.space.max_t)
                status, reason = ("finished", f"all {trial.t} epochs") if whole else ("pruned", "")
                reason = reason or f"below the others at epoch {trial.t}"
            if not trial.over:
                trial.end(status, reason)
        else:
            trial.status = "running"
            trial.run = _with_bandwidth(trial, report.get("bandwidth"))
            line = {k: v for k, v in report.items() if k not in ("index", "bandwidth")}
            trial.curve = [kept for kept in trial.curve if kept["t"] < line["t"]] + [line]
        return trial

    def _read_reports(self) -> None:
        reports = read_reports(self.reports_file)
        if self.reports_file.exists():  # a line that was cut short must not become the head of the next one
            whole = self.reports_file.read_bytes()
            os.truncate(self.reports_file, whole.rfind(b"\n") + 1)
        for report in reports:
            self._apply(report)
        if reports:
            self.began = time.time() - reports[-1]["seconds"]

    def save(self) -> None:
        self.directory.write(self.directory.trials_file, trials_csv(self.trials, self.search.space).encode())


def _full(error: BaseException | None, storage: Path) -> OSError | None:
    """The full disk behind an error of Ray's own, if there is one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return OSError(error.errno, os.strerror(error.errno), str(storage))
        error = error.__cause__ or error.__context__
    return None


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The lines of reports.jsonl; a last one cut short by a crash is left out."""
    return read_lines(path, _problem_of_report)


def _problem_of_report(report: dict[str, Any]) -> str | None:
    whole = [key for key in ("index", "t") if key in report and (type(report[key]) is not int or report[key] < 0)]
    if whole or "index" not in report:
        return f"its {(whole or ['index'])[0]} is no whole number"
    if type(report.get("seconds")) not in (int, float):
        return "its seconds are no number"
    return None if "t" in report or "ended" in report else "it tells neither of an epoch nor of an end"


def _with_bandwidth(trial: Trial, bandwidth: float | None) -> Any:
    return trial.run if bandwidth is None else with_values(trial.run, {BANDWIDTH: bandwidth})


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
        for report in read_reports(Path(self.reports)):
            if report["index"] == trial.config["index"] and self._metric in report and report["t"] < self._max_t:
                bracket = self._trial_info[trial.trial_id]
                bracket.on_result(trial, report["t"], self._metric_op * report[self._metric])
