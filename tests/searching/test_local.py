"""The local search: what becomes of trials, and that nothing stops it for good."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from small_search import CPU, tiny_search, trained_alone

from koopsim.engine import drive
from koopsim.engine.drive import Stopped
from koopsim.engine.stacked import Stacked
from koopsim.errors import KoopsimError
from koopsim.runs import write_atomically
from koopsim.searching import directory as directory_module
from koopsim.searching import packing
from koopsim.searching.asha import ASHA
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.searching.results import best_trial, read_trials
from koopsim.spaces import Choice
from koopsim.training import Session


def begin(tmp_path, search, **more):
    directory = SearchDirectory.create(tmp_path / "search", search, overwrite=True)
    return LocalSearch(search, directory, Session(CPU, **more))


def outcome(trials):
    """All but the seconds, which differ from run to run."""
    curves = [[{k: v for k, v in line.items() if k != "seconds"} for line in t.curve] for t in trials]
    return [(t.index, t.status, t.reason, t.run, curve) for t, curve in zip(trials, curves, strict=True)]


def test_every_trial_ends_as_asha_says(tmp_path):
    heard = []
    search = tiny_search(trials=10)
    found = begin(
        tmp_path, search, listen=lambda e: heard.append((e["trial"].index, e["trial"].t, e["trial"].last("loss")))
    )
    trials = found.run()
    assert {t.status for t in trials} == {"finished", "pruned"}
    asha = ASHA(4, 1, 2, "min")
    ended = {t.index: t.t for t in trials}
    for index, t, loss in heard:  # the same stream judged again: each trial stops where ASHA stops it
        assert asha.report(index, t, loss) == (t < ended[index])
    assert all(t.t == 4 for t in trials if t.status == "finished")


def test_the_curve_is_the_trials_own(tmp_path):
    found = begin(tmp_path, tiny_search(trials=6))
    trials = found.run()
    best = best_trial(trials, found.search.space)
    for line, expected in zip(best.curve, trained_alone(best.run, found.task, best.t)[1], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_few_slots_come_to_good_ends_too(tmp_path):
    trials = begin(tmp_path, tiny_search(trials=7, at_once=2)).run()
    assert all(t.over and t.curve for t in trials)


def test_side_by_side_finds_what_the_stack_finds(tmp_path):
    stacked = begin(tmp_path / "a", tiny_search(batches=(16,), engine="stacked", at_once=3)).run()
    beside = begin(tmp_path / "b", tiny_search(batches=(16,), engine="separate", at_once=3)).run()
    assert [(t.status, t.t) for t in stacked] == [(t.status, t.t) for t in beside]
    for a, b in zip(stacked, beside, strict=True):
        assert a.last("loss") == pytest.approx(b.last("loss"), rel=1e-6)


def test_side_by_side_no_more_than_asked_for_train_at_a_time(tmp_path):
    most, groups = 0, 0

    def watch(event):
        nonlocal most, groups
        running = [t for t in event["trials"] if t.status == "running"]
        most, groups = max(most, len(running)), max(groups, len({t.run.recipe.batch_size for t in running}))

    search = tiny_search(trials=12, batches=(8, 12, 16), engine="separate", at_once=4)
    trials = begin(tmp_path, search, listen=watch).run()
    assert most == 4
    assert groups == 3  # every group has its share
    assert all(t.over and t.curve for t in trials)


def test_more_shapes_than_room(tmp_path):
    search = tiny_search("image/sim-single", trials=6, batches=(256,))
    space = replace(search.space, metric="psnr", mode="max", max_t=2)
    space = replace(space, parameters=space.parameters | {"model.lift.width": Choice((8, 10, 12, 14, 16))})
    base = replace(search.base, precision="float32")
    trials = begin(tmp_path, replace(search, base=base, space=space, at_once=2)).run()
    assert all(t.over and t.curve for t in trials)


class Killed(BaseException):
    """Stands in for kill -9: nothing is saved on the way out."""


@pytest.fixture(scope="module", params=["stacked", "separate"])
def undisturbed(request, tmp_path_factory):
    search = tiny_search(trials=6, at_once=2, engine=request.param)
    return search, begin(tmp_path_factory.mktemp("whole"), search).run()


@pytest.mark.parametrize("moment", [1, 9, 17, 30])
def test_killed_at_any_moment_it_comes_to_the_same_verdicts(tmp_path, monkeypatch, undisturbed, moment):
    search, whole = undisturbed
    monkeypatch.setattr(drive, "SAVE_SECONDS", -1.0)  # a state after every look
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 1e-9)  # and a look after every step
    killed, steps = begin(tmp_path / "killed", search), 0
    save = killed.save

    def counted():
        nonlocal steps
        steps += 1
        if steps == moment + 1:
            raise Killed
        save()

    killed.save = counted
    with pytest.raises(Killed):
        killed.run()
    again = LocalSearch(search, killed.directory, Session(CPU))
    again.load()
    assert outcome(again.run()) == outcome(whole)


def stopped_by_ctrl_c(folder, search):
    """Begun, and interrupted when trial 2 is first heard of."""

    def press(event):
        if event["trial"].index == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = begin(folder, search, listen=press)
    with pytest.raises(Stopped):
        stopped.run()
    return stopped


def test_ctrl_c_saves_in_mid_epoch_and_goes_on(tmp_path):
    search = tiny_search(trials=5)
    whole = begin(tmp_path / "whole", search).run()

    stopped = stopped_by_ctrl_c(tmp_path / "stopped", search)
    again = LocalSearch(search, stopped.directory, Session(CPU))
    again.load()
    assert outcome(again.run()) == outcome(whole)


@pytest.mark.parametrize("stacked", [True, False])
def test_it_goes_on_as_it_was_begun_where_another_way_has_become_the_faster_one(tmp_path, monkeypatch, stacked):
    search = tiny_search(trials=3, batches=(8,), at_once=3)
    monkeypatch.setattr(packing, "better_stacked", lambda run, task, device: stacked)
    whole = begin(tmp_path / "whole", search).run()

    stopped = stopped_by_ctrl_c(tmp_path / "stopped", search)
    monkeypatch.setattr(packing, "better_stacked", lambda run, task, device: not stacked)
    again = LocalSearch(search, stopped.directory, Session(CPU))
    again.load()
    assert outcome(again.run()) == outcome(whole)


def test_a_full_disk_leaves_the_state_before_and_says_how_to_go_on(tmp_path, monkeypatch):
    search = tiny_search(trials=4)
    whole = begin(tmp_path / "whole", search).run()
    monkeypatch.setattr(drive, "SAVE_SECONDS", -1.0)
    written = 0

    def full(path, data):
        nonlocal written
        written += 1
        if written > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_atomically(path, data)

    monkeypatch.setattr(directory_module, "write_atomically", full)
    stopped = begin(tmp_path / "stopped", search)
    with pytest.raises(KoopsimError, match=r"No space left on device.*--resume"):
        stopped.run()
    monkeypatch.setattr(directory_module, "write_atomically", write_atomically)
    again = LocalSearch(search, stopped.directory, Session(CPU))
    again.load()
    assert outcome(again.run()) == outcome(whole)


def test_a_trial_that_diverges_is_recorded_and_costs_nobody(tmp_path):
    search = tiny_search(trials=6, batches=(16,))
    base = replace(search.base, recipe=replace(search.base.recipe, clip_norm=None))
    rates = search.space.parameters | {"recipe.learning_rate": Choice((1e-3, 1e30))}
    trials = begin(tmp_path, replace(search, base=base, space=replace(search.space, parameters=rates))).run()
    bad = [t for t in trials if t.run.recipe.learning_rate > 1]
    assert bad
    assert all(t.status == "diverged" and "epoch 1" in t.reason and not t.curve for t in bad)
    assert {t.status for t in trials if t not in bad} <= {"finished", "pruned"}


def test_a_trial_that_crashes_is_recorded_and_costs_nobody(tmp_path, monkeypatch):
    advance = Stacked.advance

    def broken(self, first, last):
        if self.runs[0] and self.runs[0].seed == 1:
            raise RuntimeError("a bolt came loose")
        advance(self, first, last)

    monkeypatch.setattr(Stacked, "advance", broken)
    trials = begin(tmp_path, tiny_search(trials=4, engine="separate")).run()
    assert [t.status == "failed" for t in trials] == [False, True, False, False]
    assert "a bolt came loose" in trials[1].reason


def test_values_that_cannot_go_together_fail_alone(tmp_path):
    search = tiny_search(trials=8)
    space = replace(search.space, parameters=search.space.parameters | {"model.rank": Choice((4, 40))})
    trials = begin(tmp_path, replace(search, space=space)).run()
    bad = [t for t in trials if t.values["model.rank"] == 40]
    assert 0 < len(bad) < 8
    assert all(t.status == "failed" and "rank K is 40" in t.reason for t in bad)


def test_too_little_memory_halves_the_stack(tmp_path, monkeypatch):
    made = []
    original = Stacked.__init__

    def small(self, runs, *rest, **more):
        made.append(len(runs))
        if len(runs) > 2:
            raise torch.OutOfMemoryError("too many")
        original(self, runs, *rest, **more)

    search = tiny_search(trials=7, batches=(16,))
    whole = begin(tmp_path / "whole", search).run()
    monkeypatch.setattr(Stacked, "__init__", small)
    trials = begin(tmp_path / "small", search).run()
    assert made[:3] == [7, 3, 1]
    assert all(t.over and t.curve for t in trials)
    assert trials[0].curve[0]["loss"] == pytest.approx(whole[0].curve[0]["loss"], rel=1e-6)


def test_a_bandwidth_from_the_data_becomes_a_number(tmp_path):
    from koopsim.spaces import BANDWIDTH, Median

    search = tiny_search(trials=3)
    space = replace(search.space, parameters=search.space.parameters | {BANDWIDTH: Median()})
    found = begin(tmp_path, replace(search, space=space))
    trials = found.run()
    widths = [t.run.model.fourier.bandwidth for t in trials]
    assert len(set(widths)) == 3  # each trial has its own lift
    rows = read_trials(found.directory.trials_file)
    assert [float(row[BANDWIDTH]) for row in rows] == widths


def test_a_broken_state_is_refused(tmp_path):
    search = tiny_search(trials=2)
    found = begin(tmp_path, search)
    found.run()
    whole = found.directory.state_file.read_bytes()
    found.directory.state_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KoopsimError, match="not a whole search state"):
        LocalSearch(search, found.directory, Session(CPU)).load()


@pytest.mark.slow
def test_kill_nine_of_the_command(tmp_path):
    sizes = "--task.horizon 10 --task.train 400 --task.valid 20 --task.test 20 --recipe.epochs 3 --trials 6".split()
    command = [
        sys.executable,
        "-m",
        "koopsim",
        "tune",
        "copy/sim-single",
        "--scale",
        "smoke",
        "--device",
        "cpu",
        *sizes,
    ]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    whole = subprocess.run(
        [*command, "--out", str(tmp_path / "a"), "--json"], capture_output=True, env=environment, check=True
    )
    child = subprocess.Popen([*command, "--out", str(tmp_path / "b")], env=environment, stderr=subprocess.DEVNULL)
    while not (tmp_path / "b" / "state.safetensors").exists():  # the first of many: a pause might be its whole time
        assert child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()
    assert not (tmp_path / "b" / "result.json").exists()
    resume = [sys.executable, "-m", "koopsim", "tune", "--resume", str(tmp_path / "b"), "--device", "cpu", "--json"]
    again = subprocess.run(resume, capture_output=True, env=environment, check=True)
    first, second = json.loads(whole.stdout), json.loads(again.stdout)
    assert first["best"] == second["best"]
    assert first["test"] == second["test"]
