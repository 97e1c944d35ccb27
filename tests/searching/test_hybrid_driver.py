"""The driver of a hybrid search, call by call: on a Ray of one process (ray_here.py)."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from small_search import CPU, tiny_search, trained_alone

pytest.importorskip("ray")

from ray.exceptions import RayTaskError
from ray_here import Here, dying, real, stack_file, steady, told

from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.files.tensors import tensors_bytes
from koopsim.searching import hybrid
from koopsim.searching.directory import Cluster, SearchDirectory
from koopsim.searching.hybrid import HybridSearch
from koopsim.searching.pruning import unpruned
from koopsim.searching.results import best_trial
from koopsim.searching.trial import draw_trials
from koopsim.spaces import Choice
from koopsim.tasks import build_task


@pytest.fixture
def on(monkeypatch, tmp_path):
    """A search on such a Ray, in a folder that stays."""
    monkeypatch.setattr("koopsim.searching.stack_worker.SAVE_SHARE", 1e9)  # a real stack is sent after every epoch

    def make(ray, search, **cluster):
        monkeypatch.setattr(hybrid, "ray", ray)
        monkeypatch.setattr(hybrid, "start_ray", ray.start)
        path = tmp_path / "s"
        directory = SearchDirectory(path) if path.exists() else SearchDirectory.create(path, search)
        return HybridSearch(search, directory, Cluster(**cluster))

    return make


def asked(trials=4, epochs=4, **more):
    search = tiny_search(trials=trials, batches=(10,), backend="ray", **more)
    return replace(search, base=replace(search.base, recipe=replace(search.base.recipe, epochs=epochs)))


def ends(search):
    return [(t.status, t.t) for t in search.trials]


def reported(search):
    return [json.loads(line) for line in search.reports_file.read_text().splitlines()]


def test_one_worker_from_its_first_call_to_its_last(on):
    losses = {(1, 2): 4.5}  # at the second rung trial 1 is below the first, at the first trial 2 below the median
    ray = Here(told(lambda i, t: losses.get((i, t), (4.0, 3.0, 5.0, 2.0)[i])))
    search = on(ray, asked())
    assert search.run() is search.trials
    assert ray.said == [
        ("begin", [0, 1, 2, 3], None, None), ("epoch", {}, False), ("epoch", {2: None}, False),
        ("epoch", {1: None}, False), ("epoch", {}, False),
    ]  # fmt: skip
    assert ends(search) == [("finished", 4), ("pruned", 2), ("pruned", 1), ("finished", 4)]
    assert [search.trials[i].reason for i in (0, 2)] == ["all 4 epochs", "below the others at epoch 1"]
    assert [(r["index"], r.get("t", r.get("ended"))) for r in reported(search)][:6] == [
        (0, 1), (1, 1), (2, 1), (2, "pruned"), (3, 1), (0, 2)]  # fmt: skip
    assert (len(ray.hired), len(ray.killed), ray.up) == (1, 1, False)
    assert not search.folder.exists()
    assert search.directory.trials_file.read_text().count("\n") == 5


def test_a_freed_slot_goes_to_the_next_that_waits(on):
    ray = Here(steady(4.0, 5.0, 3.0, 6.0))
    search = on(ray, asked(at_once=2))
    search.run()
    assert ray.said == [
        ("begin", [0, 1, 2, 3], 2, None), ("epoch", {}, True), ("epoch", {1: 2}, True), ("epoch", {}, True),
        ("epoch", {}, True), ("epoch", {0: 3}, False),
    ]  # fmt: skip
    assert ends(search) == [("finished", 4), ("pruned", 1), ("finished", 4), ("pruned", 1)]


def test_where_nobody_is_pruned_a_dead_worker_and_a_new_driver_change_nothing(on):
    """By the last look trial 0 is the best, by the mean of the last three trial 1."""
    loss = told(lambda i, t: 3.0 if i == 1 else (5.0, 4.0, 6.0, 4.0, 2.0 + i / 10)[t - 1])
    search = asked(epochs=5, at_once=2)
    space = replace(unpruned(search.space, search.base, search.seed), judge_over=3)
    search = replace(search, space=space)

    def before(method, n):
        if (method, n) == ("epoch", 3):
            raise RuntimeError("the driver is gone")
        return dying(("epoch", 2))(method, n)

    with pytest.raises(RuntimeError, match="the driver is gone"):
        on(Here(loss, before=before), search).run()
    again = on(Here(loss), on(Here(loss), search).directory.read())
    again.run()
    assert ends(again) == [("finished", 5)] * 4
    assert best_trial(again.trials, again.search.space).index == 1
    assert best_trial(again.trials, replace(space, judge_over=1)).index == 0


def test_two_workers_share_fairly_what_there_is(on):
    ray = Here(steady(1.0, 1.0, 1.0, 1.0, 1.0), cpu=2.0)
    search = on(ray, asked(trials=5))
    search.run()
    assert ray.begun() == [([0, 1, 2], None, None), ([3, 4], None, None)]
    assert len(ray.hired) == 2
    assert {status for status, _ in ends(search)} == {"finished"}


@pytest.mark.parametrize(("at_once", "each"), [(3, 1), (1, 1), (4, 2), (None, None)])
def test_what_may_train_at_once_is_divided(on, at_once, each):
    ray = Here(steady(*[1.0] * 5), cpu=2.0)
    on(ray, asked(trials=5, at_once=at_once)).run()
    assert {at_once for _, at_once, _ in ray.begun()} == {each}
    assert len(ray.hired) >= 2


@pytest.mark.parametrize(
    ("there", "cluster", "rooms", "share"),
    [
        ({"CPU": 6}, {}, 6, (1.0, 0.0)),
        ({"CPU": 6, "GPU": 2}, {}, 2, (1.0, 1.0)),
        ({"CPU": 1, "GPU": 8}, {}, 1, (1.0, 1.0)),
        ({"CPU": 8, "GPU": 2}, {"gpus_per_trial": 0.5, "cpus_per_trial": 4.0}, 2, (4.0, 0.5)),
        ({"CPU": 6, "GPU": 1}, {"gpus_per_trial": 0.25}, 4, (1.0, 0.25)),
        ({"CPU": 6, "GPU": 1}, {"gpus_per_trial": 0.1, "cpus_per_trial": 0.0}, 10, (0.0, 0.1)),
        ({"CPU": 0.9}, {"cpus_per_trial": 0.3}, 3, (0.3, 0.0)),  # 0.9 / 0.3 is 2.9999999999999996
        ({"CPU": 1}, {"cpus_per_trial": 2.0}, 1, (2.0, 0.0)),  # at least one: it waits for room
        ({}, {"cpus_per_trial": 0.0}, 1, (0.0, 0.0)),
        ({}, {"gpus_per_trial": 1.0}, 1, (1.0, 1.0)),
        ({"CPU": 4}, {"gpus_per_trial": 0.25}, 1, (1.0, 0.25)),
        ({"GPU": 4}, {"cpus_per_trial": 0.25}, 1, (0.25, 1.0)),
    ],
)  # fmt: skip
def test_how_many_workers_a_cluster_has_room_for(on, there, cluster, rooms, share):
    ray = Here(steady(1.0))
    search = on(ray, asked(trials=1), **cluster)
    ray.resources = there
    assert search._capacity() == rooms
    assert search._share() == {"num_cpus": share[0], "num_gpus": share[1]}


def test_no_more_are_hired_than_there_is_work(on):
    ray = Here(steady(1.0, 1.0), cpu=8.0)
    on(ray, asked(trials=2)).run()
    assert ray.hired == [{"num_cpus": 1.0, "num_gpus": 0.0, "max_restarts": 0}] * 2


# ---------------------------------------------------------------- workers that are gone


def test_a_lost_stack_goes_on_from_where_it_was_saved_and_nothing_is_heard_twice(on):
    """Saved after the first epoch alone: trial 2 came into the stack later, and begins again."""
    ray = Here(told(lambda i, t: (4.0, 5.0, 3.0)[i], saves=lambda n: n == 1), before=dying(("epoch", 3)))
    search = on(ray, asked(trials=3, at_once=2))
    search.run()
    assert ray.said[3:7] == [("epoch", {}, False), ("begin", [], None, [0, 1]), ("epoch", {1: 2}, False),
                             ("epoch", {}, False)]  # fmt: skip
    assert ends(search) == [("finished", 4), ("pruned", 1), ("finished", 4)]
    heard = [(r["index"], r["t"]) for r in reported(search) if "t" in r]
    assert heard == [(0, 1), (1, 1), (0, 2), (2, 1), (0, 3), (2, 2), (0, 4), (2, 3), (2, 4)]
    assert len(ray.hired) == 2


def test_a_lost_stack_that_was_never_saved_begins_again(on):
    ray = Here(told(lambda i, t: (4.0, 5.0, 3.0)[i], saves=lambda n: False), before=dying(("epoch", 2)))
    search = on(ray, asked(trials=3))
    search.run()
    assert [trials for trials, _, _ in ray.begun()] == [[0, 1, 2], [0, 2]]
    assert ends(search) == [("finished", 4), ("pruned", 1), ("finished", 4)]


def test_a_stack_that_loses_eleven_workers_fails_and_what_is_over_stays(on):
    ray = Here(steady(4.0, 5.0, 3.0), before=dying(*(("epoch", n) for n in range(2, 99))))
    search = on(ray, asked(trials=3))
    search.run()
    assert ends(search) == [("failed", 1), ("pruned", 1), ("failed", 1)]
    assert search.trials[0].reason == "its worker died 10 times or more"
    assert len(ray.hired) == 11


def test_a_worker_that_is_lost_before_it_has_work_costs_nothing(on):
    ray = Here(steady(4.0), before=dying(("ready", 1)))
    search = on(ray, asked(trials=1))
    search.run()
    assert ends(search) == [("finished", 4)]
    assert len(ray.hired) == 2


@pytest.mark.parametrize(
    ("cause", "says"), [(ValueError("the data\nare gone"), "the data"), (ValueError(), "ValueError")]
)
def test_a_workers_own_error_is_one_line(on, cause, says):
    def raised(method, n):
        if method == "epoch":
            raise RayTaskError("epoch", "where it was", cause)

    ray = Here(steady(4.0), before=raised)
    with pytest.raises(KoopsimError, match=f"^A worker of the search failed: {says}$"):
        on(ray, asked(trials=1)).run()
    assert ray.up is False


def pressed(epoch):
    """Ctrl-C in that epoch."""

    def before(method, n):
        if (method, n) == ("epoch", epoch):
            os.kill(os.getpid(), signal.SIGINT)

    return before


def test_ctrl_c_keeps_reports_and_stacks_and_a_new_driver_goes_on(on):
    ray = Here(steady(4.0, 5.0, 3.0), before=pressed(2))
    first = on(ray, asked(trials=3))
    with pytest.raises(Stopped):
        first.run()
    assert (ray.asked["epoch"], ray.up) == (2, False)
    assert [file.name for file in first.folder.glob("stack*")] == ["stack-0.safetensors"]
    again = Here(steady(4.0, 5.0, 3.0))
    second = on(again, asked(trials=3))
    assert (second.stacks[0].slots, second.made) == ([0, None, 2], 1)
    assert again.up is None
    second.run()
    assert again.said == [("begin", [], None, [0, None, 2]), ("epoch", {}, False), ("epoch", {}, False)]
    assert ends(second) == [("finished", 4), ("pruned", 1), ("finished", 4)]
    idle = Here(steady())
    third = on(idle, asked(trials=3))
    assert (third.run(), idle.up) == (third.trials, None)  # nothing to do: no cluster is started


# ---------------------------------------------------------------- where it stands


def begun(on, search, reports=(), files=None):
    made = on(Here(steady(*[1.0] * 9)), search)
    made.reports_file.write_text("".join(json.dumps(r) + "\n" for r in reports))
    for number, (slots, ages) in (files or {}).items():
        (made.folder / f"stack-{number}.safetensors").write_bytes(stack_file(slots, ages))
    return on(Here(steady(*[1.0] * 9)), search)


def line(index, t, loss, seconds=1.0):
    return {"seconds": seconds, "index": index, "t": t, "loss": loss}


def test_verdicts_are_taken_again_in_the_order_of_the_reports(on):
    """Trial 1 was heard before trial 0; its end, and that of trial 2 at its last epoch, were not written down."""
    lines = [line(1, 1, 5.0, 1.0), line(0, 1, 4.0, 2.0), *(line(2, t, 3.0, 3.0 + t) for t in (1, 2, 3, 4))]
    search = begun(on, asked(trials=4), [*lines, line(3, 1, 9.0, 8.0)])
    assert ends(search) == [("running", 1), ("running", 1), ("finished", 4), ("pruned", 1)]
    assert search.asha.recorded == [{}, {2: -3.0}, {1: -5.0, 0: -4.0, 2: -3.0, 3: -9.0}]
    assert list(search.groups[0]) == [0, 1]  # in no stack: they begin again
    assert len(reported(search)) == 7  # what is found again is no news


def test_a_short_recipe_is_whole_before_the_searchs_last_epoch(on):
    """A trial that ends by itself at 3 of 4 epochs is recorded at the rung it has reached: 1, 2 or 4."""
    ray = Here(steady(4.0, 5.0))
    search = on(ray, asked(trials=2, epochs=3))
    search.run()
    assert ends(search) == [("finished", 3), ("pruned", 1)]
    assert search.trials[0].reason == "all 3 epochs"
    assert search.asha.recorded == [{}, {0: -4.0}, {0: -4.0, 1: -5.0}]


def test_stacks_that_were_saved_are_found_and_a_trial_is_in_one_alone(on):
    ended = {"seconds": 2.0, "index": 4, "ended": "failed", "reason": "so"}
    files = {0: ([0, 1], [1, 1]), 3: ([1, 2, None, 4], [1, 1, 0, 1]), 5: ([4, 0], [1, 1])}
    search = begun(on, asked(trials=6), [line(0, 1, 1.0), ended], files)
    assert [(s.number, s.slots, s.lost) for s in search.stacks] == [(0, [0, 1], 0), (3, [None, 2, None, None], 0)]
    assert search.made == 4
    assert sorted(f.name for f in search.folder.glob("stack*")) == ["stack-0.safetensors", "stack-3.safetensors"]
    assert [list(g) for g in search.groups] == [[3, 5]]
    assert all(s.waiting is search.groups[0] for s in search.stacks)


def test_the_largest_group_goes_first(on):
    """Batch sizes do not share a stack."""
    search = asked(trials=6)
    space = replace(search.space, parameters=search.space.parameters | {"recipe.batch_size": Choice((8, 16))})
    ray = Here(steady(*[1.0] * 6))
    made = on(ray, replace(search, space=space))
    sizes = [len(g) for g in made.groups]
    largest = list(max(made.groups, key=len))
    assert sum(sizes) == 6
    assert len(sizes) == 2
    made.run()
    assert ray.begun()[0][0] == largest
    assert {status for status, _ in ends(made)} == {"finished"}


@pytest.mark.parametrize(
    "header", [{}, {"stack": 3}, {"stack": {"slots": [0]}}, {"stack": {"slots": [9], "ages": [1]}},
               {"stack": {"ages": [1]}}, {"stack": {"slots": [0, None], "ages": 1}}],
)  # fmt: skip
def test_a_stack_that_is_not_whole_is_refused_by_name(on, header):
    made = on(Here(steady(1.0)), asked(trials=1))
    file = made.folder / "stack-0.safetensors"
    wild = {"w": torch.full((1,), float("nan"))}
    file.write_bytes(tensors_bytes(wild, header))
    with pytest.raises(KoopsimError, match=r"stack-0\.safetensors is not a whole stack of trials"):
        made._saved(file)
    file.write_bytes(tensors_bytes(wild, {"stack": {"slots": [0, None], "ages": [1, 0]}}))
    assert made._saved(file)["slots"] == [0, None]  # NaN in its tensors is a trial's own affair


# ---------------------------------------------------------------- with real workers


@pytest.fixture(scope="module")
def alone():
    """The losses of each trial by itself."""
    search = six()
    task = build_task(search.base.task, CPU)
    trials = draw_trials(search.base, search.space, search.seed)
    return [[line["loss"] for line in trained_alone(t.run, task, 4)[1]] for t in trials]


def six():
    return tiny_search(trials=6, batches=(10,), rates=(1e-3, 4e-3), backend="ray")


def agree(trials, alone):
    """Every trial is over, for a reason that is its own, with the figures it gives alone."""
    for trial, losses in zip(trials, alone, strict=True):
        assert [line["t"] for line in trial.curve] == list(range(1, trial.t + 1))
        assert [line["loss"] for line in trial.curve] == pytest.approx(losses[: trial.t], rel=1e-6)
        whole = ("finished", "all 4 epochs") if trial.t == 4 else ("pruned", f"below the others at epoch {trial.t}")
        assert (trial.status, trial.reason) == whole
    assert {trial.status for trial in trials} == {"finished", "pruned"}


def test_every_figure_is_the_trials_own(on, alone):
    ray = Here(real, cpu=2.0)
    agree(on(ray, six()).run(), alone)
    assert [trials for trials, _, _ in ray.begun()] == [[0, 1, 2], [3, 4, 5]]
    assert (len(ray.hired), len(ray.killed)) == (2, 2)


@pytest.mark.parametrize("call", [("begin", 2), ("epoch", 1), ("epoch", 3), ("epoch", 5)])
def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(call, on, alone):
    ray = Here(real, cpu=2.0, before=dying(call))
    agree(on(ray, six()).run(), alone)
    assert len(ray.hired) == 3


def test_a_driver_that_was_stopped_goes_on_with_its_stacks_to_the_same_figures(on, alone):
    with pytest.raises(Stopped):
        on(Here(real, cpu=2.0, before=pressed(4)), six()).run()
    ray = Here(real, cpu=2.0)
    again = on(ray, six())
    assert [stack.number for stack in again.stacks] == [0, 1]
    assert sorted(i for stack in again.stacks for i in stack.slots if i is not None) == [
        t.index for t in again.trials if not t.over
    ]
    agree(again.run(), alone)
    assert ray.asked["epoch"] < 8
