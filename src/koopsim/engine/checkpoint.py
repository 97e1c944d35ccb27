"""Where a run, a search or a fit stands, as one file.

    safetensors   "3/flat", "3/mean", ...   the members of part 3;   "random.cpu", "random.cuda"
    header        JSON: how far it is, and what a row of `flat` is made of

It is replaced whole or not at all, carries a digest of its tensors, and loading anyone's never executes code. A part
that is finished keeps only what a model is made of. Files of koopsim 0.1 are read too (old_state.py).
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.config import Run
from koopsim.engine.members import Members, Rule
from koopsim.engine.old_state import modern, run_of_old
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.models import build

State = dict[str, Tensor]


def lasting(state: Mapping[str, Tensor]) -> State:
    """What models are made of, on the host: all that a finished part keeps."""
    kept = {n: t for n, t in state.items() if n in ("flat", "steps") or n.startswith(("averaged.", "buffer."))}
    return {name: t.detach().cpu().clone() for name, t in kept.items()}


def write_checkpoint(path: Path, parts: Mapping[int, Mapping[str, Tensor]], header: Mapping[str, Any]) -> None:
    """The states of parts by number, and how far it all is."""
    tensors = {f"{number}/{name}": t for number, state in parts.items() for name, t in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    write_tensors(path, tensors, header)


def read_checkpoint(path: Path, finite: bool = True) -> tuple[dict[int, State], dict[str, Any], State]:
    """(states of parts by number, header, the rest); one line where there is none or it is broken."""
    try:
        tensors, header = read_tensors(path, "koopsim checkpoint", finite=False, older=_of_old)
    except FileNotFoundError:
        raise KoopsimError(f"There is no checkpoint {path}: the run never reached one; start it again.") from None
    for name, t in tensors.items() if finite else ():
        if t.is_floating_point() and not name.endswith("losses") and not bool(t.isfinite().all()):  # 0.1: not yet taken
            raise KoopsimError(f"{path}: the tensor {name!r} holds NaN or infinite values. It cannot be used.")
    parts, rest = split_parts(tensors)
    return parts, header, rest


def _of_old(tensors: Collection[str], header: Collection[str]) -> bool:
    """Of koopsim 0.1, whose headers have another word for how far it is."""
    return "run" not in header


def split_parts(tensors: Mapping[str, Tensor]) -> tuple[dict[int, State], State]:
    """Tensors called "3/flat" by part, and the others."""
    parts: dict[int, State] = {}
    rest: State = {}
    for name, tensor in tensors.items():
        number, _, inner = name.partition("/")
        if inner and number.isdecimal():
            parts.setdefault(int(number), {})[inner] = tensor
        else:
            rest[name] = tensor
    return parts, rest


def restore_random(rest: Mapping[str, Tensor]) -> None:
    """The random state that a checkpoint was written in."""
    if "random.cpu" in rest:
        require_match(
            {"random.cpu": torch.get_rng_state()}, {"random.cpu": rest["random.cpu"]}, "The checkpoint", "run"
        )
        torch.set_rng_state(rest["random.cpu"])
    if "random.cuda" in rest and torch.cuda.is_available():
        torch.cuda.set_rng_state(rest["random.cuda"])


def read_run(path: Path, run: Run) -> tuple[dict[int, State], dict[str, Any], State, Any]:
    """A run's checkpoint, today's or an older one: states by part, {done, groups, epoch, ...}, the rest, the layout."""
    parts, header, rest = read_checkpoint(path)
    if "run" not in header:
        parts, header["run"] = run_of_old(rest, header, run, path)
    said: dict[str, Any] = header["run"] if isinstance(header["run"], dict) else {}
    wrong = [k for k in ("done", "groups", "epoch", "step") if type(said.get(k)) is not int or said[k] < 0]
    seconds = said.get("seconds", -1)
    if type(seconds) not in (int, float) or not 0 <= seconds < float("inf"):
        wrong.append("seconds")
    if wrong or not said["groups"] >= 1 or said["done"] > said["groups"] or said["epoch"] > run.recipe.epochs:
        raise KoopsimError(
            f"{path} is not a whole koopsim checkpoint: its header has no good {(wrong or ['epoch'])[0]!r}."
        )
    return parts, said, rest, header.get("layout")


def models_of(
    run: Run, state: Mapping[str, Tensor], path: Path, make: Callable[[Run], nn.Module] | None = None
) -> list[nn.Module]:
    """The models that a part's state is of, as they are judged; `make` an untrained one where the run cannot."""
    dtype = torch.float64 if run.precision == "float64" else torch.float32
    flat = state.get("flat")
    if flat is None or flat.ndim not in (1, 2) or not flat.numel():
        raise KoopsimError(f"{path} is not a whole koopsim checkpoint: it has no parameters.")
    size = len(flat) if flat.ndim == 2 else 1
    model = (build(run.model) if make is None else make(run)).to(dtype)
    judged = "averaged.parameters" in state  # else these are the weights to be judged, whatever the recipe says
    members = Members([model] * size, torch.zeros(size, 1, 4), 1, Rule.of(run.recipe) if judged else Rule())
    theirs = modern(dict(state), members)
    _refuse_strange(theirs, members, path)
    kept = {f"buffer.{name}" for name in model.state_dict()}  # other buffers are what the model begins with
    own = {
        name: t
        for name, t in members.state().items()
        if name in ("flat", "steps") or name in kept or (name in theirs and name.startswith(("averaged.", "buffer.")))
    }
    theirs = {name: t for name, t in theirs.items() if name in own}
    require_match(own, theirs, path, "checkpoint of another model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(theirs[name])
    return list(members.models())


def _refuse_strange(theirs: Mapping[str, Tensor], members: Members, path: Path) -> None:
    """A tensor that is not known is somebody's, or one of ours under another name: the average, say, that is judged."""
    strange = sorted(n for n in theirs if n not in members.state() and not n.startswith("diagnostics."))
    if strange:
        raise KoopsimError(f"{path} is not a whole koopsim checkpoint: the tensor {strange[0]!r} is not known.")


def refuse_other_layout(said: Any, members: Members, path: Path) -> None:
    """A row of another model may have as many numbers: the names and shapes say whose they are."""
    if said is not None and said != members.layout():
        own, theirs = members.layout(), said if isinstance(said, dict) else {}
        wrong = [n for n in own | theirs if own.get(n) != theirs.get(n)] or ["the order"]
        raise KoopsimError(
            f"{path} is a checkpoint of another model: {len(wrong)} of {len(own)} parameters do not match, the first "
            f"is {wrong[0]!r}. Load it with the configuration it was trained with."
        )
