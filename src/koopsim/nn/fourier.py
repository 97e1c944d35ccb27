"""Random Fourier features: the embedding of the two-tier and RFF-only models.

    psi(x) = (sin(w_j . x), cos(w_j . x))_{j = 1..M/2} / sqrt(M/2),   w_j ~ P(w)      paper, section 3.4

so that psi(x) . psi(y) -> k(x - y) as M grows (Bochner; Rahimi & Recht 2007). The bandwidth b is a length
scale: k = exp(-|x-y|^2 / 2b^2) and w ~ N(0, 1/b^2) for the Gaussian kernel, k = exp(-|x-y|_1 / b) and
w ~ Cauchy(0, 1/b) for the Laplace kernel. Tancik's sigma corresponds to b = 1 / (2 pi sigma).

Which b is right depends on the scale of x, and a lift may change its scale a hundredfold while it learns. A variant of
our own measures x in its own units, so that b = 1 is about the distance of two inputs, whatever the lift and whenever:

    psi( (x - mean) / (deviation sqrt(2 N)) )           mean and deviation as in batch normalisation, nothing learnt

Frequencies that are drawn one by one leave gaps and clusters. For points of the plane another variant of ours spreads
them like the seeds of a sunflower, every ring with its share of the Gaussian, only the first direction drawn:

    w_j = r_j (cos a_j, sin a_j) / b,   r_j = sqrt(-2 log(1 - (j - 1/2) / F)),   a_j = a_0 + j pi (3 - sqrt 5),   j <= F
"""

import math

import torch
from torch import Tensor, nn

from koopsim.nn.transforms import on_cpu

KERNELS = ("gaussian", "laplace")
SPREADS = ("random", "even")


def sunflower(count: int) -> Tensor:
    """(count, 2): the standard Gaussian of the plane as evenly as so many points can be it, turned at random."""
    j = torch.arange(1, count + 1, dtype=torch.float64)
    radius = (-2 * torch.log1p(-(j - 0.5) / count)).sqrt()
    angle = 2 * math.pi * torch.rand(()) + j * math.pi * (3 - math.sqrt(5))
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).to(torch.get_default_dtype())


class RandomFourierFeatures(nn.Module):
    """(..., inputs) -> (..., features). The frequencies are a buffer: not trained, saved with the model."""

    frequencies: Tensor

    def __init__(
        self,
        inputs: int,
        features: int,
        bandwidth: float = 1.0,
        kernel: str = "gaussian",
        spread: str = "random",
    ):
        super().__init__()
        if features < 2 or features % 2:
            raise ValueError(f"features is {features}; it must be even: each frequency gives a sine and a cosine.")
        if bandwidth <= 0:
            raise ValueError(f"bandwidth is {bandwidth}; it is a length scale and must be positive.")
        if kernel not in KERNELS:
            raise ValueError(f"kernel is {kernel!r}; expected one of {KERNELS}.")
        if spread not in SPREADS or (spread == "even" and (inputs, kernel) != (2, "gaussian")):
            raise ValueError(
                f"spread is {spread!r}; expected one of {SPREADS}, and even only for points of the plane and the "
                f"Gaussian kernel, not for {inputs} inputs and {kernel!r}."
            )
        w = torch.empty(features // 2, inputs)
        w = sunflower(features // 2) if spread == "even" else w.normal_() if kernel == "gaussian" else w.cauchy_()
        self.register_buffer("frequencies", w / bandwidth)

    def scaled(self, x: Tensor) -> Tensor:
        """x in the units that the bandwidth is given in."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.frequencies.shape[1]:
            raise ValueError(f"psi was given {x.shape[-1]} numbers where it takes {self.frequencies.shape[1]}.")
        # Never in bf16: a phase of 100 rounded to three digits is noise.
        with torch.autocast(x.device.type, enabled=False):
            phase = self.scaled(x.to(self.frequencies.dtype)) @ self.frequencies.mT
            half = phase.shape[-1]
            if phase.requires_grad or not on_cpu(phase):
                return torch.cat([phase.sin(), phase.cos()], dim=-1) / math.sqrt(half)
            found = phase.new_empty(*phase.shape[:-1], 2 * half)  # once through memory where it is what takes the time
            torch.sin(phase, out=found[..., :half])
            torch.cos(phase, out=found[..., half:])
            return found.div_(math.sqrt(half))


class NormalisedFourierFeatures(RandomFourierFeatures):
    """The same in the inputs' own units: two of them lie about 1 apart, on average over a batch."""

    def __init__(self, inputs: int, features: int, bandwidth: float = 1.0, kernel: str = "gaussian"):
        super().__init__(inputs, features, bandwidth, kernel)
        self.norm = nn.BatchNorm1d(inputs, affine=False)

    def scaled(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return self.norm(rows).reshape(x.shape) / math.sqrt(2 * x.shape[-1])
