"""A step captured in a CUDA graph: once recorded, replayed without the host."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UP = 3  # steps before a capture, so that libraries have chosen their kernels


def captured(
    step: Callable[[], None], state: Callable[[], Mapping[str, Tensor]], device: torch.device
) -> torch.cuda.CUDAGraph:
    """The graph of `step`. `state()` is every tensor a step changes: the warm-up it needs leaves no trace in them."""
    saved = {name: t.clone() for name, t in state().items()}

    def restore() -> None:
        with torch.no_grad():
            for name, tensor in state().items():  # what the warm-up made first, such as a sum, begins at zero
                tensor.copy_(saved[name]) if name in saved else tensor.zero_()

    # A stream of its own: cuBLAS keeps a workspace a stream, and two trainers must not write into one.
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
            restore()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, stream=stream):
        step()
    restore()
    return graph


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected inside: an earlier graph, freed while another is recorded, ends the recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
