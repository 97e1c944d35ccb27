"""P models of equal shapes and all that a step changes of them, P >= 1.

    flat, mean, square   (P, n)    parameters and Adam's two moments, a row a member
    steps, positions     (P,)      steps taken in all, and in this epoch
    schedules            (P, S, 4) a row of `schedule.adam_table` for each member and step
    losses               (P, E)    of this epoch

Training is P = 1, a set of pictures P of them, a search its trials. Nothing flows between members: each gives the
numbers it gives alone (up to the order of additions), one that diverges spoils nobody, and a row can be stopped or
given to a new model between two steps. Shapes and addresses stay, and with them the captured step.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from koopsim.config import Recipe
from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Rule:
    """What members have in common: Adam's settings, and how their gradients are taken.

    decay      apply the schedules' weight decay, to matrices and kernels only
    average    judge a member by the average of its parameters and statistics with this decay; 0: by the last ones
    scale      gradients are taken of the loss times this, so that none is too small for float16; Adam's eps and the
               clipping take it along, and what it does to the moments cancels
    """

    eps: float = 1e-8
    clip_norm: float | None = None
    decay: bool = False
    average: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, recipe: Recipe, scale: float = 1.0) -> "Rule":
        return cls(recipe.eps, recipe.clip_norm, recipe.weight_decay > 0, recipe.average, scale)


class Members:
    """The state of P models, and the models it is the state of."""

    whole = True  # whether all of a model is here (sharded.py: a share of it)

    def __init__(self, models: Sequence[nn.Module], schedules: Tensor, epoch_steps: int, rule: Rule):
        _equal_shapes(models)
        first = models[0]
        self.size, self.rule = len(models), rule
        self.template = first if self.size == 1 else copy.deepcopy(first).to("meta")  # the structure
        self.shapes = {name: p.shape for name, p in self.learnt(first).items()}
        self.flat = torch.stack([torch.cat([t.reshape(-1) for t in self.learnt(m).values()]) for m in models])
        self.parameters = {n: v.detach().requires_grad_() for n, v in self.views(self.flat).items()}
        constant = [dict(m.named_buffers()) | _frozen(m) for m in models]
        self.buffers = {name: torch.stack([own[name].detach() for own in constant]) for name in constant[0]}
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.averaged: dict[str, Tensor] = self._averages() if rule.average else {}
        self.decayed = self._matrices() if rule.decay else None
        self.slots = torch.arange(self.size, device=self.device)
        self.steps = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros_like(self.steps)
        self.active = torch.ones(self.size, dtype=torch.bool, device=self.device)
        self.losses = self.flat.new_zeros(self.size, epoch_steps)
        self.schedules = schedules.to(self.flat).contiguous()
        if len(self.schedules) != self.size:
            raise KoopsimError(f"There are {self.size} models and schedules for {len(schedules)}; give one for each.")

    def learnt(self, model: nn.Module) -> dict[str, Tensor]:
        """What is learnt of a model, by name."""
        return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    @property
    def device(self) -> torch.device:
        return self.flat.device

    @property
    def horizon(self) -> int:
        """The steps a schedule has room for."""
        return self.schedules.shape[1]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Vectors (P, n) as the parameters they are made of, each (P, *shape), without a copy."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = flat.split(sizes, dim=1)
        return {
            name: v.unflatten(1, s) if s else v[:, 0] for (name, s), v in zip(self.shapes.items(), pieces, strict=True)
        }

    def _matrices(self) -> Tensor:
        """(n,): 1 where a matrix or kernel has its entries, 0 at biases and gains, which do not decay."""
        return torch.cat([self.flat.new_full((s.numel(),), float(len(s) > 1)) for s in self.shapes.values()])

    def _averages(self) -> dict[str, Tensor]:
        moving = {name: torch.zeros_like(t) for name, t in self.buffers.items() if "running_" in name}  # BatchNorm's
        return {"parameters": torch.zeros_like(self.flat)} | moving

    def attach(self) -> nn.Module:
        """The one model of P = 1, its tensors made views of row 0: what it computes moves the members."""
        model = self.template
        for name, p in model.named_parameters():
            if name in self.parameters:
                p.data = self.parameters[name].detach()[0]
        self._attach_buffers(model)
        return model

    def _attach_buffers(self, model: nn.Module) -> None:
        for prefix, module in model.named_modules():
            for name in [n for n, b in module._buffers.items() if b is not None]:
                module._buffers[name] = self.buffers[f"{prefix}.{name}" if prefix else name][0]

    def going(self) -> Tensor:
        """(P,): who is active and not at the end."""
        return self.active & (self.steps < self.horizon)

    # ------------------------------------------------------------ rows

    @torch.no_grad()
    def put(self, row: int, model: nn.Module, schedule: Tensor) -> None:
        """Give `row` to a new model at its first step; the others notice nothing."""
        for name, t in (*model.named_parameters(), *model.named_buffers()):
            (self.parameters | self.buffers)[name][row].copy_(t)
        self.schedules[row].copy_(schedule)
        for tensor in (self.mean, self.square, self.steps, self.positions, self.losses, *self.averaged.values()):
            tensor[row].zero_()
        self.active[row] = True

    def stop(self, rows: Sequence[int]) -> None:
        """Freeze these members where they are."""
        self.active[list(rows)] = False

    def begin_epoch(self) -> None:
        self.positions.zero_()
        self.losses.zero_()

    @torch.no_grad()
    def judged(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Parameters and buffers of some members as they are judged: the last ones, or their average."""
        which = torch.as_tensor(list(rows), device=self.device)
        own = {name: t.detach()[which] for name, t in (self.parameters | self.buffers).items()}
        if not self.averaged:
            return own
        weight = (1 - self.rule.average ** self.steps[which].double()).to(self.flat.dtype)
        young = weight == 0
        average = {name: t for name, t in self.averaged.items() if name != "parameters"}
        for name, t in (self.views(self.averaged["parameters"]) | average).items():
            shape = (-1, *[1] * (t.ndim - 1))
            mean = t[which] / weight.view(shape)
            own[name] = torch.where(young.view(shape), own[name], mean).to(own[name].dtype)
        return own

    def model(self, row: int) -> nn.Module:
        """Member `row` as it is judged, as a module of its own."""
        model = copy.deepcopy(self.template)
        model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=self.device))  # `to_empty` imports sympy
        own = self.judged([row])
        with torch.no_grad():
            for name, t in (*model.named_parameters(), *model.named_buffers()):
                t.copy_(own[name][0])
        return model

    def models(self) -> Iterator[nn.Module]:
        """The members as they are judged, one by one."""
        return (self.model(row) for row in range(self.size))

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes: what a checkpoint holds and a capture restores."""
        own = {"flat": self.flat, "mean": self.mean, "square": self.square, "steps": self.steps}
        own |= {"positions": self.positions, "active": self.active, "losses": self.losses}
        own |= {f"averaged.{name}": t for name, t in self.averaged.items()}
        return own | {f"buffer.{name}": t for name, t in self.buffers.items()}

    def meet(self) -> None:
        """Before `state` and `model`, by all processes: what is spread over them comes together."""

    def expected(self) -> dict[str, Tensor]:
        """What `take` has to be given: of these names, shapes and kinds."""
        return self.state()

    @torch.no_grad()
    def take(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def layout(self) -> dict[str, list[int]]:
        """What a row of `flat` is made of, in order: a checkpoint of another model is known by it."""
        return {name: list(shape) for name, shape in self.shapes.items()}


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}


def _equal_shapes(models: Sequence[nn.Module]) -> None:
    shapes = [{name: t.shape for name, t in m.state_dict(keep_vars=True).items()} for m in models]
    for i, other in enumerate(shapes):
        if other != shapes[0]:
            name = next(n for n in (*shapes[0], *other) if shapes[0].get(n) != other.get(n))
            raise KoopsimError(
                f"Model {i} cannot be stacked on the first: {name!r} is {_shape(other.get(name))} there and "
                f"{_shape(shapes[0].get(name))} here. Stack models of equal shapes only."
            )


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape)) or "a number"
