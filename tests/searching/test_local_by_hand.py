"""A local search slot by slot: its engines say what is written here, and nothing is trained."""

from dataclasses import replace

import pytest
import torch
from slots_here import Beside, Telling
from small_search import CPU, tiny_search

from koopsim.engine.slots import Diverged
from koopsim.errors import KoopsimError
from koopsim.presets import run_of
from koopsim.searching import local, packing
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.searching.packing import BESIDE_ON, STACK_ON, SlotsOf
from koopsim.searching.pruning import unpruned
from koopsim.searching.results import best_trial
from koopsim.searching.stacking import better_stacked, stack_key
from koopsim.training import Session


@pytest.fixture
def on(monkeypatch, tmp_path):
    """(a search with these losses, what its engines were told)"""

    def make(loss, at_once=None, stacked=True, most=99, folder="s", **more):
        kind, said = Telling if stacked else Beside, []
        monkeypatch.setattr(local, "Beside", Beside)
        monkeypatch.setattr(kind, "loss", staticmethod(loss))
        monkeypatch.setattr(kind, "most", most)
        monkeypatch.setattr(SlotsOf, "stacks", lambda self, run: stacked)
        monkeypatch.setattr(SlotsOf, "room", lambda self, run, at_once: at_once or 99)
        monkeypatch.setattr(SlotsOf, "slots", lambda self, runs, epochs, saved: kind(runs, epochs, said))
        search = asked(at_once=at_once, **more)
        path = tmp_path / folder
        directory = SearchDirectory(path) if path.exists() else SearchDirectory.create(path, search)
        return LocalSearch(search, directory, Session(CPU), task="none"), said

    return make


def asked(trials=4, epochs=4, batches=(10,), judge_over=1, grace=1, pruned=True, **more):
    search = tiny_search(trials=trials, batches=batches, **more)
    base = replace(search.base, seed=0, recipe=replace(search.base.recipe, epochs=epochs))
    space = replace(search.space, judge_over=judge_over, grace=grace)
    return replace(search, base=base, space=space if pruned else unpruned(space, base, search.seed))


def ends(search):
    return [(t.status, t.t) for t in search.trials]


def steady(*losses):
    return lambda trial, t: losses[trial]


def test_one_stack_from_its_first_epoch_to_its_last(on):
    """At the first rung trial 2 is below the median; two of four are left in the end, and the ranks are closed."""
    losses = {(1, 2): 4.5}
    search, said = on(lambda i, t: losses.get((i, t), (4.0, 3.0, 5.0, 2.0)[i]))
    assert search.run() is search.trials
    assert said == [("open", [0, 1, 2, 3], 4), [0, 1, 2, 3], [0, 1, None, 3], ("compact", [0, 3]), [0, 3], [0, 3]]
    assert ends(search) == [("finished", 4), ("pruned", 2), ("pruned", 1), ("finished", 4)]
    assert [search.trials[i].reason for i in (0, 1)] == ["all 4 epochs", "below the others at epoch 2"]
    assert [(line["t"], line["loss"]) for line in search.trials[1].curve] == [(1, 3.0), (2, 4.5)]
    assert search.asha.recorded == [{}, {0: -4.0, 1: -4.5, 3: -2.0}, {0: -4.0, 1: -3.0, 2: -5.0, 3: -2.0}]
    assert (search.groups[0].engine, search.groups[0].over) == (None, True)


def test_a_freed_slot_goes_to_the_next_that_waits(on):
    search, said = on(steady(4.0, 5.0, 3.0, 6.0), at_once=2)
    search.run()
    assert said == [("open", [0, 1], 4), [0, 1], [0, 2], [0, 2], [0, 2], [3, 2]]
    assert ends(search) == [("finished", 4), ("pruned", 1), ("finished", 4), ("pruned", 1)]


def test_a_short_recipe_is_whole_before_the_searchs_last_epoch(on):
    search, said = on(steady(4.0, 5.0), trials=2, epochs=3)
    search.run()
    assert said[0] == ("open", [0, 1], 3)
    assert ends(search) == [("finished", 3), ("pruned", 1)]
    assert search.asha.recorded == [{}, {0: -4.0}, {0: -4.0, 1: -5.0}]


def test_what_becomes_of_trials_that_end_badly(on):
    wild = {(1, 2): Diverged("loss is nan"), (2, 1): RuntimeError("a bolt"), (3, 1): float("nan")}
    search, _ = on(lambda i, t: wild.get((i, t), 1.0))
    search.run()
    assert ends(search) == [("finished", 4), ("diverged", 1), ("failed", 0), ("diverged", 0)]
    assert [t.reason for t in search.trials[1:]] == [
        "epoch 2: loss is nan", "epoch 1: RuntimeError: a bolt", "epoch 1: loss is nan on the validation split",
    ]  # fmt: skip


def noisy(trial, t):
    """Trial 1 is steady, the others are lucky at their last look of four."""
    return 3.0 if trial == 1 else (5.0, 4.0, 6.0, 2.0 + trial / 10)[t - 1]


def test_halving_goes_by_single_looks_whatever_a_trial_is_judged_by(on):
    found = []
    for looks in (1, 3):
        search, said = on(noisy, folder=f"over{looks}", judge_over=looks, grace=2)
        search.run()
        found.append((ends(search), search.asha.recorded, said, best_trial(search.trials, search.search.space).index))
    assert found[0][:3] == found[1][:3]
    assert ends(search) == [("finished", 4), ("finished", 4), ("pruned", 2), ("finished", 4)]
    assert [index for *_, index in found] == [0, 1]


@pytest.mark.parametrize("stacked", [True, False])
def test_where_nobody_is_pruned_all_come_to_their_end_after_a_stop_too(on, stacked):
    """Six epochs, where halving would have ended at four; the slots are given on when a trial is whole."""
    search, _ = on(steady(4.0, 5.0, 3.0, 6.0), at_once=2, epochs=6, stacked=stacked, pruned=False)
    search.session = replace(search.session, listen=lambda event: stopping(event, search))
    with pytest.raises(Enough):
        search.run()
    again, _ = on(steady(4.0, 5.0, 3.0, 6.0), at_once=2, epochs=6, stacked=stacked, pruned=False)
    again.load()
    assert [t.t for t in again.trials] == [3, 2, 0, 0]
    again.run()
    assert ends(again) == [("finished", 6)] * 4
    assert again.asha.recorded == [{}]
    assert [line["t"] for line in again.trials[1].curve] == [1, 2, 3, 4, 5, 6]


class Enough(BaseException):
    pass


def stopping(event, search):
    """Killed after a save, inside the third epoch's verdicts."""
    if event["trial"].t == 3:
        search.save()
        raise Enough


def test_a_metric_that_the_task_has_not(on, monkeypatch):
    search, _ = on(steady(1.0, 1.0), trials=2)
    search.search = replace(search.search, space=replace(search.search.space, metric="psnr"))
    with pytest.raises(KoopsimError, match="The task reports no 'psnr'; it has train_loss, loss"):
        search.run()


# ---------------------------------------------------------------- room


def groups(search):
    return [list(g.waiting) for g in search.groups]


def test_groups_take_turns_an_epoch_each(on):
    search, said = on(lambda i, t: 1.0, trials=5, batches=(8, 16))
    first, second = groups(search)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    keys = [{stack_key(search.trials[i].run) for i in own} for own in (first, second)]
    assert [len(k) for k in keys] == [1, 1]
    assert keys[0] != keys[1]
    search.run()
    assert said[:4] == [("open", first, 4), first, ("open", second, 4), second]
    assert said[4:] == [first, second] * 3


def test_side_by_side_the_groups_share_what_there_is(on):
    search, said = on(lambda i, t: 1.0, trials=7, batches=(8, 16), stacked=False, at_once=3)
    first, second = groups(search)
    search.run()
    assert said[0][1] == first[:2]  # two of three places, for it comes first
    assert said[2][1] == second[:1]
    assert all(sum(i is not None for i in epoch) <= 3 for epoch in said if isinstance(epoch, list))
    assert {status for status, _ in ends(search)} == {"finished"}


@pytest.mark.parametrize(("at_once", "rooms"), [(4, [2, 2]), (5, [3, 2]), (1, [1, 0]), (2, [1, 1])])
def test_the_first_group_has_what_is_left_over(on, at_once, rooms):
    search, _ = on(lambda i, t: 1.0, trials=7, batches=(8, 16), stacked=False, at_once=at_once)
    assert [search._room(g) for g in search.groups] == rooms
    search.groups[0].slots = [search.groups[0].waiting.popleft()]  # one of it trains: there is room for one less
    assert [search._room(g) for g in search.groups] == [rooms[0] - 1, min(rooms[1], at_once - 1)]


def test_a_group_that_comes_to_its_end_leaves_its_places_to_the_other(on, monkeypatch):
    """Trials of the smaller group are pruned at once; the other has all four places then."""
    search, said = on(lambda i, t: 1.0, trials=14, batches=(8, 16), stacked=False, at_once=4)
    small = min(groups(search), key=len)
    monkeypatch.setattr(Beside, "loss", staticmethod(lambda i, t: 9.0 if i in small else 1.0))
    search.run()
    large = [[i for i in epoch if i not in small] for epoch in said if isinstance(epoch, list)]
    assert max(sum(i is not None for i in epoch) for epoch in large) == 4
    assert {(search.trials[i].status, search.trials[i].t) for i in range(14) if i not in small} == {("finished", 4)}


def test_a_stack_that_does_not_fit_is_halved_and_the_rest_waits(on):
    search, said = on(lambda i, t: 1.0, trials=5, most=2)
    search._open(search.groups[0])
    assert said == [("open", [0, 1], 4)]
    assert list(search.groups[0].waiting) == [2, 3, 4]
    assert [t.status for t in search.trials] == ["running"] * 2 + ["waiting"] * 3
    search.run()
    assert {status for status, _ in ends(search)} == {"finished"}


def test_one_that_does_not_fit_alone_has_failed_unless_somebody_is_in_its_way(on):
    search, said = on(lambda i, t: 1.0, trials=3, most=0)
    search._open(search.groups[0])
    assert ends(search) == [("failed", 0), ("waiting", 0), ("waiting", 0)]
    assert search.trials[0].reason == "too large for the device's memory"
    assert said == []
    other, _ = on(lambda i, t: 1.0, trials=6, batches=(8, 16), most=0)
    first, second = other.groups
    first.slots = [first.waiting.popleft()]
    began = list(second.waiting)
    other._open(second)
    assert list(second.waiting) == began  # it waits for the others' memory
    assert {other.trials[i].status for i in began} == {"waiting"}


def test_a_trial_whose_bandwidth_cannot_be_settled_is_over_at_once(on, monkeypatch):
    search, said = on(lambda i, t: 1.0, trials=5, at_once=2)

    def settled(trial, task, device):
        if trial.index in (0, 3, 4):
            raise ValueError("no median of nothing")
        return trial.run

    monkeypatch.setattr(local, "settled", settled)
    search.run()
    assert said[0] == ("open", [1, 2], 4)
    assert ends(search) == [("failed", 0), ("finished", 4), ("finished", 4), ("failed", 0), ("failed", 0)]
    assert search.trials[3].reason == "no median of nothing"


def test_the_longest_of_all_that_may_come_decides_how_many_epochs_there_is_room_for(on):
    search, said = on(lambda i, t: 1.0, trials=3, at_once=1, epochs=2)
    longer = replace(search.trials[2].run, recipe=replace(search.trials[2].run.recipe, epochs=3))
    search.trials[2].run = longer
    search._open(search.groups[0])
    assert said == [("open", [0], 3)]


# ---------------------------------------------------------------- where it stands


def test_what_is_saved_is_found_again(on):
    losses = steady(4.0, 5.0, 3.0, 6.0)
    search, _ = on(losses, at_once=2)
    heard = []

    def listen(event):
        heard.append(event["trial"].index)
        if len(heard) == 4:
            search.save()  # inside the second epoch's verdicts
            raise Enough

    search.session = replace(search.session, listen=listen)
    with pytest.raises(Enough):
        search.run()
    again, said = on(losses, at_once=2)
    again.load()
    group = again.groups[0]
    assert (group.slots, list(group.waiting), group.engine.ages) == ([0, 2], [3], [2, 1])
    assert again.asha.recorded == search.asha.recorded
    assert said == [("open", [0, 2], 4)]
    assert again.elapsed >= search.trials[0].curve[-1]["seconds"]
    assert [t.t for t in again.trials] == [2, 1, 1, 0]


def test_a_free_slot_stays_free(on):
    search, _ = on(lambda i, t: 1.0)
    search._open(search.groups[0])
    engine, group = search.groups[0].engine, search.groups[0]
    engine.stop(1)
    group.slots[1] = None
    search.trials[1].end("pruned", "so")
    engine.ages = [3, 0, 3, 3]
    search.save()
    again, said = on(lambda i, t: 1.0)
    again.load()
    own = again.groups[0]
    assert (own.slots, own.engine.ages) == ([0, None, 2, 3], [3, 0, 3, 3])
    assert [r and r.seed for r in own.engine.runs] == [0, None, 2, 3]
    assert own.running == [(0, 0), (2, 2), (3, 3)]
    assert said == [("open", [0, 0, 2, 3], 4)]


def test_a_finished_search_has_nothing_left_to_open(on):
    search, _ = on(lambda i, t: 1.0)
    search.run()
    again, said = on(lambda i, t: 1.0)
    again.load()
    assert (again.groups[0].slots, again.groups[0].engine, said) == ([], None, [])
    assert again.run() == again.trials
    assert said == []


def test_nothing_was_saved_yet(on):
    search, _ = on(lambda i, t: 1.0)
    search.load()
    assert [t.status for t in search.trials] == ["waiting"] * 4
    other, _ = on(lambda i, t: 1.0, folder="t", batches=(8, 16))
    other.save()
    alone, _ = on(lambda i, t: 1.0, folder="t", batches=(8, 16))
    alone.groups.pop()
    with pytest.raises(KoopsimError, match="has 2 groups of equal shapes and this one 1: the model must stay"):
        alone.load()


# ---------------------------------------------------------------- how many go together


class AnyTask:
    names, streamed, fast_alone = ("a", "b"), False, ("bf16",)

    def __init__(self, each=None):
        self.each = each

    def bytes_of(self, run):
        return self.each


@pytest.mark.parametrize(
    ("engine", "at_once", "each", "room"),
    [
        ("stacked", None, None, STACK_ON["cpu"]), ("stacked", 5, None, 5), ("separate", None, None, BESIDE_ON["cpu"]),
        ("separate", 5, None, 5), ("stacked", 50, 10, 30), ("stacked", 20, 10, 20),
        ("auto", None, None, STACK_ON["cpu"]),
    ],
)  # fmt: skip
def test_how_many_runs_may_train_at_a_time(monkeypatch, engine, at_once, each, room):
    monkeypatch.setattr(packing, "fitting", lambda size, device: {20: 30}[size])  # ten bytes for each of two names
    search = asked(engine=engine)
    own = SlotsOf(search, AnyTask(each), Session(CPU))
    assert own.room(search.base, at_once) == room
    assert own.stacks(search.base) is (engine != "separate")


@pytest.mark.parametrize(
    ("name", "device", "precision", "stacks"),
    [
        ("copy/sim-single", "cpu", "float32", True),
        ("digits/sim-single", "cpu", "float32", False),  # convolutions in groups, one for each trial, are slow there
        ("digits/sim-single", "cuda", "float32", True),
        ("digits/sim-single", "cuda", "bf16", False),  # kernels of its own
        ("digits/mondeq-single", "cuda", "float32", False),
    ],
)
def test_which_trials_are_faster_in_a_stack(name, device, precision, stacks):
    run = replace(run_of(name), precision=precision)
    assert better_stacked(run, AnyTask(), torch.device(device)) is stacks


def test_what_cannot_be_stacked_says_so(monkeypatch):
    monkeypatch.setattr(packing, "stackable", lambda run: False)
    monkeypatch.setattr(packing, "better_stacked", lambda run, task, device: False)
    for engine, stacks in (("separate", False), ("auto", False)):
        assert SlotsOf(asked(engine=engine), AnyTask(), Session(CPU)).stacks(asked().base) is stacks
    with pytest.raises(KoopsimError, match="These trials cannot be stacked"):
        SlotsOf(asked(engine="stacked"), AnyTask(), Session(CPU)).stacks(asked().base)


def test_runs_that_share_a_stack_differ_in_what_a_slot_has():
    search = asked()
    run = search.base
    key = stack_key(run)

    def recipe(**changed):
        return replace(run, recipe=replace(run.recipe, **changed))

    for same in (replace(run, seed=9), recipe(learning_rate=0.5), recipe(epochs=99), recipe(schedule="cosine")):
        assert stack_key(same) == key
    for other in (recipe(batch_size=3), recipe(average=0.5), replace(run, precision="float32")):
        assert stack_key(other) != key
    decays = {stack_key(recipe(weight_decay=w)) for w in (0.1, 0.2, 5.0)}
    assert len(decays) == 1
    assert decays != {stack_key(recipe(weight_decay=0.0))}
