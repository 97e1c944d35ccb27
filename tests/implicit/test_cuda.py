"""What only a GPU can show: a whole training step of a DEQ, solves included, captured in a CUDA graph."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import koopsim
from koopsim.config import CopyMemoryConfig
from koopsim.implicit import DEQ, MultiscaleDEQ, TransformerDEQ, UnconvergedWarning
from koopsim.tasks import CopyMemory

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("gradient", ["implicit", "jacobian-free", "phantom", "neumann"])
@pytest.mark.parametrize("solver", ["picard", "relaxed", "anderson", "broyden"])
def test_a_captured_step_is_the_eager_step(solver, gradient):
    """On the trained model, whose solves converge: one that does not may go either way with the last bit."""
    model, sequences = koopsim.load("copy/deq", "cuda").train(), CopyMemoryConfig(horizon=80, train=24, valid=1, test=1)
    model.deq = DEQ(model.deq.cell, solver, 60, 1e-4, gradient)
    x, y = CopyMemory(sequences, "cuda").split("train")
    batches, targets = x.view(3, 8, -1), y.view(3, 8, -1)
    tokens, answers = batches[0].clone(), targets[0].clone()

    def step():
        for p in model.parameters():
            p.grad = None
        loss = F.cross_entropy(model(tokens).flatten(0, 1), answers.flatten())
        loss.backward()
        return loss.detach()  # a live graph would tie its nodes to the stream of this call

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        gradients = [p.grad for p in model.parameters()]
        info = model.last_info
        for batch, target in zip(batches, targets, strict=True):
            tokens.copy_(batch)
            answers.copy_(target)
            graph.replay()
            got = [g.clone() for g in gradients if g is not None]
            value, steps = captured.clone(), info.steps.clone()
            want = step()
            torch.testing.assert_close(value, want, rtol=1e-3, atol=1e-6)
            assert (steps - model.last_info.steps).abs().double().mean() <= 1
            for a, p in zip(got, model.parameters(), strict=True):
                torch.testing.assert_close(a, p.grad, rtol=2e-2, atol=2e-3 * float(p.grad.abs().max()))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("solver", ["picard", "relaxed", "anderson", "broyden"])
def test_nothing_waits_for_the_gpu_while_capturing(solver, monkeypatch):
    """The code path of a capture, with PyTorch told to raise at any synchronisation."""
    model = TransformerDEQ(deq=partial(DEQ, solver=solver, tol=1e-4)).cuda()
    tokens = torch.randint(0, 10, (8, 100), device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        model(tokens).sum().backward()
    for module in ("iteration", "deq"):
        monkeypatch.setattr(f"koopsim.implicit.{module}.capturing", lambda: True)
    try:
        torch.cuda.set_sync_debug_mode("error")
        model(tokens).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("gradient", ["implicit", "reversible"])
def test_a_captured_step_of_a_state_of_several_tensors_is_the_eager_step(gradient):
    torch.manual_seed(0)
    model = MultiscaleDEQ((1, 8, 8), (8, 8), deq=partial(DEQ, max_steps=8, tol=1e-30, gradient=gradient)).cuda()
    model.deq._warned.update(("forward", "backward"))
    images = torch.randn(3, 6, 1, 8, 8, device="cuda")
    x = images[0].clone()

    def step():
        for p in model.parameters():
            p.grad = None
        model(x).sin().sum().backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    gradients = [p.grad for p in model.parameters()]
    for batch in images:
        x.copy_(batch)
        graph.replay()
        got = [g.clone() for g in gradients]
        step()
        for a, p in zip(got, model.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad, rtol=2e-2, atol=2e-3 * float(p.grad.abs().max()))
