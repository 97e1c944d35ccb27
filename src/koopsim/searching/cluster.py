"""Ray, started quietly: no telemetry, no dashboard, a small object store (extra `tune`)."""

from __future__ import annotations

import logging
import os

from koopsim.errors import KoopsimError

__all__ = ["exceptions", "ray", "start_ray"]

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
    from ray import exceptions  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise KoopsimError("The ray backend needs Ray: pip install 'koopsim[tune]'.") from error

OBJECT_STORE = 256 * 2**20  # bytes; workers send reports, and stacks where they stand


def start_ray(address: str | None) -> None:
    """A cluster that runs, or one of this machine's own."""
    threads = {"env_vars": {"OMP_NUM_THREADS": "1"}}  # a trial is small: a second thread costs more than it brings
    try:
        if address:
            ray.init(address, runtime_env=threads, log_to_driver=False, logging_level=logging.ERROR)
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
        where = address or "this machine"
        raise KoopsimError(
            f"No Ray cluster at {where}: {first} Start one with 'ray start --head'; one with a token needs "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here too (docs/search.md)."
        ) from error
