"""koopsim train: from a preset to a trained run directory, or on with one that was stopped."""

import itertools
import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse
from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS, run_of

USAGE = """usage: koopsim train PRESET [options]        koopsim train --resume DIR

Train a model of the paper and write a run directory: configuration, metrics, checkpoint, result.

presets:
{presets}

  koopsim train PRESET --help lists every setting of that preset, each an option.
  koopsim train copy/sim-single --scale smoke ends in seconds on a laptop.
"""


@dataclass(frozen=True)
class Options:
    out: Path | None = None
    """The run directory; runs/PRESET by default."""
    scale: Literal["paper", "smoke"] = "paper"
    """The paper's size, or the same code at a size that ends in seconds."""
    resume: Path | None = None
    """Go on with the run in this directory; its own configuration is used."""
    overwrite: bool = False
    """Start again where --out already holds a run."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    eager: bool = False
    """Do not capture the step in a CUDA graph."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run directory (needs the package tensorboard)."""
    json: bool = False
    """Print the result as JSON on standard output."""


@dataclass(frozen=True)
class Arguments:
    """Train a model of the paper."""

    run: Annotated[Run, tyro.conf.arg(name="")]
    options: Annotated[Options, tyro.conf.arg(name="")]


def main(argv: list[str]) -> int:
    if "--resume" in argv:
        return _train(parse(Options, argv, "train"), None, "")
    if not argv or argv[0] in ("-h", "--help"):
        names = [name for name, preset in PRESETS.items() if preset.run]
        print(USAGE.format(presets="\n".join(f"  {name}" for name in names)))
        return 0
    if argv[0].startswith("-"):
        raise KoopsimError("Name the preset first: koopsim train PRESET [options]. 'koopsim presets' lists them.")
    name, rest = argv[0], argv[1:]
    scale = "smoke" if _asks_for_smoke(rest) else "paper"
    default = Arguments(run_of(name, scale), Options(scale=scale))
    arguments = parse(Arguments, rest, f"train {name}", default)
    return _train(arguments.options, arguments.run, name)


def _asks_for_smoke(argv: list[str]) -> bool:
    """The scale decides the defaults of all other options, so it is read before them."""
    return "--scale=smoke" in argv or ("--scale", "smoke") in itertools.pairwise(argv)


def _train(options: Options, run: Run | None, name: str) -> int:
    from koopsim.cli.progress import TrainingProgress
    from koopsim.runs import RunDirectory
    from koopsim.train import Stopped, pick_device, train

    device = pick_device(options.device)
    if options.tensorboard and find_spec("tensorboard") is None:  # said before hours of training, not after
        raise KoopsimError("TensorBoard is not installed: pip install 'koopsim[tensorboard]'.")
    if options.resume:
        directory = RunDirectory(options.resume)
        name, run = directory.read_config()
        if directory.result_file.exists():
            print(f"{directory.path} is finished; nothing to resume.", file=sys.stderr)
            return _show(directory.read_result(), directory.path, options.json)
    else:
        assert run is not None
        directory = RunDirectory.create(options.out or Path("runs") / name, run, name, options.overwrite)
    try:
        with TrainingProgress(name, run.recipe.epochs) as progress:
            capture = False if options.eager else None
            result = train(run, directory, name, device, bool(options.resume), capture, progress)
    except Stopped:
        print(f"koopsim: stopped and saved. Go on with: koopsim train --resume {directory.path}", file=sys.stderr)
        return 130
    if options.tensorboard:
        write_tensorboard(directory)
    return _show(result, directory.path, options.json)


def _show(result: dict, path: Path, as_json: bool) -> int:
    if as_json:
        print(json.dumps(result, indent=2))
        return 0
    split = "test" if "test" in result else "valid"
    figures = "  ".join(f"{key} {value:.4g}" for key, value in result[split].items())
    print(f"{result['name']}  {result['parameters']:,} parameters  {split}: {figures}")
    pace = f"{result['milliseconds_per_step']:.3f} ms a step"
    print(f"{result['train_seconds']:.1f} s of training, {pace}; all of it in {path}")
    return 0


def write_tensorboard(directory) -> None:
    """metrics.jsonl as TensorBoard events: a view of the truth, not another truth."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory.path / "tensorboard")) as writer:
        for line in directory.read_metrics():
            for key, value in line.items():
                if key not in ("epoch", "step"):
                    writer.add_scalar(key, value, line["step"])
