"""The affine map of a splitting for a GPU: on states in float16, stored so that nothing is copied between products.

A row of a state is a channel of a pixel. Stored, the tiers lie one after the other as (halves, pixels, channels):

    halves      two if paired (`circular.py`), else one
    pixels      rounded up to a multiple of 8; the last are zero
    channels    the tier's own, and then room: in what the map is given for what the tier hears of another,
                in what it finds for what the tier says to another

So each tier's transform reads its part of w as it lies, and the way back writes its part of t. Between two tiers only
what the one says is moved to where the other hears it. Down the chain a tier hears of the one above and says something
to the one below; transposed it is the other way round, and w is laid out as t was.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from koopsim.implicit.monotone_operator import Tier
from koopsim.implicit.splitting import Places, Storage


@dataclass(frozen=True, eq=False)
class StoredChain:
    """A `Chain` of the same tiers and matrices, (rows, B) -> (rows, B) as stored. It writes to what it is given."""

    tiers: tuple[Tier, ...]
    matrices: tuple[Tensor, ...]  # (frequencies, 2 rows, 2 columns)
    paired: bool = False  # of one tier

    def __call__(self, w: Tensor) -> Tensor:
        return self._mapped(w, transposed=False)

    def transposed(self, w: Tensor) -> Tensor:
        """The transpose of the map: the chain from its other end."""
        return self._mapped(w, transposed=True)

    def storage(self, transposed: bool = False) -> Storage:
        """How the states it maps are kept, or those its transpose does."""
        given, found = self._layouts(transposed)
        sizes = tuple(tier.size for tier in self.tiers)
        return Storage(self.matrices[0].dtype, self.paired, given.places, found.places, sizes)

    @torch.no_grad()
    def _mapped(self, w: Tensor, transposed: bool) -> Tensor:
        given, found = self._layouts(transposed)
        t, said = w.new_empty(found.places.rows, w.shape[1]), None
        tiers = zip(self.tiers, self.matrices, given.parts(w), found.parts(t), given.room, found.room, strict=True)
        for tier, matrix, into, out, hears, says in reversed(list(tiers)) if transposed else tiers:
            if said is not None:
                move(t, said, w, hears)
            spectrum = tier.grid.stored_transform(into)
            tier.grid.stored_inverse(torch.bmm(matrix.mT if transposed else matrix, spectrum), out)
            said = says
        return t

    def _layouts(self, transposed: bool) -> tuple[Layout, Layout]:
        """Of what the map is given and of what it finds."""
        from_above, to_below = (
            _layout(self.tiers, self.paired, room, self.matrices[0].device) for room in ("above", "below")
        )
        return (to_below, from_above) if transposed else (from_above, to_below)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the parts of a stored state are."""

    shapes: tuple[tuple[int, int, int], ...]  # (halves, pixels, channels) of each tier
    places: Places  # of the state's own rows
    room: tuple[Tensor, ...]  # of each tier the rows beside its own, in an order that all tiers share

    def parts(self, stored: Tensor) -> list[Tensor]:
        """Its tiers, (halves, pixels, channels, B) each: views."""
        parts = stored.split([math.prod(shape) for shape in self.shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, self.shapes, strict=True)]


@functools.cache  # for good: a captured CUDA graph must never find it gone
@torch.inference_mode(False)
def _layout(tiers: tuple[Tier, ...], paired: bool, room: str, device: torch.device) -> Layout:
    """With room for what tiers share with those "above" them, or with those "below"."""
    shapes, own, shared, start = [], [], [], 0
    for i, tier in enumerate(tiers):
        grid, depth = tier.grid, tier.depth
        others = tiers[i + 1 : i + 2] if room == "below" else tiers[:i]
        more = 0 if not others else others[0].channels if room == "below" else depth
        pixels, channels = grid.stored_pixels(paired), depth + more
        rows = start + torch.arange(pixels * channels, dtype=torch.int32).view(pixels, channels)
        start += rows.numel()
        shapes.append((1 + paired, pixels, channels))
        rows = rows[: grid.rows * grid.columns // (1 + paired)]
        own.append(rows[:, :depth].flatten())
        beside = rows[:, depth:]
        if room == "above" and more:  # in the order of the tier above
            beside = tier.answer(beside.reshape(grid.rows, grid.columns, depth, 1))
        shared.append(beside.flatten())
    rest = torch.ones(start, dtype=torch.bool)
    rest[torch.cat(own + shared)] = False
    index = torch.cat([*own, rest.nonzero().flatten().int()]).to(device)
    places = Places((1 + paired) * start, index, in_order=len(tiers) == 1)
    return Layout(tuple(shapes), places, tuple(rows.to(device) for rows in shared))


def move(source: Tensor, rows: Tensor, target: Tensor, places: Tensor) -> None:
    """target[places] = source[rows]. On CUDA it is one kernel (`kernels/splitting.py`); this is its twin."""
    if source.is_cuda and find_spec("triton") is not None:
        from koopsim.implicit.kernels import splitting as splitting_kernels

        splitting_kernels.move(source, rows, target, places)
    else:
        target[places] = source[rows]
