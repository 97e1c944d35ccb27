"""Circular convolutions as small matrices, one for each frequency.

    (K z)[p] = sum_t K_t z[p + t]        ->        (K z)^(k) = ( sum_t K_t e^{2 pi i k.t / n} ) z^(k)

The bracket is the symbol of K: C_out x C_in complex numbers at each frequency k. Products, transposes and
inverses of circular convolutions are those of their symbols. A convolution of stride two does not commute with
all shifts, but it does with shifts by two; so, like anything beside it, it becomes a plain convolution once the
image is folded: each 2 x 2 patch is read as one pixel of four times the channels (`phases` = 2).

A convolution is kept as its stencil, (taps, C_out, C_in): the matrices K_t, for t row by row. Sums, transposes and
products of stencils are stencils again, and thousands of times smaller than symbols; so they are put together first,
and one product with a table of waves makes the symbol, in its real form [[Re, -Im], [Im, Re]].

States are (rows, columns, channels, batch), the batch last. Then both halves of the Fourier transform, and the
symbols too, are products with a matrix from the left: real arithmetic throughout and no transposes between them.
For images of some 34 x 34 pixels that is worth more than the fewer operations of a fast Fourier transform: there and
back takes 0.6 of its time on one CPU core, at 17 x 17 a seventh.

A GPU has arithmetic to spare in float16 and waits for memory: there both halves are one product with one matrix, as
long as the image is small (`AT_ONCE`). Its states are stored for that (`stored.py`): (halves, pixels, channels, batch).
The pixels are rounded up to a multiple of 8, the last ones zero, for tensor cores are fast only where as many entries
of the matrix lie side by side. Even frequencies see only the sum of the image's upper and lower half, odd ones only the
difference. A state that is already these two, over sqrt 2, is called paired; where there are as many of the one as of
the other, its transform is two products with matrices of half the size. So even row frequencies come first.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from koopsim.nn.products import stacked, times

AT_ONCE = 1300  # pixels up to which a transform of float16 on CUDA is one product
ALIGNED = 8  # entries that tensor cores read at once


@dataclass(frozen=True)
class Grid:
    """The pixels a circular convolution acts on, folded so that `phases` x `phases` of them make one."""

    height: int
    width: int
    phases: int = 1

    @property
    def rows(self) -> int:
        return self.height // self.phases

    @property
    def columns(self) -> int:
        return self.width // self.phases

    @property
    def frequencies(self) -> int:
        """Half of them: a real image has the other half's conjugates."""
        return (self.rows // 2 + 1) * self.columns

    @property
    def pairs(self) -> bool:
        """Whether there are as many even row frequencies as odd ones."""
        return self.rows % 4 == 2

    def fold(self, image: Tensor) -> Tensor:
        """(height, width, C, B) -> (rows, columns, phases^2 C, B)"""
        p, (C, B) = self.phases, image.shape[2:]
        if p == 1:
            return image
        patches = image.reshape(self.rows, p, self.columns, p, C, B).transpose(1, 2)
        return patches.reshape(self.rows, self.columns, p * p * C, B)

    def unfold(self, state: Tensor) -> Tensor:
        """The inverse of `fold`."""
        p, (C, B) = self.phases, state.shape[2:]
        if p == 1:
            return state
        patches = state.reshape(self.rows, self.columns, p, p, C // p**2, B).transpose(1, 2)
        return patches.reshape(self.height, self.width, C // p**2, B)

    def transform(self, state: Tensor) -> Tensor:
        """(rows, columns, C, B) -> (frequencies, 2 C, B): real parts above imaginary parts. Unitary."""
        return self._spectrum(state, False)

    def inverse(self, spectrum: Tensor) -> Tensor:
        """(frequencies, 2 C, B) -> (rows, columns, C, B): the inverse of `transform`."""
        C, B = spectrum.shape[1] // 2, spectrum.shape[2]
        _, last, second = _fourier(self.rows, self.columns, spectrum.dtype, spectrum.device)
        whole = spectrum.reshape(-1, 2 * self.columns, C * B)
        half = stacked(second.mT.expand(whole.shape[0], -1, -1), whole)
        return times(last.mT, half.view(len(last), -1)).view(self.rows, self.columns, C, B)

    def inverse_transposed(self, state: Tensor) -> Tensor:
        """The transpose of `inverse`: the transform, but frequencies that stand for two count twice."""
        return self._spectrum(state, True)

    def _spectrum(self, state: Tensor, doubled: bool) -> Tensor:
        C, B = state.shape[2:]
        *first, second = _fourier(self.rows, self.columns, state.dtype, state.device)
        half = times(first[doubled], state.reshape(self.rows, -1)).view(-1, 2 * self.columns, C * B)
        return stacked(second.expand(half.shape[0], -1, -1), half).view(self.frequencies, 2 * C, B)

    def stored_pixels(self, paired: bool) -> int:
        """Of a half if paired, else of the whole: as many as there are, rounded up to a multiple of 8."""
        pixels = self.rows * self.columns // (1 + paired)
        return pixels if pixels == 1 else pixels + -pixels % ALIGNED

    def stored_transform(self, state: Tensor) -> Tensor:
        """(halves, stored pixels, C, B), paired if there are two halves -> (frequencies, 2 C, B), as `transform`."""
        halves, _, C, B = state.shape
        there, _ = _whole(self.rows, self.columns, halves == 2, state.dtype, state.device)
        return torch.bmm(there, state.flatten(2)).view(self.frequencies, 2 * C, B)

    def stored_inverse(self, spectrum: Tensor, out: Tensor) -> None:
        """The inverse of `stored_transform`, written to `out`; zero where there is no pixel."""
        _, back = _whole(self.rows, self.columns, len(out) == 2, out.dtype, out.device)
        torch.bmm(back.mT, spectrum.view(len(out), back.shape[1], -1), out=out.view(*out.shape[:2], -1))

    def fold_stencil(self, stencil: Tensor, strided: bool = False) -> Tensor:
        """(k^2, C_out, C_in) -> (k'^2, phases^2 C_out, phases^2 C_in): the same convolution of folded images.

        `strided` keeps the last pixel of every patch of the output, (k'^2, C_out, phases^2 C_in): a convolution of
        stride `phases`.
        """
        p, (taps, out, into) = self.phases, stencil.shape
        if p == 1:
            return stencil
        places = _places(p, math.isqrt(taps), stencil.dtype, stencil.device)  # (k'^2, phase out, phase in, tap)
        if strided:
            places = places[:, -1:]
        blocks = (places.reshape(-1, taps) @ stencil.flatten(1)).view(*places.shape[:3], out, into)
        return blocks.transpose(2, 3).reshape(len(places), places.shape[1] * out, p * p * into)

    def symbol(self, stencil: Tensor) -> Tensor:
        """(taps, m, n) of folded images -> real (frequencies, 2m, 2n), what multiplies a spectrum."""
        taps, _, n = stencil.shape
        waves = _waves(self.rows, self.columns, math.isqrt(taps), stencil.dtype, stencil.device)
        pair = torch.cat([F.pad(stencil, (0, n)), F.pad(stencil, (n, 0))])  # for the left columns, for the right
        return (waves @ pair.flatten(1)).view(self.frequencies, -1, 2 * n)


def stencil_of(kernel: Tensor) -> Tensor:
    """(C_out, C_in, k, k), as PyTorch keeps it -> (k^2, C_out, C_in)"""
    return kernel.flatten(2).permute(2, 0, 1)


def transpose(stencil: Tensor) -> Tensor:
    """The stencil of K^T: (taps, m, n) -> (taps, n, m)"""
    return stencil.flip(0).mT


def widen(stencil: Tensor, size: int) -> Tensor:
    """The same stencil with zeros around it, size x size of them."""
    old = math.isqrt(len(stencil))
    around = (size - old) // 2
    square = F.pad(stencil.reshape(old, old, *stencil.shape[1:]), (0, 0, 0, 0, around, around, around, around))
    return square.flatten(0, 1)


def pair(state: Tensor) -> Tensor:
    """Upper and lower half of (D, B) -> sum and difference, over sqrt 2; its own inverse."""
    upper, lower = state.chunk(2)
    return torch.cat([upper + lower, upper - lower]) / math.sqrt(2)


def gram(stencil: Tensor) -> Tensor:
    """The stencil of K^T K: (k^2, m, n) -> ((2k - 1)^2, n, n)"""
    taps, m, n = stencil.shape
    columns = stencil.transpose(0, 1).reshape(m, taps * n)
    products = (columns.mT @ columns).view(taps, n, taps, n).transpose(1, 2)  # K_t^T K_t' for every t, t'
    table = _differences(math.isqrt(taps), stencil.dtype, stencil.device)
    return (table @ products.reshape(taps * taps, n * n)).view(-1, n, n)


# The tables below are made in float64, rounded once, and kept for good: a captured CUDA graph that reads one must
# never find it gone.


def _aligned(table: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The table on its device, its rows a multiple of 8 entries apart: tensor cores read it faster so."""
    width = table.shape[-1]
    return F.pad(table, (0, -width % ALIGNED)).to(device, dtype)[..., :width]


def _row_frequencies(rows: int) -> Tensor:
    """Half of them, the even ones first."""
    k = torch.arange(rows // 2 + 1, dtype=torch.float64)
    return torch.cat([k[::2], k[1::2]])


def _tables(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Along rows (half of the frequencies), the same for the way back, and along columns; real, unitary, float64."""
    k, h = _row_frequencies(rows), torch.arange(rows, dtype=torch.float64)
    angle = 2 * math.pi / rows * torch.outer(k, h)
    first = torch.stack([angle.cos(), -angle.sin()], dim=1).flatten(0, 1) / math.sqrt(rows)  # ((k, re | im), h)
    own_conjugate = (k == 0) | (2 * k == rows)
    twice = torch.where(own_conjugate, 1.0, 2.0).repeat_interleave(2)  # each other frequency stands for two
    w = torch.arange(columns, dtype=torch.float64)
    angle = 2 * math.pi / columns * torch.outer(w, w)
    cos, sin = angle.cos() / math.sqrt(columns), angle.sin() / math.sqrt(columns)
    second = torch.stack([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)], dim=1).flatten(0, 1)
    return first, first * twice.unsqueeze(1), second


@functools.cache
def _fourier(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    with torch.inference_mode(False), torch.no_grad():
        return tuple(_aligned(table, dtype, device) for table in _tables(rows, columns))


@functools.cache
def _whole(rows: int, columns: int, paired: bool, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Both halves in one matrix, there, and the transpose of back: (halves, (frequency, re | im), stored pixel)."""
    with torch.inference_mode(False), torch.no_grad():
        *ways, second = _tables(rows, columns)
        pixels = rows * columns // (1 + paired)
        more, found = Grid(rows, columns).stored_pixels(paired) - pixels, []
        for first in ways:
            both = torch.einsum("wiv,kih->kwhv", second.view(-1, 2, columns), first.view(-1, 2, rows))
            table = both.reshape(1 + paired, -1, rows * columns)[:, :, :pixels] * math.sqrt(1 + paired)
            found.append(F.pad(table, (0, more)).to(device, dtype))
        there, back = found
        return there, back


@functools.cache
def _waves(rows: int, columns: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[[cos, -sin], [sin, cos]] of 2 pi k.t / n: ((frequency, re | im), (left | right, tap))."""
    with torch.inference_mode(False), torch.no_grad():
        shifts = torch.arange(size, dtype=torch.float64) - size // 2
        along_rows = torch.outer(_row_frequencies(rows), shifts) / rows  # (k, t)
        along_columns = torch.outer(torch.arange(columns, dtype=torch.float64), shifts) / columns
        turn = along_rows[:, None, :, None] + along_columns[None, :, None, :]
        angle = 2 * math.pi * turn.reshape(-1, size * size)
        cos, sin = angle.cos(), angle.sin()
        waves = torch.stack([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)], dim=1)
        return _aligned(waves.flatten(0, 1), dtype, device)


@functools.cache
def _places(phases: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 where a tap joins two phases at a shift of whole patches: (shifts, phases^2 out, phases^2 in, taps)."""
    with torch.inference_mode(False), torch.no_grad():
        reach = size // 2
        far = -(-reach // phases)
        along = torch.zeros(2 * far + 1, phases, phases, size, dtype=torch.float64)
        for phase in range(phases):
            for tap in range(size):
                shift, source = divmod(phase + tap - reach, phases)
                along[shift + far, phase, source, tap] = 1
        both = torch.einsum("hsSt,wrRu->hwsrSRtu", along, along)
        return both.reshape(-1, phases**2, phases**2, size**2).to(device, dtype)


@functools.cache
def _differences(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 where t' - t is that shift: (shifts, (t, t'))."""
    with torch.inference_mode(False), torch.no_grad():
        along = torch.zeros(2 * size - 1, size, size, dtype=torch.float64)
        for t in range(size):
            for other in range(size):
                along[other - t + size - 1, t, other] = 1
        both = torch.einsum("hst,wru->hwsrtu", along, along)
        return both.reshape(-1, size**4).to(device, dtype)
