"""The same search on real Ray clusters on this machine, a stack a worker and a trial a worker: two nodes, one of them
killed; a driver killed; bad trials."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from ray_nodes import QUIET, kill_family, nodes_of_one_cpu
from small_search import CPU, tiny_search, trained_alone

from koopsim.searching.directory import SearchDirectory
from koopsim.searching.results import read_trials
from koopsim.searching.trial import draw_trials
from koopsim.spaces import Choice
from koopsim.tasks import build_task

RAY = find_spec("ray") is not None
pytestmark = pytest.mark.skipif(not RAY, reason="needs Ray: pip install 'koopsim[tune]'")

PATIENCE = 240.0


def command(*words):
    return [sys.executable, "-m", "koopsim", "tune", *words, "--device", "cpu", "--json"]


ENGINES = pytest.mark.parametrize("engine", ["auto", "separate"], ids=["stacks", "trials"])


def prepared(folder, search, engine="auto"):
    """A search that waits to be gone on with: what `koopsim tune` writes first."""
    return SearchDirectory.create(folder, replace(search, backend="ray", engine=engine))


def reports(directory):
    file = directory.reports_file
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def ended(directory):
    return {r["index"] for r in reports(directory) if "ended" in r}


def wait_for(condition, process):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the search ended before it could be disturbed"
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def cluster():
    with nodes_of_one_cpu(2) as found:
        yield found


def longer(search):
    """Trials of some seconds, so that there is a middle to be disturbed in."""
    task = replace(search.base.task, horizon=30, train=600)
    return replace(search, base=replace(search.base, task=task))


def under_way(directory, engine):
    """Whether there is something to lose: of both workers' stacks a report, of trials one by one some that ended."""
    if engine == "separate":
        return len(ended(directory)) >= 2 and len(reports(directory)) >= 5
    return len({r["index"] for r in reports(directory)}) > 4 and len(ended(directory)) < 6


@pytest.mark.slow
@ENGINES
def test_a_node_is_killed_and_the_search_finishes_with_nothing_lost(tmp_path, cluster, engine):
    address, nodes = cluster
    search = longer(tiny_search(trials=8, batches=(10,), rates=(1e-3, 4e-3)))
    directory = prepared(tmp_path / "search", search, engine)
    resume = command("--resume", str(directory.path), "--ray-address", address, "--retrain", "1")
    child = subprocess.Popen(resume, env=dict(os.environ, **QUIET), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: under_way(directory, engine), child)
    before = reports(directory)
    kill_family(nodes[1])
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, err[-2000:]
    result = json.loads(out)
    assert result["trials"] == 8
    assert set(result["ended"]) <= {"finished", "pruned"}
    assert reports(directory)[: len(before)] == before
    heard = [(r["index"], r["t"]) for r in reports(directory) if "t" in r]
    if engine == "auto":
        assert len(heard) == len(set(heard))  # what a stack did a second time was not heard again
        assert not directory.ray_folder.exists()
    task = build_task(search.base.task, CPU)
    torch.set_num_threads(1)
    for row in read_trials(directory.trials_file):  # and every number is the one the trial gives alone
        trial = draw_trials(search.base, search.space, search.seed)[int(row["trial"])]
        lines = trained_alone(trial.run, task, len(row["curve"]))[1]
        for (_, _, _, loss), line in zip(row["curve"], lines, strict=True):
            assert loss == pytest.approx(line["loss"], rel=1e-4)


@pytest.mark.slow
@ENGINES
def test_a_killed_driver_is_resumed(tmp_path, engine):
    search = longer(tiny_search(trials=8, batches=(10,), rates=(1e-3, 4e-3)))
    directory = prepared(tmp_path / "search", search, engine)
    resume = command("--resume", str(directory.path), "--retrain", "0")
    child = subprocess.Popen(
        resume,
        env=dict(os.environ, **QUIET),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: under_way(directory, engine), child)
    kill_family(child)
    before, done = reports(directory), ended(directory)
    again = subprocess.run(resume, env=dict(os.environ, **QUIET), capture_output=True, timeout=PATIENCE, check=False)
    assert again.returncode == 0, again.stderr[-2000:]
    assert set(json.loads(again.stdout)["ended"]) <= {"finished", "pruned"}
    after = reports(directory)
    assert after[: len(before)] == before
    assert not {r["index"] for r in after[len(before) :]} & done  # nothing that had ended was trained again


@pytest.mark.parametrize("engine", ["auto", pytest.param("separate", marks=pytest.mark.slow)], ids=["stacks", "trials"])
def test_bad_trials_are_recorded_and_cost_nobody(tmp_path, engine):
    search = tiny_search(trials=10, batches=(16,))
    base = replace(search.base, recipe=replace(search.base.recipe, clip_norm=None))
    drawn = search.space.parameters | {"recipe.learning_rate": Choice((1e-3, 1e30))}
    drawn |= {"model.rank": Choice((4, 30)), "model.fourier.features": Choice((16, 32))}  # 30 of 16 cannot be
    search = replace(search, base=base, space=replace(search.space, parameters=drawn))
    directory = prepared(tmp_path / "search", search, engine)
    resume = command("--resume", str(directory.path), "--retrain", "0")
    done = subprocess.run(resume, env=dict(os.environ, **QUIET), capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for row, trial in zip(read_trials(directory.trials_file), draw_trials(base, search.space, 0), strict=True):
        if trial.values["model.rank"] > trial.values["model.fourier.features"]:
            assert row["status"] == "failed"
            assert "rank K is 30" in row["reason"]
        elif trial.values["recipe.learning_rate"] > 1:
            assert row["status"] == "diverged"
        else:
            assert row["status"] in ("finished", "pruned")


def test_a_report_that_was_cut_short_does_not_spoil_the_next(tmp_path):
    from koopsim.searching.ray import RaySearch, read_reports

    directory = prepared(tmp_path / "s", tiny_search(trials=2))
    directory.reports_file.write_text('{"seconds": 1.0, "index": 0, "t": 1, "loss": 2.0}\n{"seconds": 2.0, "ind')
    search = RaySearch(directory.read(), directory)
    assert search.trials[0].t == 1
    search.hear({"index": 1, "t": 1, "loss": 3.0})
    assert [report["index"] for report in read_reports(directory.reports_file, "loss")] == [0, 1]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with little room, and how to give it more; only root may have one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", *options, "tmpfs", str(folder)], capture_output=True)

    if os.geteuid() or mount("size=300k").returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder, lambda: mount("remount,size=50m")
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_search_with_one_line_and_it_goes_on(tmp_path, small_disk):
    folder, grow = small_disk
    words = ["digits/sim-single", "--scale", "smoke", "--backend", "ray", "--trials", "4", "--engine", "separate"]
    cut, whole = folder / "cut", tmp_path / "whole"
    ended = subprocess.run(command(*words, "--out", str(cut)), env=os.environ | QUIET, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert "No space left on device" in last
    assert str(cut) in last
    assert not (cut / "ray").exists()
    assert [path.name for path in cut.rglob(".*")] == [".koopsim"]  # our mark, and no temporary file
    assert grow().returncode == 0
    for rest in (["--resume", str(cut)], [*words, "--out", str(whole)]):
        subprocess.run(command(*rest), env=os.environ | QUIET, capture_output=True, check=True)
    first, second = (json.loads((path / "result.json").read_text()) for path in (cut, whole))
    assert first["test"] == second["test"]
    assert "failed" not in [row["status"] for row in read_trials(cut / "trials.csv")]
