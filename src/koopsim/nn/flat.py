"""Tensors that lie side by side in one vector.

A trainer keeps all parameters of a model as views of one vector. A kernel that wants many of them reads that vector at
known offsets and need not copy them together first; and gradients that were written side by side are one piece again.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def common_vector(tensors: Sequence[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
    """(vector, offsets): tensor i begins at vector[offsets[i]]. The storage they share, or else a copy of them all."""
    first = tensors[0]
    if not torch.compiler.is_compiling() and _together(tensors):  # a compiler does not know of addresses
        storage = first.untyped_storage()
        whole = first.detach().as_strided((storage.nbytes() // first.element_size(),), (1,), 0)
        return whole, tuple(int(t.storage_offset()) for t in tensors)
    sizes = (t.numel() for t in tensors[:-1])
    return torch.cat([t.detach().reshape(-1) for t in tensors]), tuple(itertools.accumulate(sizes, initial=0))


def _together(tensors: Sequence[Tensor]) -> bool:
    storage, dtype = tensors[0].untyped_storage().data_ptr(), tensors[0].dtype
    return all(t.untyped_storage().data_ptr() == storage and t.dtype == dtype and t.is_contiguous() for t in tensors)


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """The pieces flattened, one after the other. Neighbours in memory are copied as one: few long copies, not many."""
    runs: list[Tensor] = []
    for piece in (p.detach().reshape(-1) for p in pieces):
        last = runs[-1] if runs else None
        if last is not None and _follows(last, piece):
            runs[-1] = last.as_strided((last.numel() + piece.numel(),), (1,), last.storage_offset())
        else:
            runs.append(piece)
    return torch.cat(runs)


def _follows(last: Tensor, piece: Tensor) -> bool:
    """Whether `piece` begins where `last` ends, each number beside the next."""
    return (
        last.stride() == piece.stride() == (1,)
        and last.dtype == piece.dtype
        and last.untyped_storage().data_ptr() == piece.untyped_storage().data_ptr()
        and last.storage_offset() + last.numel() == piece.storage_offset()
    )
