"""What a capture needs of the process around it."""

import gc
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from koopsim.engine import capture
from koopsim.engine.capture import WARM_UP, Recorder, no_collection


@pytest.mark.parametrize("before", [True, False])
def test_collection_is_off_inside_and_as_it_was_afterwards(before):
    was = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        with pytest.raises(RuntimeError), no_collection():
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() is before
    finally:
        gc.enable() if was else gc.disable()


@pytest.mark.parametrize("rehearse", [True, False])
def test_neither_rehearsal_nor_warm_up_leaves_a_trace(rehearse, monkeypatch):
    """With a stand-in of CUDA: every run of the step, and whoever comes after, finds the state as it was."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    cuda = {"Stream": lambda device: stream, "current_stream": lambda device: stream, "graph_pool_handle": lambda: 0}
    cuda |= {"stream": nullcontext, "CUDAGraph": object, "graph": lambda graph, **more: nullcontext()}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(capture, "build_kernels", lambda step: step())
    x, found = torch.full((3,), 7.0), []

    def step() -> None:
        found.append(x.tolist())
        x.mul_(torch.nan)

    Recorder(torch.device("cpu")).record(step, lambda: {"x": x}, rehearse)
    assert found == [[7.0] * 3] * (rehearse + WARM_UP + 1)
    assert x.tolist() == [7.0] * 3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_in_cycles_do_not_end_the_next_capture():
    """Whoever fits twice leaves a graph in a cycle behind; it was freed while the next was recorded."""
    device = torch.device("cuda")
    x = torch.zeros(8, device=device)

    def step() -> None:
        gc.collect() if gc.isenabled() else None  # as if the collector had come by just now
        x.add_(1)

    for _ in range(3):
        cycle: dict = {"graph": Recorder(device).record(lambda: x.mul_(2), lambda: {"x": x})}
        cycle["self"] = cycle
        del cycle
        graph = Recorder(device).record(step, lambda: {"x": x})
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 8


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_of_one_recorder_share_their_memory_and_nothing_else():
    device = torch.device("cuda")
    recorder, x = Recorder(device), torch.zeros(4 << 20, device=device)

    def long_way(times: int) -> None:  # so many sums of 16 MiB each, alive until the last is made
        parts = [x + k for k in range(times)]
        x.copy_(torch.stack(parts).sum(dim=0))

    graphs, taken = {}, []
    for times in (6, 5, 3, 4):
        graphs[times] = recorder.record(partial(long_way, times), lambda: {"x": x})
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved(device))
    assert max(taken) < 1.2 * taken[0]  # apart they would be 2.5 times the first
    x.zero_()
    expected = 0.0
    for times in (4, 6, 3, 5, 6, 4):
        graphs[times].replay()
        expected = times * expected + times * (times - 1) / 2
    torch.cuda.synchronize()
    assert x.unique().tolist() == [expected]
