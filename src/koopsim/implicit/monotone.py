"""monDEQ: an equilibrium network that has exactly one equilibrium, and finds it (paper, section 5.2).

    z* = relu(W z* + U x + b),   sym(I - W) >= m I                   Winston & Kolter, NeurIPS 2020

The image is padded by a border of zeros that the activation holds at zero. Each tier below the first has half the
pixels, so images must halve evenly; U feeds the first tier, the answer is read off the last. The equilibrium is
found by splitting (`splitting.py`), and so is the gradient: with J = relu' at z* and g = dL/dz*,

    dL/d(W z* + U x + b) = u,   u = J (W^T u + g)

which is handed to a record of W z* + U x + b, as in `gradient.py`. Whatever the number of steps, a forward builds W and
one inverse at each frequency.

Both systems are homogeneous, so each sample is solved for U x + b, or g, of size 1. On CUDA, where float32 products may
be TF32's (`torch.set_float32_matmul_precision`), a solve to a coarse tolerance keeps its iterates and matrices in
float16: the 11 significant bits that TF32 reads of them anyway, in half the bytes. The scaling keeps them in range.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.errors import KoopsimError
from koopsim.implicit.base import SolverModel
from koopsim.implicit.circular import AT_ONCE
from koopsim.implicit.ends import inject, pooled
from koopsim.implicit.gradient import _FixedPoint
from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning, capturing
from koopsim.implicit.iteration import Map
from koopsim.implicit.monotone_operator import Chain, MonotoneOperator, tiers_for
from koopsim.implicit.splitting import Projection, Sweep, Units, Until, split
from koopsim.implicit.stored import StoredChain
from koopsim.implicit.uncompiled import uncompiled

HALVINGS = 8  # the smallest step size tried is 2^-8 of the first
FIRST_LEVEL = 16
COARSE = 2e-3  # the smallest tolerance at which float16 will do: its rounding is 5e-4
POOL = 4  # of the readout, where there is one tier
SPLITTINGS = ("peaceman-rachford", "forward-backward")
Step = Chain | StoredChain  # T, and its transpose


@dataclass(frozen=True)
class Splitting:
    """How a monDEQ finds its equilibrium: the method, its step size (with `tune` the best of its halves), its end."""

    method: str = "peaceman-rachford"
    alpha: float = 1.0
    tune: bool = True
    max_steps: int = 300
    tol: float = 1e-2


USUAL = Splitting()


class MonDEQ(SolverModel):
    """images (B, C, H, W) -> logits (B, outputs).

    The state z is (B, D): the tiers one after the other, in an order of their own that `images` undoes.
    """

    mirrored = False  # each image turned by 180 degrees first: a tier then hears pixels 0, 2, 4, ..., as published

    LEVELS = (*range(2, 17), *range(18, 33, 2), 36, 40, 48, 56, 64, 80, 100, 128, 160, 200, 240)
    alpha: Tensor  # the step size a: on the device, so that a captured step follows it
    inside: Tensor

    def __init__(
        self,
        image: tuple[int, int, int] = (3, 32, 32),
        tiers: tuple[int, ...] = (81,),
        connected: bool = False,
        outputs: int = 10,
        monotonicity: float = 1.0,
        solving: Splitting = USUAL,
        scale: str = "exp",
    ) -> None:
        super().__init__()
        if solving.method not in SPLITTINGS:
            raise KoopsimError(f"The splitting is {solving.method!r}; expected one of {', '.join(SPLITTINGS)}.")
        self.image, self.connected, self.splitting = image, connected, solving.method
        self.first_alpha, self.tune = solving.alpha, solving.tune
        self.max_steps, self.tol = solving.max_steps, solving.tol
        self.operator = MonotoneOperator(tiers_for(image, tiers, connected), monotonicity, scale)
        self.tiers = self.operator.tiers
        channels, last = image[0], self.tiers[-1]
        if connected:
            self.U: nn.Linear | nn.Conv2d = nn.Linear(math.prod(image), tiers[0])
            features = last.size
        else:
            self.U = nn.Conv2d(channels, tiers[0], 3, padding=1)
            pool = POOL if len(tiers) == 1 else 1
            features = last.channels * (last.grid.height // pool) * (last.grid.width // pool)
        self.readout = nn.Linear(features, outputs)
        self.register_buffer("alpha", torch.tensor(float(solving.alpha)))
        self.register_buffer("inside", self._inside(), persistent=False)
        first = min(FIRST_LEVEL, self.max_steps)
        self._captured_steps = (first, first)
        self._warned: set[str] = set()

    @staticmethod
    def from_published(
        state: Mapping[str, Tensor], image: tuple[int, int, int], monotonicity: float | None = None
    ) -> MonDEQ:
        """The model of a checkpoint of the published code (`published.py`), for images (channels, height, width)."""
        from koopsim.implicit.published import mondeq_from_published

        return mondeq_from_published(state, image, monotonicity)

    def forward(self, x: Tensor) -> Tensor:
        z, self.last_info = self.solve(x)
        return self.readout(self._features(z.mT))

    @uncompiled
    def solve(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
        """The equilibrium (B, D), begun at z0 (B, D) if given, and how the solve went."""
        with torch.autocast(x.device.type, enabled=False):  # a solve to a tolerance is no place for bfloat16
            q, W = self._inject(x), self.operator.linear()
            with torch.no_grad():
                T = self._step(W)
                v0 = None if z0 is None else self._dual(W, q, self._checked(z0, q))
                z, info = self._solve("forward", T, q.detach(), Projection(self.inside, rectify=True), v0)
            solved = DEQInfo(info)
            if not (torch.is_grad_enabled() and (q.requires_grad or W.matrices[0].requires_grad)):
                return z.mT, solved
            tape = W.recorded(z, q)
            adjoint = functools.partial(self._adjoint, T, (z > 0).view(torch.uint8), solved)
            return _FixedPoint.apply(tape, z, adjoint).mT, solved

    def prepare(self, x: Tensor) -> Map:
        """z -> relu(W z + U x + b), (B, D) -> (B, D): the plain iteration, for those who look at it."""
        q, W = self._inject(x), self.operator.linear()
        return lambda z: (torch.relu(W(z.mT.contiguous()) + q) * self.inside).mT

    def initial(self, x: Tensor) -> Tensor:
        return self.readout.weight.new_zeros(x.shape[0], self.inside.shape[0])

    def images(self, z: Tensor) -> list[Tensor]:
        """A state (B, D) as the images (B, channels, height, width) of its tiers, borders included."""
        parts = z.mT.split([tier.size for tier in self.tiers])
        images = [
            tier.grid.unfold(part.reshape(tier.grid.rows, tier.grid.columns, tier.depth, -1)).permute(3, 2, 0, 1)
            for tier, part in zip(self.tiers, parts, strict=True)
        ]
        return [image.flip(2, 3) for image in images] if self.mirrored else images

    @torch.no_grad()
    def tune_alpha(self, x: Tensor) -> float:
        """Try the first step size and its halves on a batch, and keep the one that needs the fewest steps.

        The trial ends once halving makes it worse. The equilibrium is the same for all of them.
        """
        q, W, P = self._inject(x), self.operator.linear(), Projection(self.inside, rectify=True)
        best, fewest, longest = self.first_alpha, math.inf, self.max_steps
        for halving in range(HALVINGS + 1):
            self.alpha.fill_(self.first_alpha * 0.5**halving)
            T = self._step(W)
            _, info = self._split(T, q, P, Until(self.max_steps, self.tol, check_every=1))
            needed = float((info.steps + ~info.converged).double().mean())
            if needed < fewest:
                best, fewest, longest = self.first_alpha * 0.5**halving, needed, int(info.steps.max())
            elif bool(info.converged.all()):
                break
        self.alpha.fill_(best)
        self.longest.clamp_(min=longest)  # a first guess for captured steps
        return best

    def start_epoch(self, x: Tensor) -> None:
        """Choose the step size by a batch, where it is to be tuned."""
        if self.tune:
            self.tune_alpha(x)

    def diagnostics(self) -> dict[str, Tensor]:
        """How the last forward and backward solves went, for the metrics of a run, and the step size."""
        return {} if self.last_info is None else super().diagnostics() | {"alpha": self.alpha.double()}

    @property
    def limits(self) -> tuple[int, int]:
        return self.max_steps, self.max_steps

    @property
    def captured_steps(self) -> tuple[int, int]:
        return self._captured_steps

    @captured_steps.setter
    def captured_steps(self, steps: tuple[int, int]) -> None:
        self._captured_steps = steps

    def _budget(self, needed: int, now: int, limit: int) -> int:
        """A budget is left as it is for the sake of one step less: each is a graph of its own."""
        level = super()._budget(needed, now, limit)
        return now if level == now - 1 else level

    # ------------------------------------------------------------ inside, a state is (D, B)

    def _features(self, z: Tensor) -> Tensor:
        """The last tier, its images pooled where there is no other: (D, B) -> (B, features)."""
        last, one = self.tiers[-1], len(self.tiers) == 1
        image = (z if one else z[-last.size :]).reshape(last.grid.rows, last.grid.columns, last.depth, -1)
        if one and not self.connected:
            image = pooled(image, POOL)
        return image.permute(3, 2, 0, 1).flatten(1)

    def _inject(self, x: Tensor) -> Tensor:
        """U x + b in the first tier, 0 on its border and in the others: (B, C, H, W) -> (D, B)."""
        if x.dim() != 4 or tuple(x.shape[1:]) != tuple(self.image):
            given, expected = tuple(x.shape), ("batch", *self.image)
            raise KoopsimError(f"The images have shape {given}; expected {expected}. Build the model with their size.")
        x = x.to(self.readout.weight.dtype)
        x = x.flip(2, 3) if self.mirrored else x
        if self.connected:
            return self.U(x.flatten(1)).mT
        assert self.U.bias is not None
        q = inject(x.permute(2, 3, 1, 0), self.U.weight, self.U.bias)
        q = self.tiers[0].grid.fold(q).reshape(self.tiers[0].size, -1)
        return F.pad(q, (0, 0, 0, self._below)) if self._below else q

    @property
    def _below(self) -> int:
        """How much of a state lies in the tiers below the first."""
        return sum(tier.size for tier in self.tiers[1:])

    def _inside(self) -> Tensor:
        """1 for pixels, 0 for the border: (D, 1)."""
        parts = []
        for tier in self.tiers:
            grid = tier.grid
            ones = torch.ones(grid.height, grid.width, tier.channels, 1)
            if not self.connected:
                ones[0], ones[-1], ones[:, 0], ones[:, -1] = 0, 0, 0, 0
            parts.append(grid.fold(ones).reshape(tier.size, 1))
        return torch.cat(parts)

    def _step(self, W: Chain) -> Step:
        """T, for states of the precision of `_rounded`."""
        make = self.operator.reflected if self.splitting == "peaceman-rachford" else self.operator.relaxed
        dtype, grid = self._rounded(W.matrices[0]), self.tiers[0].grid
        step = make(W, self.alpha, dtype)
        if dtype != torch.float16 or grid.rows * grid.columns > AT_ONCE:
            return step
        return StoredChain(step.tiers, step.matrices, paired=len(self.tiers) == 1 and grid.pairs)

    def _rounded(self, like: Tensor) -> torch.dtype:
        """What the iterates of a solve are rounded to."""
        coarse = self.tol >= COARSE and torch.get_float32_matmul_precision() != "highest"
        return torch.float16 if coarse and like.is_cuda and like.dtype == torch.float32 else like.dtype

    def _dual(self, W: Chain, q: Tensor, z: Tensor) -> Tensor:
        """v with P(v) = z and T s(v) + c = v, were z the equilibrium: (1 - a) z + a (W z + q)."""
        return self.operator.relaxed(W, self.alpha)(z) + self.alpha * q

    def _checked(self, z0: Tensor, q: Tensor) -> Tensor:
        if z0.shape != (q.shape[1], q.shape[0]):
            raise KoopsimError(
                f"The solve was to start from a state of shape {tuple(z0.shape)}; this monDEQ's is "
                f"{(q.shape[1], q.shape[0])}. Give one that solve() returned."
            )
        return torch.relu(z0.detach().mT.to(q)) * self.inside

    def _adjoint(self, T: Step, units: Tensor, solved: DEQInfo, g: Tensor) -> Tensor:
        """u = J (W^T u + g)."""
        with torch.no_grad(), torch.autocast(g.device.type, enabled=False):
            u, solved.backward = self._solve("backward", T, g, Projection(units, rectify=False))
        return u

    def _split(
        self, T: Step, q: Tensor, P: Projection, until: Until, transposed: bool = False, v0: Tensor | None = None
    ) -> tuple[Tensor, Info]:
        # z is homogeneous in q: solving for q of size 1 keeps tiny gradients clear of underflow, and all of float16.
        size = _largest(q) if v0 is None else torch.maximum(_largest(q), _largest(v0))
        reflect, units = self.splitting == "peaceman-rachford", Units(self.alpha / size, size)
        sweep = Sweep(reflect, until, T.storage(transposed), units)
        return split(T.transposed if transposed else T, q, P, sweep, None if v0 is None else v0 / size)

    def _solve(self, way: str, T: Step, q: Tensor, P: Projection, v0: Tensor | None = None) -> tuple[Tensor, Info]:
        max_steps, backward = self.max_steps, way == "backward"
        if capturing():
            max_steps = min(max_steps, self.captured_steps[backward])
        z, info = self._split(T, q, P, Until(max_steps, self.tol), backward, v0)
        if way not in self._warned and not capturing() and not info.converged.all():
            self._warned.add(way)
            count, total = int((~info.converged).sum()), info.converged.numel()
            warnings.warn(
                f"the {way} solve left {count} of {total} samples above tol={self.tol:g} after {max_steps} "
                f"steps of {self.splitting}; the worst relative residual is {info.residuals.max():.2g}. Try a "
                "smaller alpha, tune_alpha(x), more steps or a larger tolerance. Each call's residuals are in its "
                "info; this is said once.",
                UnconvergedWarning,
                stacklevel=7,  # whoever called the model
            )
        return z, info


def _largest(q: Tensor) -> Tensor:
    """Of each sample the largest magnitude; never so small that a step size over it overflows: (D, B) -> (B,)"""
    # In two stages: with B results only, a GPU has little to do at a time. A norm is ten times slower on a CPU.
    parts = q.unflatten(0, (-1, next(k for k in range(math.isqrt(len(q)), 0, -1) if len(q) % k == 0)))
    return torch.maximum(parts.amax(1), -parts.amin(1)).amax(0).clamp_min(2.0**20 * torch.finfo(q.dtype).tiny)
