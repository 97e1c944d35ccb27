"""Where a local search stands, as one file: the verdicts so far, and the tensors of the trials in training.

A safetensors file with a JSON header, like a run's checkpoint: replaced whole or not at all, and it cannot carry code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from koopsim.config import Run, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.search.directory import SearchDirectory
from koopsim.search.trial import Trial


def write_state(
    directory: SearchDirectory, position: dict[str, Any], trials: Sequence[Trial], tensors: dict[str, Tensor]
) -> None:
    """`position` is JSON values: whose turn it is, who waits, what ASHA has recorded."""
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    rows = [asdict(t) | {"run": to_dict(t.run)} for t in trials]
    header = {"search": json.dumps(position | {"trials": rows})}
    directory.write(directory.state_file, save(plain, metadata=header))


def read_state(directory: SearchDirectory) -> tuple[dict[str, Any], list[Trial], dict[str, Tensor]] | None:
    """What `write_state` was given; None where nothing was saved yet. A broken file is refused."""
    path = directory.state_file
    try:
        with safe_open(path, framework="pt") as file:
            position = json.loads((file.metadata() or {})["search"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        trials = [Trial(**(t | {"run": from_dict(Run, t["run"])})) for t in position.pop("trials")]
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise KoopsimError(f"{path} is not a whole search state ({error}). It cannot be used.") from error
    return position, trials, tensors
