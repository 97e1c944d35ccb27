"""A step captured in a CUDA graph: once recorded, replayed without the host."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from koopsim.engine.rehearsal import build_kernels

WARM_UP = 3  # steps before a capture, so that libraries have chosen their kernels


class Recorder:
    """The graphs of one trainer. They run one after the other, so they share a stream and their memory: a solver's
    step has a graph for each number of steps it may take, and each would keep hundreds of megabytes to itself."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # its own: cuBLAS keeps a workspace a stream, two must not share one
        self.pool = torch.cuda.graph_pool_handle()

    def record(
        self, step: Callable[[], None], state: Callable[[], Mapping[str, Tensor]], rehearse: bool = False
    ) -> torch.cuda.CUDAGraph:
        """The graph of `step`, which leaves nothing behind but what it writes into `state()`, every tensor it changes:
        the warm-up it needs leaves no trace in them. `rehearse`: its kernels are built together (rehearsal.py)."""
        saved = {name: t.clone() for name, t in state().items()}

        def restore() -> None:
            with torch.no_grad():
                for name, tensor in state().items():  # what the warm-up made first, such as a sum, begins at zero
                    tensor.copy_(saved[name]) if name in saved else tensor.zero_()

        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            if rehearse:
                build_kernels(step)
                restore()
            for _ in range(WARM_UP):
                step()
                restore()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
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
