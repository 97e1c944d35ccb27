"""A trained model as one file that runs without koopsim, for any batch size.

    .pt2        torch.export: torch.export.load(file).module()(x)
    .onnx       ONNX: onnxruntime, a browser, a phone
    .aoti.pt2   AOTInductor, machine code for one device: torch._inductor.aoti_load_package(file)(x), C++ without Python

A SIM is feedforward, so it exports as it is, or fused (nn/fuse.py), which is smaller and faster, where
its map can be read off its modules (nn/fusable.py). A DEQ or a monDEQ asks at every step whether it has converged: a
loop of unknown length is no graph, and is refused by name.
"""

import contextlib
import copy
import io
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from koopsim.config import ModelConfig
from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.nn.fusable import fusable
from koopsim.runs import write_atomically

FORMATS = {"onnx": ".onnx", "pt2": ".pt2", "aoti": ".aoti.pt2"}  # and how their files end
AGREES = 1e-4  # of the largest output: what another runtime may differ by
LENGTH = 120  # of the sequence that is traced; any other length runs too


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the model when it is run."""

    file: Path
    format: str
    shape: tuple[str, ...]  # of the input; words are free
    fused: bool
    bytes: int
    runtime: str | None  # what it was checked with; None: not checked
    difference: float | None  # the largest one of an output
    scale: float | None  # the largest output
    milliseconds: float | None = None  # of an answer to one input, by the file
    model_milliseconds: float | None = None  # and by the model


def example(model: ModelConfig, batch: int = 2, length: int = LENGTH) -> tuple[Tensor, dict[int, str]]:
    """An input of the model of a configuration, the same at every call, and its free axes by name."""
    return model_kind(model).example(model, batch, length, torch.Generator().manual_seed(batch))


def export(
    model: nn.Module,
    x: Tensor,
    axes: Mapping[int, str],
    file: Path,
    format: str = "onnx",
    fuse: bool = True,
) -> Path:
    """Write `model` to `file`, whole or not at all. `x` is an input to trace with; its `axes` are free, by name."""
    _refuse_impossible(format)
    could = fusable(model)
    model = model.fuse() if fuse and fusable(model) else copy.deepcopy(model).eval()
    free = {axis: torch.export.Dim(name, min=1) for axis, name in axes.items()}
    whole = io.BytesIO()  # torch's own writer ends the process where the disk is full
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(model, (x,), dynamic_shapes=(free,))
            if format == "pt2":
                torch.export.save(program, whole)
            elif format == "aoti":
                whole.write(_machine_code(program))
            else:
                made = torch.onnx.export(
                    program, (x,), dynamo=True, input_names=["x"], output_names=["y"], verbose=False
                )
                assert made is not None
                whole.write(made.model_proto.SerializeToString())
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # ONNX wraps what went wrong in advice of many lines
            cause = cause.__cause__
        first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        why = "; without --no-fuse it may" if could and not fuse else ""
        raise KoopsimError(f"This model does not export to {format}{why}: {first}") from error
    try:
        write_atomically(file, whole.getvalue())
    except OSError as error:
        raise KoopsimError(f"Cannot write {file}: {error.strerror}.") from error
    return file


def _refuse_impossible(format: str) -> None:
    """A format that is none, or needs what is not here."""
    if format not in FORMATS:
        raise KoopsimError(f"The format is {format!r}; expected one of {', '.join(FORMATS)}.")
    if format == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise KoopsimError("ONNX needs the extra packages: pip install 'koopsim[export]', or take --format pt2.")
    if format == "aoti" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise KoopsimError("AOTInductor needs a C++ compiler (g++ or clang++), and there is none: take --format pt2.")


def _machine_code(program: torch.export.ExportedProgram) -> bytes:
    """AOTInductor's package: a zip file with a shared library inside."""
    from torch import _inductor

    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "model.pt2")
        made = _inductor.aoti_compile_and_package(program, package_path=place)
        return Path(made).read_bytes()


ALONE = """
import sys
import torch
from torch import _inductor
x = torch.load(sys.argv[2]).to(sys.argv[3])
with torch.no_grad():
    _inductor.aoti_load_package(sys.argv[1])(x).sum().item()
"""


def refuse_deadly(file: Path, x: Tensor) -> None:
    """Run machine code first in a process of its own: what does not fit the machine takes its process with it."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "x.pt"
        torch.save(x.cpu(), given)
        command = [sys.executable, "-c", ALONE, str(file), str(given), str(x.device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        file.unlink()
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise KoopsimError(
            f"{file} is removed: run by itself, AOTInductor's code for {x.device} ended with {done.returncode} "
            f"({last[:200]}). Take --format pt2."
        )


def load_exported(file: Path) -> tuple[Callable[[Tensor], Tensor], str] | None:
    """An exported file as a function, and which runtime it is run by; None where onnxruntime is not installed."""
    if file.suffix == ".pt2":
        said = f"torch {torch.__version__}"
        with _quiet():
            if file.name.endswith(FORMATS["aoti"]):
                from torch import _inductor

                return _inductor.aoti_load_package(str(file)), f"AOTInductor of {said}"
            return torch.export.load(file).module(), said
    if not find_spec("onnxruntime"):
        return None
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.as_tensor(session.run(None, {name: x.numpy()})[0]), f"onnxruntime {onnxruntime.__version__}"


@torch.no_grad()
def milliseconds(answer: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Of one answer, waited for: the median of twenty after three."""
    times = []
    for _ in range(23):
        began = time.perf_counter()
        answer(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[3:])


def export_model(
    model: nn.Module,
    config: ModelConfig,
    file: Path,
    format: str = "onnx",
    fuse: bool = True,
    check: bool = True,
    device: torch.device | str = "cpu",
) -> Exported:
    """Write the trained model of a configuration, and compare what the file answers, and how fast, with the model.

    device   that AOTInductor's machine code is for; the other formats run anywhere
    """
    dtype, place = next(model.parameters()).dtype, pick_device(str(device) if format == "aoti" else "cpu")
    x, axes = example(config)
    model = model.to(place).eval()
    export(model, x.to(place, dtype), axes, file, format, fuse)
    runtime = difference = scale = took = plain = None
    if check:
        other, _ = example(config, batch=5, length=LENGTH // 3)  # not the shapes that were traced
        other = other.to(place, dtype)
        with torch.no_grad():
            y = model(other)
        if format == "aoti":
            refuse_deadly(file, other)
        found = load_exported(file)
        if found is not None:
            answer, runtime = found
            scale, one = float(y.abs().max()), example(config, batch=1)[0].to(place, dtype)
            with torch.no_grad(), _quiet():
                difference = float((answer(other) - y).abs().max())
                took, plain = milliseconds(answer, one), milliseconds(model, one)
            if not difference <= AGREES * scale:
                file.unlink()
                raise KoopsimError(
                    f"{file} was wrong and is removed: {runtime} differs by {difference:.2g} where the largest output "
                    f"is {scale:.2g}. Try --no-fuse or the other format."
                )
    shape = tuple(axes.get(i, str(n)) for i, n in enumerate(x.shape))
    fused = fuse and fusable(model)
    return Exported(file, format, shape, fused, file.stat().st_size, runtime, difference, scale, took, plain)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters speak of their own innards: deprecations, conversions. None of it is the user's to act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
