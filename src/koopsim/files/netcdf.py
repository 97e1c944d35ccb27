"""NetCDF and HDF5, read in a process of its own, which is ended where it does not end.

    file -> child: xarray -> arrays -> pipe -> here        within  8 s + a second for each 2 MiB of the file

The HDF5 library can walk in circles through a file with a few changed bytes: inside one call (H5DSget_num_scales while
the file is opened, for one), which no signal and no thread of the same process interrupts. It can also crash. The child
pays for xarray's import, which this process does not need then. Its seconds are of processor time, where the system
counts that: a machine that is busy with other things says nothing of a file.

pipe: a line of JSON, [[name, kind, shape], ...] or {"refused": why}, then the arrays' bytes one after the other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.errors import KoopsimError, first_line
from koopsim.files.json import parse_json
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI

Array = NDArray[Any]
KINDS = "fciubM"  # numbers and dates
TIMES = re.compile(r"(t|times?)\s*(\[.*\]|\(.*\))?", re.IGNORECASE)  # with a unit, as in t [s] and time (s)
SECONDS = 8
A_SECOND = 2 * MEBI  # that are read in a second at least
OVER = -getattr(signal, "SIGXCPU", 99)  # how a child ends whose seconds are over
WAITED = 2.5  # times as long, by the clock
CHILD = "from koopsim.files.netcdf import answer; answer()"


def read_netcdf(path: Path) -> dict[str, Array]:
    """The variables of a file by name, along time where there is one; each has one axis or two."""
    if find_spec("xarray") is None:
        raise KoopsimError(f"{path} needs xarray and h5netcdf: pip install 'koopsim[data]'.")
    size = path.stat().st_size
    seconds = SECONDS + size // A_SECOND
    packages = [str(Path(__file__).parents[2]), *filter(None, sys.path)]  # those of this process
    where = os.environ | {"PYTHONPATH": os.pathsep.join(packages)}
    command = [sys.executable, "-P", "-c", CHILD, str(path), str(seconds)]  # -P: nothing that lies in this folder
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAITED * seconds, env=where
        )
    except subprocess.TimeoutExpired:
        raise _endless(path, size, seconds) from None
    if done.returncode == OVER:
        raise _endless(path, size, seconds)
    if done.returncode != 0:
        raise KoopsimError(f"{path} cannot be read: the library crashed on it. It is most likely damaged.")
    return _received(done.stdout, path)


def _endless(path: Path, size: int, seconds: int) -> KoopsimError:
    return KoopsimError(
        f"{path} cannot be read: the library was not done with its {size:,} bytes after {seconds} s. "
        "It is most likely damaged."
    )


def _received(data: bytes, path: Path) -> dict[str, Array]:
    """The arrays, as views of what came through the pipe."""
    end = data.find(b"\n")
    said = parse_json(data[:end], f"What was read of {path}")
    if isinstance(said, dict):
        raise KoopsimError(said["refused"])
    arrays, at = {}, end + 1
    for name, kind, shape in said:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(data, np.dtype(kind), count, at).reshape(shape)
        at += count * arrays[name].itemsize
    return arrays


# ---------------------------------------------------------------- in the child


def answer() -> None:
    """The child's work: `sys.argv` names the file and the seconds it may take."""
    path, seconds = Path(sys.argv[1]), int(sys.argv[2])
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # the system ends it, even where nobody is left to

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        arrays = {name: np.asarray(a, order="C") for name, a in _arrays_of(path).items()}
        head: Any = [[name, a.dtype.str, a.shape] for name, a in arrays.items()]
    except KoopsimError as error:
        arrays, head = {}, {"refused": str(error)}
    except Exception as error:  # what a damaged file makes of a C library is not one kind of error
        arrays, head = {}, {"refused": f"{path} cannot be read by xarray: {first_line(error)}."}
    pipe.write(json.dumps(head).encode() + b"\n")
    for array in arrays.values():
        pipe.write(array.reshape(-1).view(np.uint8).data)
    pipe.flush()
    os._exit(0)  # a file that could not be opened cannot be closed either, and would say so


def is_time(name: str) -> bool:
    """Whether a heading is that of times."""
    return TIMES.fullmatch(name.strip()) is not None


def _arrays_of(path: Path) -> dict[str, Array]:
    with _opened(path) as dataset:
        wanted = {str(n): v for n, v in dataset.variables.items() if v.dtype.kind in KINDS}
        require_memory(3 * sum(v.nbytes for v in wanted.values()), f"{path} asks for")
        time = next((n for n in wanted if is_time(n)), None)
        along = wanted[time].dims[0] if time and wanted[time].dims else None
        arrays = {}
        for name, variable in wanted.items():
            if name != time and name in variable.dims:
                continue  # a coordinate of space
            if along is not None and along in variable.dims:
                variable = variable.transpose(along, ...)
            elif along is not None:
                continue
            array = np.asarray(variable.values)
            arrays[name] = array.reshape(array.shape[0], -1) if array.ndim > 2 else array
        return arrays


def _opened(path: Path) -> Any:
    """NetCDF 3 by SciPy, NetCDF 4 and plain HDF5 by h5netcdf."""
    import xarray  # pyright: ignore[reportMissingImports]

    with path.open("rb") as file:
        classic = file.read(3) == b"CDF"
    if classic:
        return xarray.open_dataset(path, engine="scipy")
    return xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort")
