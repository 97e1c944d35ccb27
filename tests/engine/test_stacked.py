"""A trial in a stack against the same trial alone: the fast path and its readable twin."""

from dataclasses import replace

import pytest
import torch
from small_search import CPU, epoch, tiny_run, trained_alone

from koopsim.engine.beside import Beside
from koopsim.engine.part import Way
from koopsim.engine.slots import Diverged
from koopsim.engine.stacked import Stacked
from koopsim.searching.space import with_values
from koopsim.searching.stacking import stack_key, stackable
from koopsim.tasks import build_task

NAMES = ["copy/sim-single", "copy/sim-two", "digits/sim-single", "digits/sim-two"]
# bandwidths wide enough that rounding is not amplified: a stack adds in another order
OWN = [
    {"recipe.learning_rate": 1e-3, "recipe.schedule": "constant", "recipe.epochs": 3},
    {"recipe.learning_rate": 1e-2, "recipe.schedule": "step", "recipe.step_size": 1, "recipe.epochs": 2},
    {"recipe.learning_rate": 4e-3, "recipe.schedule": "onecycle", "recipe.epochs": 3},
]


def runs_of(name, batch=16, device=CPU, **recipe):
    base = tiny_run(name)
    base = with_values(base, {"recipe.batch_size": batch, **{f"recipe.{k}": v for k, v in recipe.items()}})
    runs = [replace(with_values(base, own), seed=seed) for seed, own in enumerate(OWN)]
    if base.model.fourier:
        runs = [with_values(r, {"model.fourier.bandwidth": b}) for r, b in zip(runs, (20.0, 5.0, 50.0), strict=True)]
    return runs, build_task(base.task, device)


def weights_alone(run, task, epochs, device=CPU):
    trainer, lines = trained_alone(run, task, epochs, device)
    return trainer.part.members.model(0).state_dict(), lines


def weights_of(stack, slot):
    return stack.part.members.model(slot).state_dict()


def beside_of(runs, task, device=CPU, epochs=7, takes_over=True):
    return Beside(runs, lambda run: Stacked([run], task, device, epochs), lambda run: takes_over)


def close(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_in_a_stack_gives_the_numbers_it_gives_alone(name):
    runs, task = runs_of(name)
    stack = Stacked(runs, task, CPU, epochs=3)
    assert stack.part.feed.n % stack.part.feed.size, "the last batch of an epoch must be a smaller one here"
    curves = [[], [], []]
    for _ in range(2):
        epoch(stack)
        for slot in range(3):
            curves[slot].append(stack.figures(slot))
    for slot, run in enumerate(runs):
        weights, lines = weights_alone(run, task, 2)
        close(weights_of(stack, slot), weights, rtol=1e-6, atol=1e-8)
        for found, expected in zip(curves[slot], lines, strict=True):
            assert found == pytest.approx(expected, rel=1e-6)
    assert any("running_var" in key for key in weights) == name.startswith("digits")  # BatchNorm is among them


def test_averages_of_weights_and_statistics_are_the_trials_own():
    runs, task = runs_of("digits/sim-single", average=0.8)
    stack = Stacked(runs, task, CPU, epochs=3)
    epoch(stack)
    figures = [stack.figures(slot) for slot in range(3)]
    for slot, run in enumerate(runs):
        weights, lines = weights_alone(run, task, 1)
        close(weights_of(stack, slot), weights, rtol=1e-6, atol=1e-8)
        assert figures[slot] == pytest.approx(lines[0], rel=1e-6)


def test_augmentation_smoothing_and_decay_are_the_trials_own():
    runs, task = runs_of("digits/sim-single", flip=True, shift=1, cutout=2, rotate=10.0, zoom=0.1, label_smoothing=0.1)
    runs[1] = with_values(runs[1], {"recipe.weight_decay": 0.1})
    stack = Stacked(runs, task, CPU, epochs=3)
    epoch(stack)
    for slot, run in enumerate(runs):
        weights, _ = weights_alone(run, task, 1)
        close(weights_of(stack, slot), weights, rtol=1e-6, atol=1e-8)


def test_a_new_trial_in_a_freed_slot_and_closed_ranks_change_nothing():
    runs, task = runs_of("copy/sim-two")
    stack = Stacked(runs, task, CPU, epochs=3)
    epoch(stack)
    stack.stop(1)
    stack.start(1, replace(runs[1], seed=9))  # one epoch younger than its neighbours
    epoch(stack)
    stack.stop(0)
    stack.compact([1, 2])
    epoch(stack)
    close(weights_of(stack, 0), weights_alone(replace(runs[1], seed=9), task, 2)[0], rtol=1e-6, atol=1e-8)
    close(weights_of(stack, 1), weights_alone(runs[2], task, 3)[0], rtol=1e-6, atol=1e-8)


def test_a_diverged_trial_disturbs_nobody():
    runs, task = runs_of("copy/sim-single")
    runs[0] = with_values(runs[0], {"recipe.learning_rate": 1e30, "recipe.clip_norm": None})
    runs = [with_values(run, {"recipe.clip_norm": None}) for run in runs]
    stack = Stacked(runs, task, CPU, epochs=3)
    epoch(stack)
    with pytest.raises(Diverged, match="the loss became"):
        stack.figures(0)
    close(weights_of(stack, 1), weights_alone(runs[1], task, 1)[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["digits/sim-two", "copy/sim-two"])
def test_features_in_the_lifts_own_units_are_stacked_too(name):
    runs, task = runs_of(name)
    runs = [with_values(run, {"model.fourier.normalise": True, "model.fourier.bandwidth": 1.0}) for run in runs]
    stack = Stacked(runs, task, CPU, epochs=3)
    epoch(stack)
    for slot, run in enumerate(runs):
        weights, lines = weights_alone(run, task, 1)
        close(weights_of(stack, slot), weights, rtol=1e-6, atol=1e-8)
        assert stack.figures(slot)["loss"] == pytest.approx(lines[0]["loss"])


def test_side_by_side_is_alone_bit_for_bit():
    runs, task = runs_of("digits/sim-two")
    beside = beside_of(runs, task)
    epoch(beside)
    for slot, run in enumerate(runs):
        weights, lines = weights_alone(run, task, 1)
        close(weights_of(beside.parts[slot], 0), weights, rtol=0, atol=0)
        assert beside.figures(slot) == lines[0]


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_trial_that_takes_over_a_trainer_is_alone_bit_for_bit(average):
    """After one that diverged, with another bandwidth, schedule and length."""
    runs, task = runs_of("digits/sim-two")
    runs = [with_values(run, {"recipe.average": average}) for run in runs]
    later = {
        "recipe.epochs": 7,
        "recipe.schedule": "cosine",
        "model.fourier.bandwidth": 3.0,
        "recipe.learning_rate": 2e-3,
    }
    new = replace(with_values(runs[1], later), seed=11)
    beside = beside_of(runs[:2], task)
    first = beside.parts[0]
    first.part.members.flat.fill_(torch.nan)
    epoch(beside)
    with pytest.raises(Diverged):
        beside.figures(0)
    beside.stop(0)
    beside.start(0, new)
    assert beside.parts[0] is first
    assert beside.ages == [0, 1]
    epoch(beside)
    weights, lines = weights_alone(new, task, 1)
    close(weights_of(first, 0), weights, rtol=0, atol=0)
    assert beside.figures(0) == lines[0]


def test_after_a_crash_or_a_solver_the_next_trial_begins_anew():
    runs, task = runs_of("digits/sim-two")
    beside = beside_of(runs, task)
    first, second = beside.parts[:2]
    beside.errors[1] = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        beside.figures(1)
    beside.stop(1)
    beside.start(1, runs[1])
    assert beside.parts[1] is not second
    beside.takes_over = lambda run: False
    beside.stop(0)
    beside.start(0, runs[0])
    assert beside.parts[0] is not first


def test_side_by_side_everybody_gets_a_few_steps_at_a_time(monkeypatch):
    runs, task = runs_of("digits/sim-two")
    beside, turns = beside_of(runs, task), []
    advance = Stacked.advance

    def noted(self, first, last):
        turns.append((self.runs[0].seed, first, last))
        advance(self, first, last)

    monkeypatch.setattr(Stacked, "advance", noted)
    beside.begin_epoch()
    beside.advance(1, 7)
    assert turns == [(seed, *steps) for steps in ((1, 5), (5, 7)) for seed in range(3)]


@pytest.mark.parametrize(("capture", "expected"), [(False, [True, True]), (True, [False, True])])
def test_ranks_close_when_that_pays(capture, expected):
    runs, task = runs_of("copy/sim-single")
    stack = Stacked(runs, task, CPU, epochs=3, way=Way(capture=False))
    stack.part.capture = capture
    assert not stack.sparse
    found = []
    for slot in (0, 2):
        stack.stop(slot)
        found.append(stack.sparse)
    assert found == expected


def test_pictures_are_judged_by_their_mean():
    run = tiny_run("image/sim-two", precision="float32")
    task = build_task(run.task, CPU)
    figures = trained_alone(run, task, 1)[1][0]
    each = [figures[f"psnr/{name}"] for name in task.names]
    assert len(each) == 2
    assert figures["psnr"] == pytest.approx(sum(each) / 2)
    assert figures["psnr"] < 60


def test_what_can_share_a_stack():
    run = tiny_run("copy/sim-two")
    same = [{"recipe.learning_rate": 0.3}, {"recipe.epochs": 9}, {"recipe.schedule": "step"}]
    same += [{"model.fourier.bandwidth": 7.0}, {"seed": 5}]
    other = [
        {"recipe.weight_decay": 0.1},
        {"recipe.batch_size": 3},
        {"model.lift_dim": 16},
        {"recipe.clip_norm": 0.1},
        {"precision": "float32"},
    ]
    assert all(stack_key(with_values(run, change)) == stack_key(run) for change in same)
    assert all(stack_key(with_values(run, change)) != stack_key(run) for change in other)
    decaying = [stack_key(with_values(run, {"recipe.weight_decay": d})) for d in (0.1, 0.2)]
    assert decaying[0] == decaying[1]
    assert stackable(run)
    assert stackable(replace(run, recipe=replace(run.recipe, average=0.9)))
    picture = tiny_run("image/sim-single")
    assert stackable(picture)
    assert stackable(replace(picture, recipe=replace(picture.recipe, average=0.9)))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_captured_stack_is_the_eager_one(name):
    cuda = torch.device("cuda")
    runs, task = runs_of(name, device=cuda)
    eager, captured = (Stacked(runs, task, cuda, epochs=3, way=Way(capture=capture)) for capture in (False, True))
    for stack in (eager, captured):
        epoch(stack)
        stack.stop(0)
        stack.start(0, replace(runs[0], seed=9))
        epoch(stack)
    for slot in range(3):
        expected = weights_of(eager, slot)
        close(weights_of(captured, slot), expected, rtol=1e-6, atol=1e-8)
    weights, _ = weights_alone(runs[1], task, 2, cuda)
    close(weights_of(captured, 1), weights, rtol=1e-5, atol=1e-7)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_was_captured_serves_the_next_trial():
    cuda = torch.device("cuda")
    runs, task = runs_of("digits/sim-two", device=cuda)
    new = replace(with_values(runs[1], {"recipe.epochs": 3, "model.fourier.bandwidth": 3.0}), seed=11)
    beside = beside_of(runs[:1], task, cuda)
    graphs = list(beside.parts[0].part._graphs.values())
    epoch(beside)
    beside.figures(0)
    beside.stop(0)
    beside.start(0, new)
    epoch(beside)
    torch.cuda.synchronize()
    assert list(beside.parts[0].part._graphs.values()) == graphs
    weights, lines = weights_alone(new, task, 1, cuda)
    close(weights_of(beside.parts[0], 0), weights, rtol=1e-3, atol=1e-4)
    assert beside.figures(0)["train_loss"] == pytest.approx(lines[0]["train_loss"], rel=1e-3)
