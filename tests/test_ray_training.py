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
from ray_nodes import QUIET as LOCKED
from ray_nodes import family, kill_family, nodes_of_one_cpu

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


def command(out: Path, epochs: int, *more: str) -> list[str]:
    argv = [sys.executable, "-m", "koopsim", "train", *SMALL, "--recipe.epochs", str(epochs), "--out", str(out)]
    return [*argv, "--backend", "ray", "--devices", "2", *more]


def under_way(process: subprocess.Popen, metrics: Path, lines: int = 3) -> list[int]:
    """The workers, once the run has got somewhere."""
    until = time.monotonic() + 240
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines and workers()):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    return workers()


def test_ray_train_gives_the_figures_of_one(tmp_path):
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    wanted = undisturbed(tmp_path, 3)
    done = subprocess.run(command(tmp_path / "two", 3, "--shard"), capture_output=True, text=True, env=QUIET)
    assert done.returncode == 0, done.stderr[-3000:]
    same(json.loads((tmp_path / "two" / "result.json").read_text()), wanted)
    assert not list(tmp_path.glob(".*ray*"))


def ends_as(process: subprocess.Popen, out: Path, wanted: dict) -> None:
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err[-3000:]
    same(json.loads((out / "result.json").read_text()), wanted)
    epochs = [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, len(wanted["metrics"]) + 1))  # none twice, none missing
    assert not list(out.parent.glob("*ray*"))


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    out, wanted = tmp_path / "two", undisturbed(tmp_path, 400, 2)  # by two: late losses follow every rounding
    process = subprocess.Popen(
        command(out, 400), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=QUIET
    )
    before = under_way(process, out / "metrics.jsonl")
    os.kill(before[-1], signal.SIGKILL)
    until = time.monotonic() + 120
    while not set(workers()) - set(before):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until, "nobody took its place"
        time.sleep(0.1)
    ends_as(process, out, wanted)


def test_a_machine_that_is_killed_is_replaced_and_the_run_is_kept_at_a_url(tmp_path):
    """Of three nodes two have a worker each; one of these goes, and the third takes over."""
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    out, wanted = tmp_path / "two", undisturbed(tmp_path, 400, 2)
    url = f"file://{tmp_path}/far/run"
    with nodes_of_one_cpu(3) as (address, nodes):
        argv = command(out, 400, "--address", address, "--storage", url)
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=QUIET | LOCKED
        )
        busy = under_way(process, tmp_path / "far" / "run" / "metrics.jsonl")
        victim = next(node for node in nodes[1:] if set(family(node.pid)) & set(busy))
        kill_family(victim)
        ends_as(process, out, wanted)
    assert json.loads((tmp_path / "far" / "run" / "result.json").read_text())["test"] == wanted["test"]
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["run"]


def test_a_url_is_no_run_directory():
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    from koopsim.ray_training import Asked, RayCluster, train_on_ray

    with pytest.raises(KoopsimError, match="is a URL; give a path as --out, which all machines share, and the URL"):
        train_on_ray(run_of("copy/sim-single", "smoke"), Asked(Path("s3://bucket/run"), "x"), RayCluster())
