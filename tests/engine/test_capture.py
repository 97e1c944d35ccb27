"""What a capture needs of the process around it."""

import gc

import pytest
import torch

from koopsim.engine.capture import captured, no_collection


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
        cycle: dict = {"graph": captured(lambda: x.mul_(2), lambda: {"x": x}, device)}
        cycle["self"] = cycle
        del cycle
        graph = captured(step, lambda: {"x": x}, device)
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 8
