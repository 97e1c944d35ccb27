"""A worker of a hybrid search, in this process: each trial has its own figures, and another worker goes on with it."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load
from small_search import CPU, tiny_search, trained_alone

from koopsim.searching.ray_worker import payload_of
from koopsim.searching.stack_worker import StackWorker
from koopsim.searching.trial import draw_trials
from koopsim.spaces import Choice
from koopsim.tasks import build_task

SEARCH = tiny_search(trials=6, batches=(10,))


def worker(search=SEARCH) -> StackWorker:
    return StackWorker(payload_of(search, []), "cpu")


def alone(index: int, epochs: int, search=SEARCH) -> list[dict]:
    trial = draw_trials(search.base, search.space, search.seed)[index]
    return trained_alone(trial.run, build_task(search.base.task, CPU), epochs)[1]


def test_a_stack_gives_the_figures_of_each_trial_alone_and_takes_new_ones_in():
    own = worker()
    assert own.begin([0, 1, 2], None).slots == [0, 1, 2]
    first = own.epoch({}, True)
    second = own.epoch({1: 4}, True)  # trial 1 is over, 4 takes its slot
    assert second.slots == [0, 4, 2]
    third = own.epoch({0: None}, False)  # nobody waits: the ranks are closed
    assert third.slots == [4, 2]
    found = {(line["index"], line["t"]): line["loss"] for e in (first, second, third) for line in e.lines}
    assert set(found) == {(0, 1), (1, 1), (2, 1), (0, 2), (4, 1), (2, 2), (4, 2), (2, 3)}
    for index in (0, 1, 2, 4):
        for t, line in enumerate(alone(index, 3), 1):
            if (index, t) in found:
                assert found[index, t] == pytest.approx(line["loss"], rel=1e-9)


def test_a_stack_goes_on_elsewhere_to_the_same_bits():
    one, two = worker(), worker()
    one.begin([0, 3, 5], None)
    first = one.epoch({}, True)
    assert first.state is not None
    saved = {"slots": first.slots, "ages": [1, 1, 1], "tensors": load(first.state)}
    wanted = one.epoch({1: 2}, True).lines
    assert two.begin([], None, saved).slots == [0, 3, 5]
    assert two.epoch({1: 2}, True).lines == wanted


def test_what_does_not_fit_is_given_back_and_what_is_bad_ends(monkeypatch):
    def settled(trial, task, device):
        if trial.index in (0, 3):
            raise ValueError("there is no median of nothing")
        return trial.run

    monkeypatch.setattr("koopsim.searching.stack_worker.settled", settled)
    own = worker()
    found = own.begin(range(6), 2)
    assert [(line["index"], line["ended"]) for line in found.lines] == [(0, "failed"), (3, "failed")]
    assert "no median of nothing" in found.lines[0]["reason"]
    assert (found.slots, found.back) == ([1, 2], [4, 5])
    later = own.epoch({0: 3}, True)  # the slot stays free
    assert later.slots == [None, 2]
    assert [line["index"] for line in later.lines] == [3, 2]


def test_a_loss_that_is_no_number_is_the_trials_own():
    rates = SEARCH.space.parameters | {"recipe.learning_rate": Choice((1e-3, 1e30))}
    base = replace(SEARCH.base, recipe=replace(SEARCH.base.recipe, clip_norm=None))
    search = replace(SEARCH, base=base, space=replace(SEARCH.space, parameters=rates))
    wild = [t.index for t in draw_trials(base, search.space, 0) if t.values["recipe.learning_rate"] > 1]
    own = worker(search)
    own.begin(range(6), None)
    lines = own.epoch({}, False).lines
    assert wild
    assert {line["index"] for line in lines if line.get("ended") == "diverged"} == set(wild)


def crowded(monkeypatch, most):
    """A device on which no more than `most` trials fit; what was tried on it."""
    from koopsim.searching.packing import SlotsOf

    tried, slots = [], SlotsOf.slots

    def small(self, runs, epochs):
        tried.append((len(runs), epochs))
        if len(runs) > most:
            raise torch.OutOfMemoryError("too many")
        return slots(self, runs, epochs)

    monkeypatch.setattr(SlotsOf, "slots", small)
    return tried


def test_too_little_memory_halves_a_workers_stack_and_the_rest_is_given_back(monkeypatch):
    tried = crowded(monkeypatch, 2)
    found = worker().begin([0, 1, 2, 3, 4], None)
    assert tried == [(5, 4), (2, 4)]  # room for four epochs each
    assert (found.slots, found.back, found.lines) == ([0, 1], [2, 3, 4], [])


def test_a_trial_that_does_not_fit_alone_is_over_and_nobody_is_given_back(monkeypatch):
    tried = crowded(monkeypatch, 0)
    found = worker().begin([3, 1], None)
    assert [count for count, _ in tried] == [2, 1]
    assert found.lines == [{"index": 3, "ended": "failed", "reason": "too large for the device's memory"}]
    assert (found.slots, found.back) == ([], [])


def test_a_stack_is_sent_in_a_small_share_of_the_time(monkeypatch):
    """Saving took a second: the next is due when twenty times that have gone by."""
    from koopsim.engine.drive import SAVE_SHARE
    from koopsim.searching import stack_worker

    now = [100.0]
    monkeypatch.setattr(stack_worker.time, "monotonic", lambda: now[0])
    own = worker()
    own.begin([0], None)
    assert (own.saved, own.cost) == (100.0, 0.0)
    assert own.epoch({}, True).state is not None  # nothing is known of its cost
    own.cost = 1.0
    now[0] = own.saved + 0.99 / SAVE_SHARE
    assert own.epoch({}, True).state is None
    now[0] = own.saved + 1.01 / SAVE_SHARE
    assert own.epoch({}, True).state is not None
    assert own.cost == 0.0
    assert own.epoch({0: None}, True).state is None  # nobody is left
