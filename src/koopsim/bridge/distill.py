"""A SIM taught by a trained DEQ: its state map is fitted to the equilibria.

    min over mu, U, V, nu of  mean || nu(U V mu(x)) - z*(x) ||^2,    z* = f(z*, x)      paper, eq. (8) and (10)

The DEQ is solved once for each input; after that it is plain regression, with Adam on a cosine. Where the DEQ
reads an answer off its state by a linear layer, the SIM is given the same one (h), so that it does the task.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from koopsim.bridge.hidden import Solvable, check_inputs, solve
from koopsim.config import LiftConfig, MLPConfig, Recipe, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.implicit import TransformerDEQ, UnconvergedWarning
from koopsim.nn import MLP, SIM
from koopsim.nn.tokens import TokenTCN, TokenTCNConfig
from koopsim.tasks import Task
from koopsim.train import Trainer


@dataclass(frozen=True)
class DistillReport:
    """How close the SIM's state is to the equilibria, relative to how far these spread around their mean and to
    their size, on what it was fitted to and on what was held out; and the task's figures of both models."""

    train_error: float  # || z_sim - z* || / || z* ||
    heldout_error: float
    heldout_centred: float  # || z_sim - z* || / || z* - mean z* ||: 1 is what a constant would reach
    inputs: int
    heldout: int
    unconverged: int  # inputs whose equilibrium the DEQ's solver did not reach; left out
    task_deq: dict[str, float] | None = None
    task_sim: dict[str, float] | None = None


def distill(
    deq: Solvable,
    inputs: Tensor,
    lift: nn.Module | None = None,
    lift_dim: int = 64,
    rank: int | None = None,
    projector: bool = False,
    epochs: int = 60,
    batch_size: int = 20,
    learning_rate: float = 3e-3,
    heldout: float = 0.2,
    readout: nn.Linear | None = None,
    task: Task | None = None,
    seed: int = 0,
) -> tuple[SIM, DistillReport]:
    """A SIM whose `state(x)` is close to the DEQ's z*(x), and how close.

    lift      mu; by default a TCN on the embedding of a TransformerDEQ, an MLP on inputs that are vectors
    heldout   the share of the inputs that is not fitted, the last ones
    readout   how the DEQ reads its answer off the state, where `deq` is not a TransformerDEQ, which knows its own
    task      its test split is evaluated with both models
    """
    check_inputs(inputs)
    held = round(heldout * len(inputs))
    if not 0 < heldout < 1 or held < 1 or held >= len(inputs):
        raise KoopsimError(f"{len(inputs)} inputs with heldout={heldout} leave {held} to test on; need at least 1.")
    z, converged = equilibria(deq, inputs)
    x, z, unconverged = inputs[converged], z[converged], int((~converged).sum())
    fitted = len(inputs) - held - int((~converged[: len(inputs) - held]).sum())
    if fitted < 1 or fitted >= len(x):
        raise KoopsimError(f"The DEQ's solver failed on {unconverged} of {len(inputs)} inputs; none are left to fit.")
    torch.manual_seed(seed)
    sim = student(deq, x, z, lift, lift_dim, rank, projector, readout).to(z)
    teach(sim, x[:fitted], z[:fitted], epochs, batch_size, learning_rate, seed)
    errors = relative_error(sim, x[:fitted], z[:fitted]), relative_error(sim, x[fitted:], z[fitted:])
    mean = z[:fitted].mean(dim=0)
    centred = errors[1] * float(z[fitted:].norm() / (z[fitted:] - mean).norm())
    figures = [task.evaluate(m, "test") if task is not None else None for m in (deq, sim)]
    return sim, DistillReport(*errors, centred, fitted, len(x) - fitted, unconverged, *figures)


@torch.no_grad()
def equilibria(deq: Solvable, inputs: Tensor, batch: int = 64) -> tuple[Tensor, Tensor]:
    """(z*, whether the solver reached it), an input each, by the DEQ's own solver."""
    parts, converged = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)  # they are counted, and left out
        for x in inputs.split(batch):
            z, info = solve(deq, x)
            parts.append(z.detach())
            converged.append(info.converged)
    return torch.cat(parts), torch.cat(converged)


class _States(nn.Module):
    """The SIM's state map as a model of its own."""

    def __init__(self, sim: SIM):
        super().__init__()
        self.sim = sim

    def forward(self, x: Tensor) -> Tensor:
        return self.sim.state(x)


def teach(sim: SIM, x: Tensor, z: Tensor, epochs: int, batch_size: int, learning_rate: float, seed: int = 0) -> None:
    """Fit `sim.state(x)` to z by least squares; h stays as it is."""
    with torch.no_grad():
        target = z.reshape(len(z), *sim.state(x[:1]).shape[1:])
    scale = float(target.std()) or 1.0
    recipe = Recipe(batch_size, epochs, learning_rate, schedule="cosine", clip_norm=1.0)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) / scale).square().mean()

    trained = sim.h.weight.requires_grad
    sim.h.requires_grad_(False)
    trainer = Trainer(_States(sim), loss, (x, target), recipe, seed)
    for epoch in range(epochs):
        trainer.start_epoch(epoch)
        trainer.run(0, trainer.steps_per_epoch)
    sim.h.requires_grad_(trained)


@torch.no_grad()
def relative_error(sim: SIM, x: Tensor, z: Tensor) -> float:
    """|| z_sim - z* || / || z* || over all samples."""
    return float((sim.state(x).reshape(z.shape) - z).norm() / z.norm())


def student(
    deq: Solvable, x: Tensor, z: Tensor, lift: nn.Module | None = None, lift_dim: int = 64, rank: int | None = None,
    projector: bool = False, readout: nn.Linear | None = None,
) -> SIM:  # fmt: skip
    """A SIM, untrained, whose state has the size of the equilibria z and whose h reads them as the DEQ does."""
    sequence = isinstance(deq, TransformerDEQ)
    hidden = z.shape[-1] if sequence else z[0].numel()
    config: LiftConfig | None = None  # of a lift that is made here
    if lift is None and isinstance(deq, TransformerDEQ):
        levels = max(1, (x.shape[1] - 1).bit_length() - 1)
        vocabulary, width = deq.embedding.shape
        lift, config = TokenTCN(deq.embedding, lift_dim, levels), TokenTCNConfig(vocabulary, width, levels)
    if lift is None:
        if x.dim() != 2 or not x.is_floating_point():
            raise KoopsimError(f"For inputs of shape {tuple(x.shape)} name the lift: distill(deq, inputs, lift=...).")
        lift, config = MLP(x.shape[1], 2 * lift_dim, lift_dim), MLPConfig(x.shape[1], 2 * lift_dim)
    weight, bias = (deq.embedding, deq.output_bias) if isinstance(deq, TransformerDEQ) else _parts(readout)
    sim = SIM(lift, lift_dim, hidden if weight is None else weight.shape[0], hidden, rank=rank, projector=projector)
    if config is not None:
        sizes = {"lift_dim": lift_dim, "rank": rank, "projector": projector}
        sim.config = SIMConfig(config, **sizes, hidden=hidden, outputs=sim.h.out_features)
    _pass_through(sim, float(z.abs().max()))
    if weight is not None:
        with torch.no_grad():
            sim.h.weight.copy_(weight)
            sim.h.bias.copy_(bias if bias is not None else torch.zeros_like(sim.h.bias))
    else:
        nn.init.eye_(sim.h.weight)
        nn.init.zeros_(sim.h.bias)
    return sim


@torch.no_grad()
def _pass_through(sim: SIM, reach: float) -> None:
    """Let nu begin as a linear map: states lifted by their reach go through a ReLU of their own width unharmed."""
    first, _, second, _, last = sim.nu
    for layer, shift in ((first, reach), (second, 0.0), (last, -reach)):
        cast(nn.Linear, layer).bias.fill_(shift)
    for layer in (second, last):
        nn.init.eye_(cast(nn.Linear, layer).weight)


def _parts(readout: nn.Linear | None) -> tuple[Any, Any]:
    return (None, None) if readout is None else (readout.weight, readout.bias)
