import threading
from dataclasses import replace

import pytest
import torch

from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.presets import run_of
from koopsim.train import prepare

CPU = torch.device("cpu")


def small(name="copy/sim-single", **recipe):
    run = run_of(name)
    if name.startswith("copy/sim"):
        run = replace(
            run, model=replace(run.model, lift=TCNConfig(levels=3, channels=4, kernel=3), lift_dim=8, hidden=8)
        )
    task = CopyMemoryConfig(horizon=5, train=23, valid=2, test=3)
    return replace(run, task=task, recipe=replace(run.recipe, batch_size=10, epochs=3, **recipe))


def test_every_sample_is_seen_once_an_epoch_in_a_new_order():
    _, trainer = prepare(small(), CPU)
    assert trainer.steps_per_epoch == 3  # 10 + 10 + 5
    first = trainer.order.clone()
    trainer.start_epoch(1)
    assert sorted(first.tolist()) == sorted(trainer.order.tolist()) == list(range(25))
    assert not torch.equal(first, trainer.order)


def test_an_epoch_is_the_plain_loop():
    """The trainer against ten lines anyone would write: torch.optim.Adam, clip_grad_norm_, slices of the order."""
    run = replace(small(learning_rate=0.01, clip_norm=0.5), precision="float64")
    task, trainer = prepare(run, CPU)
    _, twin = prepare(run, CPU)
    model = twin.model
    adam = torch.optim.Adam(model.parameters(), lr=0.01, eps=run.recipe.eps)
    trainer.run(0, 3)
    losses = []
    for rows in trainer.order.split(10):
        adam.zero_grad()
        loss = task.loss(model(twin.x[rows]), twin.y[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        losses.append(loss.detach())
    torch.testing.assert_close(trainer.losses, torch.stack(losses))
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_the_deq_reports_on_its_solver():
    _, trainer = prepare(small("copy/deq"), CPU)
    with pytest.warns(UserWarning, match="solve left"):
        trainer.model.deq.max_steps = 2
        trainer.run(0, 2)
    assert float(trainer.diagnostics["unconverged"]) == 2.0  # both steps, all samples
    assert {"solver_steps", "residual", "backward_solver_steps"} <= trainer.diagnostics.keys()


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16", "tf32"])
def test_precisions_train(precision):
    _, trainer = prepare(replace(small(), precision=precision), CPU)
    trainer.run(0, 3)
    assert bool(trainer.losses.isfinite().all())
    assert trainer.adam.flat.dtype == (torch.float64 if precision == "float64" else torch.float32)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", ["copy/sim-single", "copy/sim-two", "copy/deq"])
def test_the_captured_step_is_the_eager_step(name):
    run = small(name)
    states = []
    for capture in (False, True):
        _, trainer = prepare(run, torch.device("cuda"), capture=capture)
        trainer.run(0, 3)
        trainer.start_epoch(1)
        trainer.run(0, 3)
        states.append(trainer)
    eager, captured = states
    torch.testing.assert_close(captured.losses, eager.losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(captured.adam.flat, eager.adam.flat, rtol=1e-2, atol=1e-3)
    assert captured.counters.tolist() == eager.counters.tolist() == [6, 3]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_trainers_on_streams_of_their_own_do_not_disturb_each_other():
    run = run_of("copy/sim-two")
    run = replace(run, task=replace(run.task, train=300, valid=20, test=10))
    alone, *together = (prepare(run, torch.device("cuda"))[1] for _ in range(6))
    alone.run(0, 320)
    streams = [torch.cuda.Stream() for _ in together]
    for trainer in together:
        trainer.warm_up()
    torch.cuda.synchronize()

    def train(trainer, stream):
        with torch.cuda.stream(stream):
            trainer.run(0, 320)

    threads = [threading.Thread(target=train, args=pair) for pair in zip(together, streams, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for trainer in together:
        torch.testing.assert_close(trainer.losses, alone.losses, rtol=1e-2, atol=1e-3)


def test_the_result_is_the_average_of_the_weights():
    """Against the sum written out: of w_s with weight decay^(t - s), running statistics included."""
    run = run_of("digits/sim-single")
    run = replace(run, precision="float64", task=replace(run.task, train=200, test=20))
    _, trainer = prepare(replace(run, recipe=replace(run.recipe, average=0.7)), CPU)
    assert trainer.result() is trainer.model  # nothing to average yet
    weights = [0.7**3, 0.7**2, 0.7, 1.0]
    expected = {name: torch.zeros_like(t) for name, t in trainer.model.state_dict().items()}
    for position, weight in enumerate(weights):
        trainer.run(position, position + 1)
        for name, now in trainer.model.state_dict().items():
            if now.is_floating_point():
                expected[name] += weight / sum(weights) * now
    averaged = trainer.result().state_dict()
    for name, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(averaged[name], value, msg=name)
            assert not torch.equal(averaged[name], trainer.model.state_dict()[name]) or name == "psi.frequencies"


@pytest.mark.parametrize("name", ["cifar10/sim-single:best", "mnist/sim-single:best"])  # the second turns and zooms
def test_augmentation_and_averaging_survive_a_resume(name, tmp_path):
    from koopsim.train.state import Position, load_checkpoint, load_model, save_checkpoint

    run = run_of(name, "smoke")
    run = replace(run, task=replace(run.task, train=200, test=20))
    _, whole = prepare(run, CPU)
    whole.run(0, 5)
    _, cut = prepare(run, CPU)
    cut.run(0, 3)
    save_checkpoint(tmp_path / "c", cut, Position(0, 3, 1.0))
    torch.manual_seed(99)
    _, resumed = prepare(replace(run, seed=0), CPU)
    load_checkpoint(tmp_path / "c", resumed)
    resumed.run(3, 5)
    assert torch.equal(whole.losses, resumed.losses)
    assert all(torch.equal(a, b) for a, b in zip(whole.averaged.values(), resumed.averaged.values(), strict=True))
    model = resumed.model
    load_model(tmp_path / "c", model)  # what is loaded to be judged is the average
    judged = cut.result().state_dict()
    assert all(torch.equal(t, judged[name]) for name, t in model.state_dict().items())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("name", ["cifar10/sim-two:best", "digits/mondeq-single", "digits/mondeq-multi"])
def test_the_captured_step_of_classification_is_the_eager_step(name, precision):
    run = replace(run_of(name, "smoke"), precision=precision)
    states = []
    for capture in (False, True):
        _, trainer = prepare(run, torch.device("cuda"), capture=capture)
        trainer.tune()
        trainer.run(0, 6)
        states.append(trainer)
    eager, captured = states
    torch.testing.assert_close(captured.losses, eager.losses, rtol=5e-3, atol=1e-3)
    torch.testing.assert_close(captured.adam.flat, eager.adam.flat, rtol=5e-2, atol=5e-3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bfloat16_and_float32_learn_alike():
    """The fused stages in bf16 against PyTorch's layers in float32: the same loss after an epoch, to a few percent."""
    losses = []
    for precision in ("float32", "bf16"):
        run = run_of("digits/sim-single")
        _, trainer = prepare(replace(run, precision=precision), torch.device("cuda"))
        for epoch in range(2):
            trainer.start_epoch(epoch)
            trainer.run(0, trainer.steps_per_epoch)
        losses.append(float(trainer.losses.mean()))
    assert losses[1] == pytest.approx(losses[0], rel=0.15)
