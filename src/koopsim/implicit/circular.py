"""Circular convolutions as small matrices, one for each frequency.

    (K z)[p] = sum_t K_t z[p + t]        ->        (K z)^(k) = ( sum_t K_t e^{2 pi i k.t / n} ) z^(k)

The bracket is the symbol of K: C_out x C_in complex numbers at each frequency k. Products, transposes and
inverses of circular convolutions are those of their symbols. A convolution of stride two does not commute with
all shifts, but it does with shifts by two; so, like anything beside it, it becomes a plain convolution once the
image is folded: each 2 x 2 patch is read as one pixel of four times the channels (`phases` = 2).

States are (rows, columns, channels, batch), the batch last. Then both halves of the Fourier transform, and the
symbols too, are products with a matrix from the left: real arithmetic throughout and no transposes between them,
which for images of some 34 x 34 pixels is worth more than the fewer operations of a fast Fourier transform.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """(rows, columns, C, B) -> (frequencies, 2 C, B): real parts above imaginary parts."""
        first, second, _ = _fourier(self.rows, self.columns, state.dtype, state.device)
        C, B = state.shape[2:]
        half = (first @ state.reshape(self.rows, -1)).view(-1, 2 * self.columns, C * B)
        whole = torch.bmm(second.expand(half.shape[0], -1, -1), half)
        return whole.view(self.frequencies, 2 * C, B)

    def inverse(self, spectrum: Tensor) -> Tensor:
        """(frequencies, 2 C, B) -> (rows, columns, C, B): the inverse of `transform`."""
        _, second, last = _fourier(self.rows, self.columns, spectrum.dtype, spectrum.device)
        C, B = spectrum.shape[1] // 2, spectrum.shape[2]
        whole = spectrum.reshape(-1, 2 * self.columns, C * B)
        half = torch.bmm(second.mT.expand(whole.shape[0], -1, -1), whole)
        return (last @ half.view(last.shape[1], -1)).view(self.rows, self.columns, C, B)

    def symbol(self, kernel: Tensor, strided: bool = False) -> Tensor:
        """(C_out, C_in, k, k) -> complex (frequencies, phases^2 C_out, phases^2 C_in) of the folded convolution.

        `strided` keeps the last pixel of every patch of the output: a convolution of stride `phases`,
        complex (frequencies, C_out, phases^2 C_in).
        """
        out, into, size, _ = kernel.shape
        waves = _waves(self.rows, self.columns, self.phases, size, kernel.dtype, kernel.device)
        if strided:
            waves = waves[:, -1:]
        taps = kernel.reshape(out * into, size * size).mT.to(waves.dtype)
        blocks = (waves.reshape(-1, size * size) @ taps).view(*waves.shape[:3], out, into)
        return blocks.transpose(2, 3).reshape(self.frequencies, waves.shape[1] * out, self.phases**2 * into)


def real_form(symbol: Tensor) -> Tensor:
    """Complex (F, m, n) -> real (F, 2m, 2n), what multiplies a spectrum; the adjoint becomes the transpose."""
    real, imaginary = symbol.real, symbol.imag
    return torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)


# The tables below are made in float64, rounded once, and kept for good: a captured CUDA graph that reads one must
# never find it gone.


@functools.cache
def _fourier(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Along rows (half of the frequencies), along columns (unitary, complex), and back along rows; real matrices."""
    with torch.inference_mode(False), torch.no_grad():
        k, h = torch.arange(rows // 2 + 1, dtype=torch.float64), torch.arange(rows, dtype=torch.float64)
        angle = 2 * math.pi / rows * torch.outer(k, h)
        first = torch.stack([angle.cos(), -angle.sin()], dim=1).flatten(0, 1)  # ((k, re | im), h)
        own_conjugate = (k == 0) | (2 * k == rows)
        twice = torch.where(own_conjugate, 1.0, 2.0).repeat_interleave(2)  # each other frequency stands for two
        last = (first * twice.unsqueeze(1)).mT / rows
        w = torch.arange(columns, dtype=torch.float64)
        angle = 2 * math.pi / columns * torch.outer(w, w)
        cos, sin = angle.cos() / math.sqrt(columns), angle.sin() / math.sqrt(columns)
        second = torch.stack([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)], dim=1).flatten(0, 1)
        return first.to(device, dtype), second.to(device, dtype), last.contiguous().to(device, dtype)


@functools.cache
def _waves(rows: int, columns: int, phases: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """e^{2 pi i k.t / n}, complex (frequencies, phases^2 out, phases^2 in, taps), 0 where a tap joins no such pair."""
    with torch.inference_mode(False), torch.no_grad():

        def along(length: int, count: int) -> Tensor:  # (k, phase out, phase in, tap)
            k = torch.arange(count, dtype=torch.float64)
            wave = torch.zeros(count, phases, phases, size, dtype=torch.complex128)
            for phase in range(phases):
                for tap in range(size):
                    shift, source = divmod(phase + tap - size // 2, phases)
                    wave[:, phase, source, tap] = torch.exp(2j * math.pi * shift / length * k)
            return wave

        waves = torch.einsum("hsSt,wrRu->hwsrSRtu", along(rows, rows // 2 + 1), along(columns, columns))
        waves = waves.reshape(-1, phases**2, phases**2, size**2)
        return waves.to(device, torch.complex128 if dtype == torch.float64 else torch.complex64)
