"""One large model over several processes, each with a share of every parameter: FSDP2.

    rank r keeps rows [r d/N, (r+1) d/N) of each parameter, of its gradient and of Adam's moments
    forward, backward:  a block's parameters are gathered when it is called, and let go of      (torch's fully_shard)
    g = sum_r w_r g_r   is scattered as it is summed                                  Zhao et al., 2023; ZeRO, 2020

Adam goes number by number, so each rank updates its share as a model of its own (members.py, update.py). For a
checkpoint and for judging the shares meet, a parameter at a time, on rank 0: the file is that of one process, and goes
on with any number of them, sharded or not. Steps are not captured.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.engine.blocks import called_blocks
from koopsim.engine.gradients import Batch, Gradients, Loss
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import BESIDE_NORM
from koopsim.engine.world import World
from koopsim.errors import KoopsimError
from koopsim.implicit.base import SolverModel


def sharded(model: nn.Module, world: World) -> nn.Module:
    """The model, in place, its parameters over all processes; what cannot be is refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if world.alone:
        raise KoopsimError("--shard needs several processes to share a model: give --devices N, or use torchrun.")
    if isinstance(model, SolverModel):
        raise KoopsimError(f"{type(model).__name__} has a solver inside, which cannot be sharded; leave --shard out.")
    odd = next((name for name, p in model.named_parameters() if p.ndim == 0 or not p.requires_grad), None)
    if odd is not None:
        raise KoopsimError(f"The parameter {odd!r} is a single number or frozen, which cannot be sharded.")
    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    for module in (*called_blocks(model), model):
        fully_shard(module, mesh=mesh)
    return model


class ShardedMembers(Members):
    """P = 1: this rank's share of a model."""

    whole = False

    def __init__(self, model: nn.Module, schedules: Tensor, epoch_steps: int, rule: Rule, world: World):
        self.world, self.shapes_of_all = world, {n: p.shape for n, p in model.named_parameters()}
        self.plain = copy.deepcopy(model, {id(p): _nowhere(p) for p in model.parameters()})  # the structure, no copy
        self.gathered: dict[str, Tensor] = {}  # the state of the whole, when last they met; rank 0's alone
        super().__init__([sharded(model, world)], schedules, epoch_steps, replace(rule, clip_norm=None))

    def learnt(self, model: nn.Module) -> dict[str, Tensor]:
        return {name: _local(p).detach() for name, p in model.named_parameters()}

    def attach(self) -> nn.Module:
        """The model itself; `spread` brings it the parameters, its buffers are the members'."""
        self._attach_buffers(self.template)
        return self.template

    @torch.no_grad()
    def spread(self) -> None:
        """What an update has moved, to where the next forward pass gathers it from."""
        own = [_local(p) for p in self.template.parameters()]
        torch._foreach_copy_(own, [v[0] for v in self.views(self.flat).values()])

    # ------------------------------------------------------------ the whole of it

    def _over_all(self) -> dict[str, Tensor]:
        """The tensors of which this rank has a share."""
        own = {"flat": self.flat, "mean": self.mean, "square": self.square}
        return own | ({"averaged.parameters": self.averaged["parameters"]} if self.averaged else {})

    @torch.no_grad()
    def meet(self) -> None:
        """All ranks call it: rank 0 gets the whole state, in its host's memory."""
        found = {}
        for name, share in self._over_all().items():
            rows = [self._whole(n, v[0]) for n, v in self.views(share).items()]
            if self.world.first:
                found[name] = torch.cat(rows).unsqueeze(0)
        self.gathered = super().state() | found if self.world.first else {}

    def _whole(self, name: str, share: Tensor) -> Tensor:
        """All of a parameter's numbers from every rank's share of them."""
        from torch.distributed.tensor import DTensor

        like: Any = self.template.get_parameter(name)
        whole = DTensor.from_local(
            share, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        ).full_tensor()
        return whole.reshape(-1).cpu() if self.world.first else whole.new_empty(0)

    def state(self) -> dict[str, Tensor]:
        """Of the whole, as it was when they last met; on other ranks only that nothing is missing is known."""
        return self.gathered

    @torch.no_grad()
    def take(self, state: dict[str, Tensor]) -> None:
        own, rest = self._over_all(), super().state()
        for name, share in own.items():
            pieces = state[name][0].split([s.numel() for s in self.shapes_of_all.values()])
            pairs = zip(self.shapes_of_all.items(), pieces, strict=True)
            whole = {n: piece.view(shape) for (n, shape), piece in pairs}
            for n, place in self.views(share).items():
                mine = whole[n].chunk(self.world.size)[self.world.rank :][:1]
                if mine:
                    place[0].copy_(mine[0])
        for name in rest.keys() - own.keys():
            rest[name].copy_(state[name])

    def expected(self) -> dict[str, Tensor]:
        n = sum(s.numel() for s in self.shapes_of_all.values())
        return super().state() | {name: torch.empty(1, n, device="meta") for name in self._over_all()}

    def layout(self) -> dict[str, list[int]]:
        return {name: list(shape) for name, shape in self.shapes_of_all.items()}

    def model(self, row: int) -> nn.Module:
        """The whole model as it is judged, on rank 0, once they have met."""
        alone = Members([self._filled()], torch.zeros(1, 1, 4), 1, replace(self.rule, decay=False))
        alone.take({name: self.gathered[name] for name in alone.state() if name != "losses"} | {"losses": alone.losses})
        return alone.model(row)

    def _filled(self) -> nn.Module:
        model = copy.deepcopy(self.plain)
        return model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=self.device))


class Sharded(Gradients):
    """The gradient of this rank's share, summed over all of them on its way here."""

    members: ShardedMembers

    def __init__(self, members: ShardedMembers, loss: Loss, shared: tuple[bool, ...], rule: Rule, autocast: Any = None):
        super().__init__(members, loss, shared, autocast)
        self.model, self.clip_norm = members.attach(), rule.clip_norm

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.members.spread()
        own = tuple(t if shared else t[0] for t, shared in zip(batch, self.shared, strict=True))
        with self.cast(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of outputs changed in place: ours are not
            loss = self.loss(self.model, *own)
        (self.world.size * self.scale * loss).backward()  # FSDP takes the mean over ranks
        pieces = []
        for p in self.model.parameters():
            pieces.append(torch.zeros_like(_local(p)) if p.grad is None else _local(p.grad))
            p.grad = None
        return self.counted(loss.reshape(1)), torch.cat([t.reshape(-1) for t in pieces]).unsqueeze(0)

    def add_up(self, losses: Tensor, g: Tensor) -> None:
        """Of g each has its share of the sum already; a norm is over all of it."""
        self.world.add_up(losses)
        if self.clip_norm is not None:
            square = g.square().sum()
            self.world.add_up(square)
            g.mul_((self.members.rule.scale * self.clip_norm / (square.sqrt() + BESIDE_NORM)).clamp_(max=1.0))


def _nowhere(p: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)


def _local(tensor: Any) -> Tensor:
    """This rank's part of a DTensor."""
    return tensor.to_local()
