"""The same run by torchrun and on Ray Train: the figures of one process, also when a worker is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from koopsim.errors import KoopsimError
from koopsim.presets import run_of

pytestmark = pytest.mark.slow
SMALL = "copy/sim-single --scale smoke --device cpu --task.horizon 3 --model.lift.levels 2 --task.train 50".split()
SMALL += "--task.valid 10 --task.test 10 --recipe.batch-size 7".split()
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}


def alone(tmp_path: Path, epochs: int) -> dict:
    argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--recipe.epochs", str(epochs)]
    done = subprocess.run([*argv, "--out", str(tmp_path / "one"), "--json"], capture_output=True, check=True, env=QUIET)
    return json.loads(done.stdout)


def same(found: dict, wanted: dict) -> None:
    assert found["test"]["loss"] == pytest.approx(wanted["test"]["loss"], rel=1e-4)
    assert [m["train_loss"] for m in found["metrics"]] == pytest.approx(
        [m["train_loss"] for m in wanted["metrics"]], rel=1e-4
    )


def test_torchrun(tmp_path):
    wanted = alone(tmp_path, 3)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "koopsim"]
    argv += ["train", *SMALL, "--recipe.epochs", "3", "--out", str(tmp_path / "two")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=QUIET)
    assert done.returncode == 0, done.stderr[-3000:]
    same(json.loads((tmp_path / "two" / "result.json").read_text()), wanted)


def workers() -> list[int]:
    """Ray's worker processes of this user that train."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::RayTrainWorker" in place.read_bytes() or b"ray::_RayTrainWorker" in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
def test_ray_train_gives_the_figures_of_one(killed, tmp_path):
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    epochs = 200 if killed else 3
    wanted = alone(tmp_path, epochs)
    argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--recipe.epochs", str(epochs)]
    argv += ["--backend", "ray", "--devices", "2", "--out", str(tmp_path / "two")]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=QUIET)
    if killed:
        for _ in range(1200):
            if (tmp_path / "two" / "metrics.jsonl").exists() and workers():
                os.kill(workers()[-1], signal.SIGKILL)
                break
            assert process.poll() is None, process.communicate()[1][-3000:]
            time.sleep(0.05)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err[-3000:]
    same(json.loads((tmp_path / "two" / "result.json").read_text()), wanted)
    assert not list(tmp_path.glob(".*ray*"))


def test_a_url_is_no_run_directory():
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    from koopsim.ray_training import RayCluster, train_on_ray

    with pytest.raises(KoopsimError, match="is a URL; a run directory has to be a path"):
        train_on_ray(run_of("copy/sim-single", "smoke"), Path("s3://bucket/run"), "x", RayCluster())
