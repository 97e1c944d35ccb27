import threading
from dataclasses import replace

import pytest
import torch

from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked, untrained
from koopsim.presets import run_of
from koopsim.tasks import build_task

CPU = torch.device("cpu")


def one(run, device=CPU, capture=None):
    """A run of P = 1 at the beginning of its first epoch."""
    slots = Stacked([run], build_task(run.task, device), device, run.recipe.epochs, Way(capture=capture))
    slots.begin_epoch()
    return slots


def model_of(slots):
    return slots.part.members.template


def next_epoch(slots):
    slots.finish_epoch()
    slots.begin_epoch()


def small(name="copy/sim-single", **recipe):
    run = run_of(name)
    if name.startswith("copy/sim"):
        run = replace(
            run, model=replace(run.model, lift=TCNConfig(levels=3, channels=4, kernel=3), lift_dim=8, hidden=8)
        )
    task = CopyMemoryConfig(horizon=5, train=23, valid=2, test=3)
    return replace(run, task=task, recipe=replace(run.recipe, batch_size=10, epochs=3, **recipe))


def test_every_sample_is_seen_once_an_epoch_in_a_new_order():
    slots = one(small())
    assert slots.epoch_steps == 3  # 10 + 10 + 5
    order = slots.part.feed.order
    first = order[0].clone()
    next_epoch(slots)
    assert sorted(first.tolist()) == sorted(order[0].tolist()) == list(range(25))
    assert not torch.equal(first, order[0])


def test_an_epoch_is_the_plain_loop():
    """The engine against ten lines anyone would write: torch.optim.Adam, clip_grad_norm_, slices of the order."""
    run = replace(small(learning_rate=0.01, clip_norm=0.5), precision="float64")
    slots, model = one(run), untrained(run, run.seed, CPU)
    task, (x, y) = slots.task, slots.task.split(run.train_on)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, eps=run.recipe.eps)
    slots.advance(0, 3)
    losses = []
    for rows in slots.part.feed.order[0].split(10):
        adam.zero_grad()
        loss = task.loss(model(x[rows]), y[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        losses.append(loss.detach())
    torch.testing.assert_close(slots.losses(0)[0], torch.stack(losses))
    for a, b in zip(model_of(slots).parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_the_deq_reports_on_its_solver():
    slots = one(small("copy/deq"))
    with pytest.warns(UserWarning, match="solve left"):
        model_of(slots).deq.max_steps = 2
        slots.advance(0, 2)
    said = slots.part.gradients.diagnostics
    assert float(said["unconverged"]) == 2.0  # both steps, all samples
    assert {"solver_steps", "residual", "backward_solver_steps"} <= said.keys()


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16", "tf32"])
def test_precisions_train(precision):
    slots = one(replace(small(), precision=precision))
    slots.advance(0, 3)
    assert bool(slots.losses(0).isfinite().all())
    assert slots.part.members.flat.dtype == (torch.float64 if precision == "float64" else torch.float32)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", ["copy/sim-single", "copy/sim-two", "copy/deq"])
def test_the_captured_step_is_the_eager_step(name):
    run = small(name)
    states = []
    for capture in (False, True):
        slots = one(run, torch.device("cuda"), capture)
        slots.advance(0, 3)
        next_epoch(slots)
        slots.advance(0, 3)
        states.append(slots.part.members)
    eager, captured = states
    torch.testing.assert_close(captured.losses, eager.losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(captured.flat, eager.flat, rtol=1e-2, atol=1e-3)
    assert captured.steps.tolist() == eager.steps.tolist() == [6]
    assert captured.positions.tolist() == eager.positions.tolist() == [3]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_trainers_on_streams_of_their_own_do_not_disturb_each_other():
    run = run_of("copy/sim-two")
    run = replace(run, task=replace(run.task, train=300, valid=20, test=10))
    alone, *together = (one(run, torch.device("cuda")) for _ in range(6))
    alone.advance(0, 320)
    streams = [torch.cuda.Stream() for _ in together]
    for trainer in together:
        trainer.warm_up()
    torch.cuda.synchronize()

    def train(trainer, stream):
        with torch.cuda.stream(stream):
            trainer.advance(0, 320)

    threads = [threading.Thread(target=train, args=pair) for pair in zip(together, streams, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for trainer in together:
        torch.testing.assert_close(trainer.losses(0), alone.losses(0), rtol=1e-2, atol=1e-3)


def test_the_result_is_the_average_of_the_weights():
    """Against the sum written out: of w_s with weight decay^(t - s), running statistics included."""
    run = run_of("digits/sim-single")
    run = replace(run, precision="float64", task=replace(run.task, train=200, test=20))
    slots = one(replace(run, recipe=replace(run.recipe, average=0.7)))
    model, members = model_of(slots), slots.part.members
    for name, now in members.model(0).state_dict().items():  # nothing to average yet
        assert torch.equal(now, model.state_dict()[name])
    weights = [0.7**3, 0.7**2, 0.7, 1.0]
    expected = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
    for position, weight in enumerate(weights):
        slots.advance(position, position + 1)
        for name, now in model.state_dict().items():
            if now.is_floating_point():
                expected[name] += weight / sum(weights) * now
    averaged = members.model(0).state_dict()
    for name, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(averaged[name], value, msg=name)
            assert not torch.equal(averaged[name], model.state_dict()[name]) or name == "psi.frequencies"


@pytest.mark.parametrize("name", ["cifar10/sim-single:best", "mnist/sim-single:best"])  # the second turns and zooms
def test_augmentation_and_averaging_survive_a_resume(name):
    run = run_of(name, "smoke")
    run = replace(run, task=replace(run.task, train=200, test=20))
    whole, cut = one(run), one(run)
    whole.advance(0, 5)
    cut.advance(0, 3)
    kept = {key: t.clone() for key, t in cut.state().items()}
    torch.manual_seed(99)
    resumed = Stacked([run], build_task(run.task), CPU, run.recipe.epochs)
    resumed.load(kept, [0])
    resumed.advance(3, 5)
    assert all(torch.equal(a, resumed.state()[key]) for key, a in whole.state().items())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("name", ["cifar10/sim-two:best", "digits/mondeq-single", "digits/mondeq-multi"])
def test_the_captured_step_of_classification_is_the_eager_step(name, precision):
    run = replace(run_of(name, "smoke"), precision=precision)
    states = []
    for capture in (False, True):
        slots = one(run, torch.device("cuda"), capture)
        slots.advance(0, 6)
        states.append(slots.part.members)
    eager, captured = states
    torch.testing.assert_close(captured.losses, eager.losses, rtol=5e-3, atol=1e-3)
    torch.testing.assert_close(captured.flat, eager.flat, rtol=5e-2, atol=5e-3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bfloat16_and_float32_learn_alike():
    """The fused stages in bf16 against PyTorch's layers in float32: the same loss after an epoch, to a few percent."""
    losses = []
    for precision in ("float32", "bf16"):
        run = run_of("digits/sim-single")
        slots = one(replace(run, precision=precision), torch.device("cuda"))
        slots.advance(0, slots.epoch_steps)
        next_epoch(slots)
        slots.advance(0, slots.epoch_steps)
        losses.append(float(slots.losses(0).mean()))
    assert losses[1] == pytest.approx(losses[0], rel=0.15)
