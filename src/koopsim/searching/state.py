"""Where a local search stands, as one file: the verdicts so far, and the tensors of the trials in training.

A safetensors file with a JSON header, like a run's checkpoint: replaced whole or not at all, and it cannot carry code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from koopsim.config import Run, from_dict, to_dict
from koopsim.engine.checkpoint import State, split_parts
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, tensors_bytes
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.trial import Trial


def write_state(
    directory: SearchDirectory, position: dict[str, Any], trials: Sequence[Trial], tensors: dict[str, Tensor]
) -> None:
    """`position` is JSON values: whose turn it is, who waits, what ASHA has recorded."""
    rows = [asdict(t) | {"run": to_dict(t.run)} for t in trials]
    header = {"search": position | {"trials": rows}}
    directory.write(directory.state_file, tensors_bytes(tensors, header, str(directory.state_file)))


def read_state(directory: SearchDirectory) -> tuple[dict[str, Any], list[Trial], dict[int, State]] | None:
    """(position, trials, tensors by group); None where nothing was saved yet. A broken file is refused."""
    path = directory.state_file
    try:
        tensors, header = read_tensors(path, "search state", finite=False)  # a trial that diverged holds NaN
        position = header["search"]
        trials = [Trial(**(t | {"run": from_dict(Run, t["run"])})) for t in position.pop("trials")]
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KoopsimError(f"{path} is not a whole search state ({error!r}). It cannot be used.") from error
    return position, trials, split_parts(tensors)[0]
