"""A trained model for answering: fused, captured, for any batch, from any thread.

    answer = koopsim.deploy(model, [(1, 3, 32, 32), (256, 3, 32, 32)])
    y = answer(x)                                             x (B, 3, 32, 32), any B

On CUDA the fused map (nn/fuse.py) is captured once for each shape, so that an answer costs a copy, a replay and a copy,
and the host no longer counts. A batch in between is filled up to the next captured one, a larger one is cut. What a
graph reads and writes is its own: callers take turns at it, each on its own stream, and get a tensor that nobody else
will write to. Where the GPU has thread block clusters and the lift is a TCN or a VGG, a few inputs at once are answered
by one kernel without a graph (nn/kernels/answer.py), in float32 whatever `autocast` says. On a CPU there is nothing to
capture; the map is fused all the same. A model whose map cannot be read off its modules (nn/fusable.py) may ask its own
tensors how to go on, as a solver does, and is answered by as it is. Answers are of the model's own kind of number.
"""

import copy
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError
from koopsim.nn.fusable import fusable
from koopsim.nn.fuse import fuse
from koopsim.nn.sim import SIM
from koopsim.nn.transforms import TRITON

if TYPE_CHECKING:
    from koopsim.nn.kernels.answer import Answering

ALIGNED = 8  # channels: what tensor cores take at a time
SHORT = (torch.bfloat16, torch.float16)


@torch.inference_mode(False)  # what is made here is used outside of it, too
@torch.no_grad()
def deploy(
    model: nn.Module,
    shapes: Sequence[Sequence[int]],
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
) -> "Deployed":
    """The model's map in eval mode, ready for inputs of these shapes (batch first) and of every other batch size.

    device     where to answer; where the model is, unless told
    autocast   torch.bfloat16 for tensor cores' shorter products; the model and its answers stay as they are
    """
    if not isinstance(model, nn.Module):
        raise KoopsimError(f"This is {type(model).__name__}; expected a model, such as koopsim.load(...) gives.")
    sizes = _sizes(shapes)
    if autocast is not None and autocast not in SHORT:
        raise KoopsimError(f"autocast is {autocast!r}; expected torch.bfloat16, torch.float16, or None.")
    first = next(model.parameters(), torch.empty(0))
    place = pick_device(str(device)) if device is not None else first.device
    if fusable(model):
        fused = fuse(model, ALIGNED if place.type == "cuda" else 1).to(place)
        return Deployed(fused, sizes, place, autocast, _of_few(model, sizes[0][1:], place))
    plain = copy.deepcopy(model).eval().requires_grad_(False).to(place)
    return Deployed(plain, sizes, place, autocast, capture=False)


def _sizes(shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Each shape once, the smallest batch first."""
    try:
        sizes = {tuple(int(n) for n in shape) for shape in shapes}
    except (TypeError, ValueError):
        raise KoopsimError(f"The shapes to deploy for are {shapes!r}; expected such as [(1, 3, 32, 32)].") from None
    if not sizes or any(not shape or min(shape) < 1 for shape in sizes) or len({shape[1:] for shape in sizes}) > 1:
        raise KoopsimError(
            f"The shapes to deploy for are {sorted(sizes)}; expected one or more, batch first, that "
            "differ in the batch alone."
        )
    return sorted(sizes)


def _of_few(model: SIM, shape: tuple[int, ...], device: torch.device) -> "Answering | None":
    """One kernel for a few inputs, where there is one and it starts."""
    if device.type != "cuda" or not TRITON:
        return None
    from koopsim.nn.kernels.answer import answering

    found = answering(fuse(model), shape, device)
    try:
        if found is not None:
            found(torch.zeros(1, *shape))
            torch.cuda.synchronize(device)
    except KoopsimError:  # a part of a GPU has no room for a cluster
        return None
    return found


class Deployed:
    """What `deploy` gives: a function of tensors."""

    def __init__(
        self,
        model: nn.Module,
        shapes: list[tuple[int, ...]],
        device: torch.device,
        autocast: torch.dtype | None,
        of_few: "Answering | None" = None,
        capture: bool = True,
    ):
        self.of_few = of_few
        self.model, self.device, self.autocast, self.trailing = model, device, autocast, shapes[0][1:]
        self.own = next((t.dtype for t in model.parameters() if not _whole(t)), torch.get_default_dtype())
        self.takes = self._kinds()
        self.graphs = [Graph(self, shape) for shape in shapes] if device.type == "cuda" and capture else []

    def __call__(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, ...), on the device it was deployed to."""
        if not isinstance(x, Tensor):
            raise KoopsimError(f"An input is {type(x).__name__}; expected a tensor, such as torch.as_tensor gives.")
        if tuple(x.shape[1:]) != self.trailing or not x.ndim or not len(x):
            raise KoopsimError(f"An input has the shape {tuple(x.shape)}; this model was deployed for {self._shape}.")
        x = x if x.dtype == self.takes[0] else self._cast(x)
        if self.of_few is not None and len(x) <= self.of_few.most:
            return self.of_few(x)
        if not self.graphs:
            return self.plainly(x.to(self.device))
        graph = next((g for g in self.graphs if g.batch >= len(x)), self.graphs[-1])
        parts = [graph(part) for part in x.split(graph.batch)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def plainly(self, x: Tensor) -> Tensor:
        """The fused map, without a graph."""
        with (
            torch.no_grad(),
            torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None),
        ):
            y = self.model(x)
            return y.to(self.own) if isinstance(y, Tensor) and y.dtype == self.autocast else y

    def _cast(self, x: Tensor) -> Tensor:
        """An input of another kind of number than the model's own, as the model takes it."""
        kind = self.takes[0]
        if _whole(x) and torch.int64 in self.takes:
            return x.long() if kind == torch.int64 else x
        if kind == torch.int64 or (x.is_complex() and not kind.is_complex):
            raise KoopsimError(f"An input is of {x.dtype}; this model takes {kind}.")
        return x.to(kind)

    def _kinds(self) -> list[torch.dtype]:
        """The kinds of number that the model takes, its own first; an embedding takes whole ones alone."""
        why = {kind: self._refusal(kind) for kind in (self.own, torch.float32, torch.int64)}
        if None not in why.values():
            first = (str(why[self.own]).strip().splitlines() or [type(why[self.own]).__name__])[0].rstrip(".")
            raise KoopsimError(f"The model does not take inputs of the shape {self._shape}: {first}.")
        return [kind for kind, error in why.items() if error is None]

    def _refusal(self, kind: torch.dtype) -> Exception | None:
        """Why the model does not take numbers of this kind in this shape; None: it does."""
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        try:
            with here:
                self.plainly(torch.zeros(1, *self.trailing, dtype=kind, device=self.device))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            return error
        return None

    @property
    def _shape(self) -> str:
        return f"({', '.join(['batch', *map(str, self.trailing)])})"


def _whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


class Graph:
    """The map captured for one shape, with its own input and output."""

    def __init__(self, deployed: Deployed, shape: tuple[int, ...]):
        self.batch, self.turn = shape[0], threading.Lock()
        with torch.cuda.device(deployed.device):
            self.x = torch.zeros(shape, dtype=deployed.takes[0], device=deployed.device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # kernels are compiled, libraries choose theirs
                    deployed.plainly(self.x)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.y = deployed.plainly(self.x)
            self.free = torch.cuda.Event()  # the last caller has taken its answer
            self.free.record()

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.cuda.device(self.x.device), self.turn:
            torch.cuda.current_stream().wait_event(self.free)
            self.x[: len(x)].copy_(x, non_blocking=x.is_cuda)  # a caller may write to his own memory when this returns
            self.graph.replay()
            y = self.y[: len(x)].clone()
            self.free.record()
        return cast(Tensor, y)
