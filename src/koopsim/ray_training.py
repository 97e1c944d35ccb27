"""`koopsim train --backend ray`: the same run on a cluster, by Ray Train's TorchTrainer (extra `tune`).

    TorchTrainer starts N workers, joins them and watches them     each of them trains its share, as under torchrun

The run directory lies on a path that all machines share, or is kept at a URL besides (--storage). A worker or a machine
that dies is replaced, and the run goes on from its last checkpoint: to the figures of one that was not disturbed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from koopsim.config import Run, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.mirror import Mirror
from koopsim.registry import load_plugin, named_plugins
from koopsim.runs import RunDirectory
from koopsim.training import Session, fetched, mirror_of, resume_run, start_run

RETRIES = 5  # of the whole group of workers, when one of them died
WAITS = 10  # minutes that Ray looks for room for all of them
OBJECT_STORE = 128 * 2**20  # bytes; workers exchange nothing through it


@dataclass(frozen=True)
class RayCluster:
    """Where the workers run: so many, on the cluster at an address or one of this machine's own."""

    workers: int = 1
    address: str | None = None
    gpus: bool = False


@dataclass(frozen=True)
class Asked:
    """What is to be done with a run: begun or gone on with in `out`, kept at `storage` besides."""

    out: Path
    name: str
    resume: bool = False
    shard: bool = False
    recompute: bool = False
    storage: str | None = None


def train_on_ray(run: Run, asked: Asked, cluster: RayCluster) -> dict[str, Any]:
    """Train `run` by the cluster's workers; its result."""
    out = asked.out
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]  (an extra)
        from ray.train import FailureConfig, RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports]
        from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise KoopsimError("The ray backend needs Ray Train: pip install 'koopsim[tune]'.") from error
    if re.match(r"[a-z0-9]{2,}:/", str(out)):  # a Path has lost one of its slashes
        raise KoopsimError(f"{out} is a URL; give a path as --out, which all machines share, and the URL as --storage.")
    out = out.resolve()
    if not asked.resume:
        RunDirectory.refuse_taken(out, False)
    told = asdict(asked) | {"out": str(out), "run": to_dict(run), "plugins": named_plugins()}
    mirror = mirror_of(asked.storage)
    if mirror is not None:
        mirror.there()  # a stranger's files are refused before Ray starts
    storage = _Storage(out, mirror)
    with contextlib.redirect_stdout(io.StringIO()):  # Ray talks there; ours is for results
        try:
            _start(ray, cluster)
            trainer = TorchTrainer(
                _work,
                train_loop_config=told,
                scaling_config=ScalingConfig(num_workers=cluster.workers, use_gpu=cluster.gpus),
                run_config=RunConfig(
                    name="train",
                    failure_config=FailureConfig(RETRIES, controller_failure_limit=WAITS),
                    **storage.settings,
                ),
            )
            trainer.fit()
        except Exception as error:
            raise KoopsimError(_why(error, out)) from error
        finally:
            ray.shutdown()
            storage.remove()
    if mirror is not None:
        fetched(out, mirror)
    return RunDirectory(out).read_result()


class _Storage:
    """Where Ray Train itself takes notes: beside the run directory, and gone when it is over.

    It carries our mark; a folder of that name without it is somebody's: refused before Ray starts, never removed.
    """

    def __init__(self, out: Path, mirror: Mirror | None):
        from fsspec.implementations.local import LocalFileSystem  # pyright: ignore[reportMissingImports]

        self.fs = LocalFileSystem() if mirror is None else mirror.fs
        self.path = str(out.parent / f".{out.name}.ray") if mirror is None else f"{mirror.root.rstrip('/')}.ray"
        self.mark = f"{self.path}/{folders.MARKER}"
        if self.fs.exists(self.path) and not self.fs.exists(self.mark):
            raise KoopsimError(f"{self.path} is there already and koopsim did not make it; move it away first.")
        self.fs.makedirs(self.path, exist_ok=True)
        self.fs.pipe_file(self.mark, b"{}\n")
        self.settings: dict[str, Any] = {"storage_path": self.path}
        if mirror is not None:
            from pyarrow.fs import FSSpecHandler, PyFileSystem  # pyright: ignore[reportMissingImports]  (Ray's own)

            self.settings["storage_filesystem"] = PyFileSystem(FSSpecHandler(mirror.fs))

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path, recursive=True)


def _start(ray: Any, cluster: RayCluster) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    quiet["runtime_env"] = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    if cluster.address:
        ray.init(cluster.address, **quiet)
    else:
        ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)


def _why(error: Exception, out: Path) -> str:
    """The last line of a worker's error, which Ray wraps in many."""
    lines = [line.strip() for line in str(error).splitlines() if "KoopsimError:" in line]
    if lines:
        return lines[-1].split("KoopsimError:")[-1].strip()
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"Ray could not finish the run in {out}: {first[:300]}. What was saved is whole; go on with --resume."


def _work(told: dict[str, Any]) -> None:
    """What each worker does; the first time it begins the run, later it goes on with it."""
    import torch

    from koopsim.engine.drive import pick_device
    from koopsim.engine.world import device_of_rank, joined_world

    torch.set_num_threads(1)
    for module, folder in told["plugins"].items():
        load_plugin(module, folder)
    run, out = from_dict(Run, told["run"]), Path(told["out"])
    device = pick_device(device_of_rank("auto" if torch.cuda.is_available() else "cpu"))
    with joined_world(device) as world:
        mirror = mirror_of(told["storage"])
        there = (out / "config.json").exists() if mirror is None else mirror.holds("config.json")
        begun = world.told(there)
        session = Session(device, world=world, shard=told["shard"], recompute=told["recompute"], mirror=mirror)
        if told["resume"] or begun:
            resume_run(out, session)
        else:
            start_run(run, out, told["name"], session)
