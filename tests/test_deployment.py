"""A deployed model is the model: any batch, any thread, one sentence where the input does not fit."""

import threading

import pytest
import torch
from torch import nn

import koopsim
from koopsim.deployment import deploy
from koopsim.errors import KoopsimError
from koopsim.export import example
from koopsim.nn import SIM
from koopsim.presets import PRESETS

SMALL = SIM(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), 8, 2).eval()


def assert_same(answer, model, x, size=1e-5):
    with torch.no_grad():
        want = model(x)
    got = answer(x)
    assert got.shape == want.shape
    assert float((got - want).abs().max()) <= size * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("name", ["digits/sim-single", "digits/mondeq-single", "copy/sim-single"])
def test_any_batch_is_answered_as_the_model_does(name):
    torch.manual_seed(0)
    model = koopsim.build(name).eval()
    x = torch.randn(7, 1, 8, 8) if "mondeq" in name else example(PRESETS[name].model, batch=7)[0]
    answer = deploy(model, [(1, *x.shape[1:]), (4, *x.shape[1:])])
    for batch in (1, 3, 7):
        assert_same(answer, model, x[:batch])
    assert not any(p.requires_grad for p in answer.model.parameters())
    assert any(p.requires_grad for p in model.parameters())


def test_the_model_that_was_deployed_may_change_afterwards():
    model, x = SIM(nn.Linear(3, 4), 4, 2).eval(), torch.randn(5, 3)
    answer = deploy(model, [(1, 3)])
    before = answer(x)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(answer(x), before)


def test_many_threads_get_their_own_answers():
    answer, wrong = deploy(SMALL, [(4, 3)]), []

    def ask(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(3, 3, generator=generator)
            with torch.no_grad():
                if not torch.allclose(answer(x), SMALL(x), atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("shapes", [[], [()], [(0, 3)], [(1, 3), (2, 4)]])
def test_shapes_that_do_not_go_together_are_refused(shapes):
    with pytest.raises(KoopsimError, match="differ in the batch alone"):
        deploy(SMALL, shapes)


@pytest.mark.parametrize("shape", [(2, 4), (3,), (0, 3)])
def test_an_input_of_another_shape_is_refused(shape):
    with pytest.raises(KoopsimError, match="deployed for"):
        deploy(SMALL, [(1, 3)])(torch.zeros(shape))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["cifar10/sim-single", "cifar10/sim-two", "copy/sim-single", "copy/sim-two"])
def test_captured_answers(name, monkeypatch):
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = koopsim.load(name, "cuda").eval()
    x = example(PRESETS[name].model, batch=70, length=520)[0].cuda()
    answer = deploy(model, [(1, *x.shape[1:]), (32, *x.shape[1:])])
    for batch in (1, 2, 31, 32, 33, 70):
        assert_same(answer, model, x[:batch], 1e-4)
    first = answer(x[:1])
    kept = first.clone()
    answer(x[1:2])
    assert torch.equal(first, kept), "an answer must not change when the next one is given"
    wrong = []

    def ask(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for k in range(20):
                row = x[(i + k) % 70].unsqueeze(0).clone()
                got = answer(row)
                with torch.no_grad():
                    want = model(row)
                if not torch.allclose(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max())):
                    wrong.append(i)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_house_names_it():
    assert koopsim.deploy is deploy
