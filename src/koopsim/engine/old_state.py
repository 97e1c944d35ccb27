"""States that koopsim 0.1 wrote, in the names of today.

a run        model.NAME, adam.mean, adam.square, epoch.losses ...        one model, nothing stacked
pictures     groupG.flat, groupG.losses (P, all steps) ...               a group of pictures
a search     flat (P, n), losses (P, all steps) ...; or of a trainer: flat (n,), counters, losses ...
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.config import Run
from koopsim.engine.members import Members
from koopsim.errors import KoopsimError
from koopsim.models import build

State = dict[str, Tensor]


def modern(state: State, members: Members, ages: Sequence[int] | None = None) -> State:
    """The state under today's names and shapes, for these members; one of today stays as it is."""
    if "positions" in state or "losses" not in state:
        return state
    own = members.state()
    found = _trainer(state) if "counters" in state else _population(state, members, ages or [0] * members.size)
    known = {n: t for n, t in found.items() if n in own or n.startswith("diagnostics.")}
    missing = {n: t for n, t in own.items() if n not in known}  # buffers that were not kept, and what is new
    return known | missing


def _trainer(state: State) -> State:
    """Of one model: a leading axis, and the two counters apart."""
    found = {n: t if n.startswith("diagnostics.") else t.unsqueeze(0) for n, t in state.items() if n != "counters"}
    step, position = state["counters"].long()
    return found | {"steps": step.reshape(1), "positions": position.reshape(1)}


def _population(state: State, members: Members, ages: Sequence[int]) -> State:
    """Of many: losses of this epoch only, and the place in it."""
    found = {n: t for n, t in state.items() if n not in ("losses", "averaged")}
    if "averaged" in state:
        found["averaged.parameters"] = state["averaged"]
    epoch_steps = members.losses.shape[1]
    losses = torch.zeros_like(members.losses, device="cpu")
    positions = torch.zeros_like(members.steps, device="cpu")
    for row, age in enumerate(ages):
        piece = state["losses"][row, age * epoch_steps : (age + 1) * epoch_steps]
        losses[row, : len(piece)] = piece.nan_to_num(0.0)
        positions[row] = (state["steps"][row] - age * epoch_steps).clamp(0, epoch_steps)
    return found | {"losses": losses, "positions": positions}


def run_of_old(
    tensors: Mapping[str, Tensor], header: Mapping[str, Any], run: Run, path: Path
) -> tuple[dict[int, State], dict[str, Any]]:
    """(states by part, how far) of a run's checkpoint from before; one line where it is none."""
    pictures, position = header.get("pictures"), header.get("position")
    if isinstance(pictures, dict):
        parts: dict[int, State] = {}
        for name, tensor in tensors.items():
            group, _, inner = name.partition(".")
            if group.startswith("group") and group[5:].isdecimal():
                parts.setdefault(int(group[5:]), {})[inner] = tensor
        steps = run.recipe.epochs * getattr(run.task, "steps_an_epoch", 1)
        return {g: _finished(state, steps) for g, state in parts.items()}, {"step": 0} | pictures
    if isinstance(position, dict):
        return {0: _one_model(tensors, position, build(run.model), path)}, {"done": 0, "groups": 1} | position
    raise KoopsimError(f"{path} is not a whole koopsim checkpoint: its header does not say how far it is.")


def _finished(state: State, steps: int) -> State:
    """A group that is done kept its weights and their average only."""
    if "losses" in state or "flat" not in state:
        return state
    kept = {n: t for n, t in state.items() if n != "averaged"} | {"steps": torch.full((len(state["flat"]),), steps)}
    return kept | ({"averaged.parameters": state["averaged"]} if "averaged" in state else {})


def _one_model(tensors: Mapping[str, Tensor], position: dict[str, Any], model: nn.Module, path: Path) -> State:
    names = [name for name, _ in model.named_parameters()]
    wrong = [
        n for n in names if f"model.{n}" not in tensors or tensors[f"model.{n}"].shape != model.get_parameter(n).shape
    ]
    if wrong:
        raise KoopsimError(
            f"{path} is a checkpoint of another model: {len(wrong)} of {len(names)} tensors do not match, the first is "
            f"{wrong[0]!r}. Load it with the configuration it was trained with."
        )
    found = {"flat": torch.cat([tensors[f"model.{n}"].reshape(-1) for n in names])}
    found |= {f"buffer.{n}": tensors[f"model.{n}"] for n, _ in model.named_buffers() if f"model.{n}" in tensors}
    epoch, step = position.get("epoch"), position.get("step")
    if type(epoch) is not int or type(step) is not int or "adam.mean" not in tensors:  # weights alone
        return {n: t.unsqueeze(0) for n, t in found.items()} | {"steps": torch.zeros(1, dtype=torch.int64)}
    found |= {"mean": tensors["adam.mean"], "square": tensors["adam.square"], "losses": tensors["epoch.losses"]}
    found |= {n: t for n, t in tensors.items() if n.startswith("averaged.")}
    for name, t in tensors.items():
        if name.startswith("epoch.diagnostics."):
            found[name.removeprefix("epoch.")] = t
    taken = epoch * len(found["losses"]) + step
    return found | {"counters": torch.tensor([taken, step])}
