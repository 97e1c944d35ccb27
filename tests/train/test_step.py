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
