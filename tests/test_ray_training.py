"""The same run by torchrun and on Ray Train: the figures of one process, also when a worker is killed on the way."""

import json
import os
import signal
import socket
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


def undisturbed(tmp_path: Path, epochs: int, devices: int = 1) -> dict:
    argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--recipe.epochs", str(epochs)]
    argv += ["--devices", str(devices)]
    done = subprocess.run([*argv, "--out", str(tmp_path / "one"), "--json"], capture_output=True, check=True, env=QUIET)
    return json.loads(done.stdout)


def same(found: dict, wanted: dict) -> None:
    assert found["test"]["loss"] == pytest.approx(wanted["test"]["loss"], rel=1e-4)
    assert [m["train_loss"] for m in found["metrics"]] == pytest.approx(
        [m["train_loss"] for m in wanted["metrics"]], rel=1e-4
    )


def test_torchrun(tmp_path):
    wanted = undisturbed(tmp_path, 3)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "koopsim"]
    argv += ["train", *SMALL, "--recipe.epochs", "3", "--out", str(tmp_path / "two")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=QUIET)
    assert done.returncode == 0, done.stderr[-3000:]
    same(json.loads((tmp_path / "two" / "result.json").read_text()), wanted)


def two_ranks(port: int, first: Path, second: Path) -> list[tuple[int, str]]:
    """(status, what it said) of two ranks that were started by hand, each in a folder of its own."""
    place = QUIET | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--recipe.epochs", "2", "--out", "run"]
    ranks = [
        subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=folder, env=place | {"RANK": str(rank)})
        for rank, folder in enumerate((first, second))
    ]
    said = [rank.communicate(timeout=200)[1] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def test_a_path_that_is_not_shared_is_said(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, (status, said) = two_ranks(port, tmp_path / "a", tmp_path / "b")
    assert status == 2
    assert "rank 1: Rank 1 on" in said
    assert "does not see the run of rank 0" in said
    assert "Traceback" not in said


def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = QUIET | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "RANK": "0"}
        place["MASTER_PORT"] = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--out", str(tmp_path / "run")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False, env=place)
    assert done.returncode == 2
    assert "Rank 0 of 2 cannot meet the others at 127.0.0.1" in done.stderr
    assert "Is the port free" in done.stderr
    assert "Traceback" not in done.stderr


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
    wanted = undisturbed(tmp_path, epochs, 2 if killed else 1)  # late losses follow every rounding
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
    from koopsim.ray_training import Asked, RayCluster, train_on_ray

    with pytest.raises(KoopsimError, match="is a URL; give a path as --out, which all machines share, and the URL"):
        train_on_ray(run_of("copy/sim-single", "smoke"), Asked(Path("s3://bucket/run"), "x"), RayCluster())
