"""A deployed model is the model: any batch, any thread, one sentence where the input does not fit."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import koopsim
from koopsim.deployment import Graph, deploy
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


@pytest.mark.parametrize(
    ("x", "says"),
    [([[1.0, 2, 3]], "is list; expected a tensor"), (np.zeros((1, 3)), "is ndarray; expected a tensor"),
     (None, "is NoneType"), (torch.zeros(()), "deployed for"), (torch.zeros(1, 3, dtype=torch.complex64), "takes")],
)  # fmt: skip
def test_what_is_no_input_is_one_line(x, says):
    with pytest.raises(KoopsimError, match=says):
        deploy(SMALL, [(1, 3)])(x)


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"shapes": [(1, 4)]}, r"does not take inputs of the shape \(batch, 4\): mat1 and mat2"),
     ({"device": "nonsense"}, "The device 'nonsense' cannot be used here"),
     ({"device": "mps"}, "The device 'mps' cannot be used here"),
     ({"device": torch.device("mps")}, "The device 'mps' cannot be used here"),
     ({"autocast": "bf16"}, "autocast is 'bf16'; expected torch.bfloat16"),
     ({"autocast": torch.float32}, "autocast is torch.float32; expected")],
)  # fmt: skip
def test_what_cannot_be_deployed_so_is_one_line(asked, says):
    with pytest.raises(KoopsimError, match=says) as error:
        deploy(SMALL, **({"shapes": [(1, 3)]} | asked))
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_no_room_is_not_said_to_be_the_shapes_fault():
    class Large(nn.Linear):
        def forward(self, input):
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        deploy(Large(3, 2), [(1, 3)])


def test_a_device_that_is_not_here_is_one_line():
    with pytest.raises(KoopsimError, match="The device 'cuda' cannot be used here"):
        deploy(SMALL, [(1, 3)], device="cuda")


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_other_kinds_of_numbers_become_the_models_own(kind):
    x = torch.randn(5, 3).abs().mul(3).to(kind)
    y = deploy(SMALL, [(1, 3)])(x)
    assert y.dtype == torch.float32
    assert_same(lambda x: y, SMALL, x.float())


def test_whole_numbers_stay_whole_where_the_model_takes_them():
    letters = deploy(nn.Sequential(nn.Embedding(300, 2), nn.Linear(2, 2)), [(1, 4)])
    ids = torch.tensor([[0, 1, 255, 9]], dtype=torch.uint8)
    assert torch.equal(letters(ids), letters(ids.long()))
    with pytest.raises(KoopsimError, match=r"An input is of torch.float32; this model takes torch.int64\."):
        letters(ids.float())

    class Looked(nn.Module):  # which turns what it is given into whole numbers itself
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.arange(1000.0).bfloat16())

        def forward(self, x):
            return x.long()

    assert deploy(Looked(), [(1,)])(torch.tensor([997])) == 997  # as bfloat16 it were 996


def test_answers_are_of_the_models_own_kind_whatever_autocast_says():
    x = torch.randn(3, 3)
    for model in (SMALL, nn.Sequential(nn.Linear(3, 2))):
        answer = deploy(model, [(1, 3)], autocast=torch.bfloat16)
        assert answer(x).dtype == torch.float32
        assert_same(answer, model, x, 2e-2)
        assert not torch.equal(answer(x), model(x))  # its products were short all the same
    assert deploy(SMALL, [(1, 3)])(x.requires_grad_()).grad_fn is None


def test_what_inference_mode_made_is_used_outside_of_it():
    with torch.inference_mode():
        answer = deploy(SIM(nn.Linear(3, 4), 4, 2), [(1, 3)])
    x = torch.randn(2, 3, requires_grad=True)
    answer.model(x).sum().backward()
    assert not any(t.is_inference() for t in (*answer.model.parameters(), answer(x)))


class Buffer(list):
    """The input of a graph, which notes how it was written to."""

    def __getitem__(self, rows):
        return self

    def copy_(self, x, non_blocking):
        assert not torch.is_grad_enabled()
        self.append(non_blocking)

    device = torch.device("cpu")


class OnCUDA(list):
    is_cuda = True


def test_a_graph_has_read_a_hosts_tensor_when_it_returns(monkeypatch):
    """As far as a CPU can tell: all that is CUDA's is an empty hand."""
    nothing = SimpleNamespace(replay=lambda: None, record=lambda: None, wait_event=lambda event: None)
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr("torch.cuda.current_stream", lambda: nothing)
    graph = object.__new__(Graph)
    graph.batch, graph.turn, graph.graph, graph.free = 4, threading.Lock(), nothing, nothing
    graph.x, graph.y = Buffer(), torch.zeros(4, 2, requires_grad=True)
    assert not graph(torch.zeros(2, 3, requires_grad=True)).requires_grad
    assert graph.x == [False]
    graph(OnCUDA(range(2)))
    assert graph.x == [False, True]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_answers_to_a_host():
    """Its memory is its own again at once, no gradient grows, and autocast's answers are of one kind."""
    model = koopsim.load("mnist/sim-single", "cuda")
    with torch.inference_mode():
        answer = deploy(model, [(64, 1, 28, 28)])
    x = torch.randn(64, 1, 28, 28)
    given = x.clone().pin_memory()
    y = answer(given)
    given.zero_()
    with torch.no_grad():
        want = model(x.cuda())
    assert float((y - want).abs().max()) <= 2e-2 * float(want.abs().max())
    for _ in range(3):
        assert not answer(x.clone().requires_grad_()).requires_grad
    assert not any(graph.x.requires_grad for graph in answer.graphs)
    short = deploy(model, [(64, 1, 28, 28)], autocast=torch.bfloat16)
    assert {short(x[:n]).dtype for n in (1, 8, 9, 64)} == {torch.float32}


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
