"""A multiscale DEQ for images: one equilibrium over several resolutions at once.

    z* = f(z*, u),   z = (z_1, ..., z_S),   z_s (B, c_s, H / 2^s, W / 2^s)      Bai, Koltun & Kolter, NeurIPS 2020

Each step has two halves. Within a resolution a residual block,

    h_s = N(relu(z_s + N(K'_s relu(N(K_s z_s)) + u_s)))             N: group normalisation, K: 3 x 3 convolutions

and across resolutions a sum over what all the others say, by strided 3 x 3 convolutions down and 1 x 1 up:

    z_s <- N(P_s relu(h_s + sum_{r < s} down_{r s} h_r + sum_{r > s} up_{r s} h_r))

The answer is read off all resolutions, carried down to the coarsest. The state is a tuple of tensors of unlike shapes;
each resolution must converge by itself.

The published network injects u at the finest resolution alone; the others then have nothing but themselves to hold on
to, their norms blow up whatever there is, and at first no solve converges. Here u_s enters at each, from the image
halved as often, the convolutions across resolutions are not normalised, and states begin small: fresh from its
initialisation the map contracts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.config import ClassificationConfig, ModelConfig, Recipe, Run, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ
from koopsim.implicit.info import DEQInfo
from koopsim.implicit.models import SolverKind, deq_maker
from koopsim.implicit.stabilise import VariationalDropout
from koopsim.kinds import Preset, Shape, register
from koopsim.words import Look

GROUPS = 4
READ = 4  # the answer is read off 4 x 4 places: norms leave little in a mean over all
SMALL = 0.2  # the size a state has at first: beside it, what is injected decides
States = tuple[Tensor, ...]


class _Norm(nn.GroupNorm):
    """In the precision it is given even under autocast, which would write twice the bytes; it adds in float32."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)


def _norm(channels: int, size: float = 1.0, kind: type[nn.GroupNorm] = _Norm) -> nn.GroupNorm:
    norm = kind(GROUPS, channels)
    nn.init.constant_(norm.weight, size)
    return norm


def _conv(into: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(into, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, std=0.05 / (kernel * into**0.5))  # a twentieth of what it is given
    return conv


class _Block(nn.Module):
    """Within a resolution: z_s, u_s -> h_s."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = _conv(channels, channels), _conv(channels, channels)
        self.norms = nn.ModuleList(_norm(channels) for _ in range(3))
        self.dropout = VariationalDropout(dropout)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        h = self.second(F.relu(self.norms[0](self.first(z))))
        h = self.norms[1](self.dropout(h + u))
        return self.norms[2](F.relu(h + z))


class MultiscaleCell(nn.Module):
    """f(z, u): the states of all resolutions, and what is injected at each."""

    def __init__(self, widths: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        scales = range(len(widths))
        self.widths = widths
        self.blocks = nn.ModuleList(_Block(c, dropout) for c in widths)
        self.down = nn.ModuleDict({f"{r}-{s}": _downward(widths, r, s) for s in scales for r in range(s)})
        self.up = nn.ModuleDict({f"{r}-{s}": _conv(widths[r], widths[s], 1) for s in scales for r in scales if r > s})
        self.mixed = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(c, c, 1, bias=False), _norm(c, SMALL, nn.GroupNorm)) for c in widths
        )

    def initial(self, *u: Tensor) -> States:
        return tuple(torch.zeros_like(part) for part in u)

    def prepare(self, *u: Tensor) -> Callable[[States], States]:
        """Under autocast u is rounded once, not in every step."""
        rounded = tuple(part.to(_inner(part)) for part in u)
        return lambda z: self(z, *rounded)

    def forward(self, z: States, *u: Tensor) -> States:
        """Inside a step under autocast everything is in its precision; a state, which solvers compare, never is."""
        parts = zip(self.blocks, z, u, strict=True)
        h = [block(z.to(_inner(z)), u.to(_inner(u))) for block, z, u in parts]
        return tuple(self.mixed[s](self._heard(h, s)) for s in range(len(h)))

    def _heard(self, h: list[Tensor], s: int) -> Tensor:
        """What a resolution has itself, and hears of the others."""
        total = h[s]
        for r, other in enumerate(h):
            if r < s:
                total = total + self.down[f"{r}-{s}"](other)
            elif r > s:
                total = total + F.interpolate(self.up[f"{r}-{s}"](other), scale_factor=2 ** (r - s), mode="nearest")
        return total


def _inner(part: Tensor) -> torch.dtype:
    """What the convolutions compute in."""
    kind = part.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else part.dtype


def _downward(widths: tuple[int, ...], r: int, s: int) -> nn.Sequential:
    """From resolution r to s, halved at each step; the width changes at the last."""
    steps: list[nn.Module] = []
    for k in range(r, s):
        out = widths[s] if k + 1 == s else widths[r]
        steps += [_conv(widths[r], out, stride=2)] + ([nn.ReLU()] if k + 1 < s else [])
    return nn.Sequential(*steps)


class MultiscaleDEQ(EquilibriumModel):
    """images (B, C, H, W) -> logits (B, outputs). `deq` makes the DEQ round the cell."""

    def __init__(
        self,
        image: Shape = (3, 32, 32),
        widths: tuple[int, ...] = (24, 32, 48),
        outputs: int = 10,
        dropout: float = 0.0,
        deq: Callable[[MultiscaleCell], DEQ] = DEQ,
    ) -> None:
        super().__init__()
        part = 2 ** (len(widths) - 1)
        if image[1] % part or image[2] % part:
            raise KoopsimError(
                f"The image is {image[1]} x {image[2]}; {len(widths)} resolutions halve it {len(widths) - 1} times, so "
                f"its sides must be multiples of {part}. Use fewer widths, or pad the images."
            )
        if any(c % GROUPS for c in widths):
            raise KoopsimError(f"The widths are {widths}; expected multiples of {GROUPS}, the groups of a norm.")
        self.image = image
        self.stem = nn.Sequential(nn.Conv2d(image[0], widths[0], 3, padding=1), _norm(widths[0]), nn.ReLU())
        self.inject = nn.ModuleList(nn.Conv2d(widths[0], c, 3, padding=1) for c in widths)
        self.deq = deq(MultiscaleCell(widths, dropout))
        self.head = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, padding=1, bias=False), _norm(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.pool = max(1, min(image[1], image[2]) // part // READ)
        places = (image[1] // part // self.pool) * (image[2] // part // self.pool)
        self.readout = nn.Linear(places * widths[-1], outputs)

    def solve(self, x: Tensor, z0: States | None = None) -> tuple[States, DEQInfo]:
        """The equilibrium, a tensor a resolution, and how the solve went."""
        if x.dim() != 4 or tuple(x.shape[1:]) != tuple(self.image):
            given, expected = tuple(x.shape), ("batch", *self.image)
            raise KoopsimError(f"The images have shape {given}; expected {expected}. Build the model with their size.")
        return self.deq(*self.injected(x), z0=z0)

    def injected(self, x: Tensor) -> States:
        """u, what the cell sees of the images; in full precision, even under autocast."""
        dtype = self.readout.weight.dtype
        seen = self.stem(x.to(dtype))
        return tuple(inject(F.avg_pool2d(seen, 2**s) if s else seen).to(dtype) for s, inject in enumerate(self.inject))

    def health(self, x: Tensor) -> Any:
        return self.deq.health(*self.injected(x))

    def read(self, z: States) -> Tensor:
        """Logits from a state."""
        y, *coarser = z
        for step, part in zip(self.head, coarser, strict=True):
            y = step(y) + part
        return self.readout(F.avg_pool2d(F.relu(y), self.pool).flatten(1))


@dataclass(frozen=True)
class MultiscaleConfig(ModelConfig):
    """A multiscale DEQ; `widths` are the channels of each resolution, the finest first."""

    image: Shape = (3, 32, 32)
    widths: tuple[int, ...] = (24, 32, 48)
    outputs: int = 10
    dropout: float = 0.0
    forward: SolverConfig = field(default_factory=lambda: SolverConfig("anderson", 24, 1e-2))
    backward: SolverConfig = field(default_factory=lambda: SolverConfig("anderson", 20, 1e-2))
    gradient: str = "implicit"


@register
class MultiscaleKind(SolverKind):
    """Beside SIM and monDEQ in Table 2, at the same size: a row of our own."""

    config = MultiscaleConfig

    def build(self, config: MultiscaleConfig) -> MultiscaleDEQ:
        deq = deq_maker(config.forward, config.backward, config.gradient)
        return MultiscaleDEQ(config.image, config.widths, config.outputs, config.dropout, deq)

    def slug(self, config: MultiscaleConfig) -> str:
        return "mdeq-large" if _large(config) else "mdeq"

    def title(self, config: MultiscaleConfig) -> str:
        return "multiscale DEQ (large)" if _large(config) else "multiscale DEQ"

    def look(self, config: MultiscaleConfig, best: bool = False) -> Look:
        rank, colour = (4, "#134e4a") if _large(config) else (3, "#0f766e")
        return Look(self.title(config) + (" best" if best else ""), rank, colour)

    def for_images(self, config: MultiscaleConfig, shape: Shape, outputs: int) -> MultiscaleConfig:
        halvings = next(k for k in range(len(config.widths) - 1, -1, -1) if not shape[1] % 2**k | shape[2] % 2**k)
        return replace(config, image=shape, outputs=outputs, widths=config.widths[: halvings + 1])

    def smoke(self, run: Run) -> Run:
        """Narrow, on two resolutions: the same code in seconds."""
        return replace(run, model=replace(run.model, widths=(4, 8)))  # pyright: ignore[reportCallIssue]

    def presets(self) -> dict[str, Preset]:
        # Jacobian-free, with few steps: a fifth of the implicit gradient's time, and on the digits no less accurate.
        recipe = Recipe(batch_size=128, epochs=12, learning_rate=2e-3, schedule="onecycle", clip_norm=1.0)
        quick = MultiscaleConfig(forward=SolverConfig("anderson", 12, 1e-2), gradient="jacobian-free")
        found = {}
        for name, image, widths in (
            ("cifar10", (3, 32, 32), WIDTHS), ("svhn", (3, 32, 32), WIDTHS), ("mnist", (1, 28, 28), (16, 24, 28)),
        ):  # fmt: skip
            model = replace(quick, image=image, widths=widths)
            run = Run(model, ClassificationConfig(name), recipe, precision="bf16")
            found[f"{name}/mdeq"] = Preset(run)
        large = replace(recipe, epochs=8, weight_decay=0.01, label_smoothing=0.05, flip=True, shift=4)
        model = replace(quick, widths=LARGE)
        found["cifar10/mdeq-large"] = Preset(Run(model, ClassificationConfig("cifar10"), large, precision="bf16"))
        small = MultiscaleConfig((1, 8, 8), (8, 12))
        digits = Recipe(batch_size=32, epochs=12, learning_rate=3e-3, schedule="onecycle")
        found["digits/mdeq"] = Preset(Run(small, ClassificationConfig("digits"), digits))
        return found


def _large(config: MultiscaleConfig) -> bool:
    return sum(config.widths) >= sum(LARGE)


WIDTHS = (24, 32, 48)
LARGE = (64, 96, 160)
