"""A worker of a hybrid search, call by call: its engine says what is written here, and nothing is trained."""

import pytest
import torch
from slots_here import Telling
from small_search import tiny_search

from koopsim.engine.slots import Diverged
from koopsim.engine.subnormal import are_zero
from koopsim.files.tensors import tensors_of
from koopsim.searching import stack_worker
from koopsim.searching.packing import SlotsOf
from koopsim.searching.stack_worker import Epoch, StackWorker


@pytest.fixture
def worker(monkeypatch):
    search = tiny_search(trials=6, batches=(10,))
    assert search.base.seed == 0
    monkeypatch.setattr(stack_worker, "prepared", lambda payload, device: (search, None))
    told = []  # of each stack, which tensors were saved of it

    def slots(self, runs, epochs, saved=()):
        told.append(sorted(saved))
        return Telling(runs, epochs)

    monkeypatch.setattr(SlotsOf, "slots", slots)
    monkeypatch.setattr(SlotsOf, "told", told, raising=False)
    monkeypatch.setattr(SlotsOf, "room", lambda self, run, at_once: at_once or 99)
    return StackWorker("", "cpu")


def test_slots_are_opened_and_the_rest_is_given_back(worker):
    assert worker.ready() == "cpu"
    found = worker.begin([4, 1, 3], 2)
    assert found == Epoch([], [4, 1], [3])
    assert worker.engine.said == [("open", [4, 1], 4)]
    assert worker.begin([], 2) == Epoch()
    assert worker.engine is None


def test_an_epoch_with_changes(worker):
    worker.begin([0, 1, 2, 3], None)
    first = worker.epoch({}, True)
    assert [(line["index"], line["t"], line["loss"]) for line in first.lines] == [(i, 1, 1.0) for i in range(4)]
    second = worker.epoch({1: 5, 2: None}, True)
    assert second.slots == [0, 5, None, 3]
    assert [(line["index"], line["t"]) for line in second.lines] == [(0, 2), (5, 1), (3, 2)]
    third = worker.epoch({0: None}, True)  # others wait: the ranks stay open
    assert third.slots == [None, 5, None, 3]
    last = worker.epoch({}, False)
    assert last.slots == [5, 3]
    assert [(line["index"], line["t"]) for line in last.lines] == [(5, 3), (3, 4)]
    assert worker.engine.said[1:] == [
        [0, 1, 2, 3], [0, 5, None, 3], [None, 5, None, 3], ("compact", [1, 3]), [5, 3]]  # fmt: skip
    over = worker.epoch({0: None, 1: None}, False)
    assert (over.slots, over.lines, over.state) == ([None, None], [], None)
    assert len(worker.engine.said) == 6  # nobody is left: no epoch


def test_numbers_next_to_zero_are_zero_in_an_epoch(worker, monkeypatch):
    seen, advance = [], Telling.advance
    monkeypatch.setattr(Telling, "advance", lambda *given: seen.append(are_zero()) or advance(*given))
    before = are_zero()
    worker.begin([0, 1], None)
    worker.epoch({}, True)
    assert (seen, before, are_zero()) == ([torch.set_flush_denormal(False)], False, False)


def test_ranks_are_closed_only_where_that_pays(worker):
    worker.begin([0, 1, 2], None)
    assert worker.epoch({0: None}, False).slots == [None, 1, 2]


def test_ends_of_trials(worker, monkeypatch):
    wild = {(0, 1): Diverged("it is nan"), (1, 1): float("nan"), (2, 1): KeyError("x")}
    monkeypatch.setattr(Telling, "loss", staticmethod(lambda trial, t: wild.get((trial, t), 1.0)))
    worker.begin([0, 1, 2, 3], None)
    found = worker.epoch({}, True)
    assert found.lines[:3] == [
        {"index": 0, "ended": "diverged", "reason": "epoch 1: it is nan"},
        {"index": 1, "ended": "diverged", "reason": "epoch 1: loss is nan on the validation split"},
        {"index": 2, "ended": "failed", "reason": "epoch 1: KeyError: 'x'"},
    ]
    assert found.lines[3] == {"index": 3, "t": 1, "train_loss": 0.5, "loss": 1.0}
    assert found.slots == [0, 1, 2, 3]  # the driver says who goes


def test_a_bandwidth_from_the_data_is_told(worker):
    worker.begin([0], None)
    worker.trials[0].values["model.fourier.bandwidth"] = "median"
    assert worker.epoch({}, True).lines[0]["bandwidth"] == worker.trials[0].run.model.fourier.bandwidth


def test_a_saved_stack_goes_on_with_its_free_slots(worker):
    worker.begin([0, 1, 2], None)
    worker.epoch({}, True)
    worker.cost = 0.0  # as if it were sent for nothing: the next is due at once
    found = worker.epoch({1: None}, True)
    tensors, header = tensors_of(found.state, "a stack")
    assert header["stack"] == {"slots": [0, None, 2], "ages": [2, 1, 2]}
    other = StackWorker("", "cpu")
    again = other.begin([], None, header["stack"] | {"tensors": tensors})
    assert again == Epoch(slots=[0, None, 2])
    assert other.engine.said == [("open", [0, 0, 2], 4)]
    assert SlotsOf.told == [[], sorted(tensors)]  # so that it goes on as it was, a stack or side by side
    assert other.engine.ages == [2, 1, 2]
    assert [r and r.seed for r in other.engine.runs] == [0, None, 2]
    lines = other.epoch({1: 4}, True).lines
    assert [(line["index"], line["t"]) for line in lines] == [(0, 3), (4, 1), (2, 3)]


def test_a_slot_stays_free_where_its_trial_cannot_begin(worker, monkeypatch):
    def settled(trial, task, device):
        if trial.index in (2, 5):
            raise ValueError("n" * 400)
        return trial.run

    monkeypatch.setattr(stack_worker, "settled", settled)
    found = worker.begin([2, 0, 1], None)
    assert found.slots == [0, 1]
    assert found.lines == [{"index": 2, "ended": "failed", "reason": "ValueError: " + "n" * 300}]
    later = worker.epoch({0: 5}, True)
    assert later.slots == [None, 1]
    assert [line["index"] for line in later.lines] == [5, 1]


def test_memory_that_is_too_small(worker, monkeypatch):
    monkeypatch.setattr(Telling, "most", 1)
    found = worker.begin([3, 1, 2, 0, 4], None)
    assert (found.slots, found.back, found.lines) == ([3], [1, 2, 0, 4], [])
