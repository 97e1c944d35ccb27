"""koopsim train: from a preset to a trained run directory, or on with one that was stopped."""

import itertools
import os
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.waking import wake_gpu
from koopsim.config import Run, resolve_precision, to_dict
from koopsim.datasets.coming import read_ahead
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text
from koopsim.kinds import OwnColumns
from koopsim.presets import preset_lines, run_of

UNSAID = OwnColumns()

USAGE = """usage: koopsim train PRESET [options]
       koopsim train [PRESET] --data FOLDER_OR_FILE [--target COLUMN] [options]
       koopsim train --resume DIR

Train a preset of the paper, or a model on your own data, and write a run directory: configuration, metrics,
checkpoint, result.

presets:
{presets}

  koopsim train PRESET --help lists every setting of that preset, each an option.
  koopsim train copy/sim-single --scale smoke ends in seconds on a laptop.
  koopsim train cifar10/sim-single --recipe best adds augmentation and averaging to the same model.
  koopsim train --data photos learns to classify the pictures in photos/CLASS/NAME.png.
  koopsim train --data table.csv --target price learns a column of a table.
  koopsim train --data log.csv --id run --time t --goal forecast --horizon 24 learns how sequences go on.
"""


@dataclass(frozen=True)
class TrainOptions:
    out: Path | None = None
    """The run directory; runs/PRESET by default."""
    scale: Literal["paper", "smoke"] = "paper"
    """The paper's size, or the same code at a size that ends in seconds."""
    recipe: Literal["paper", "best"] = "paper"
    """The paper's recipe, or one free to augment, smooth and average; for the SIMs of image classification."""
    data: str | None = None
    """Your own data instead of the preset's: pictures, a table, sequences. The model is fitted to them."""
    size: str | None = None
    """Of your own images: scale and crop them to this many pixels, 64 or 96x64. Saved with the model."""
    resume: Path | None = None
    """Go on with the run in this directory; its own configuration is used."""
    overwrite: bool = False
    """Start again where --out already holds a run."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    devices: int = 1
    """Train in so many processes, a GPU each or CPUs, each on its share of a batch; the figures stay those of one."""
    shard: bool = False
    """Of several processes: each keeps a share of every parameter and of Adam's moments (FSDP2), for large lifts."""
    recompute: bool = False
    """Compute the blocks of a large lift again in the backward pass instead of keeping what is inside them."""
    backend: Literal["local", "ray"] = "local"
    """Here, or on a Ray cluster: --devices workers that are replaced when they die (extra: tune)."""
    address: str | None = None
    """Of a running Ray cluster; without it one of this machine is started."""
    storage: str | None = None
    """A URL where the run directory is kept too (s3://BUCKET/RUN, file:///FOLDER; fsspec): --out need not be shared."""
    eager: bool = False
    """Do not capture the step in a CUDA graph."""
    tensorboard: bool = False
    """Write TensorBoard events into the run directory while it trains (extra: tensorboard)."""
    wandb: str | None = None
    """A Weights & Biases project to log to (extra: wandb)."""
    mlflow: str | None = None
    """An MLflow experiment to log to, where MLFLOW_TRACKING_URI says (extra: mlflow)."""
    json: bool = False
    """Print the result as JSON on standard output."""


@dataclass(frozen=True)
class Arguments:
    """Train a model of the paper."""

    run: Annotated[Run, tyro.conf.arg(name="")]
    options: Annotated[TrainOptions, tyro.conf.arg(name="")]
    columns: Annotated[OwnColumns, tyro.conf.arg(name="")] = UNSAID


def main(argv: list[str]) -> int:
    if "--resume" in argv:
        return _train(parse(TrainOptions, argv, "train"), None, "", argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE.format(presets=preset_lines()))
        return 0
    argv = named_first(argv, "train")
    name, rest = argv[0], argv[1:]
    _begin(name, rest)
    # These three decide the defaults of all other options, so they are read before them.
    scale = "smoke" if given(rest, "--scale") == "smoke" else "paper"
    if given(rest, "--recipe") == "best":
        name = f"{name.removesuffix(':best')}:best"
    data, size = given(rest, "--data"), given(rest, "--size")
    if data is not None:
        from koopsim.cli.own_data import on_own_data

        name, run = on_own_data(name, data, rest, _size(size))
    else:
        run = run_of(name, scale)
        if size is not None:
            raise KoopsimError("--size is for pictures of your own: give --data FOLDER too.")
    default = Arguments(run, TrainOptions(scale=scale, recipe="best" if name.endswith(":best") else "paper"))
    arguments = parse(Arguments, rest, f"train {name}", default)
    if data is None:
        refuse_columns(arguments.columns)
    return _train(arguments.options, arguments.run, name, argv)


def named_first(argv: list[str], verb: str) -> list[str]:
    """The arguments with a preset's name first; an empty one where it is left to --data."""
    if not argv[0].startswith("-"):
        return argv
    if not given(argv, "--data"):
        raise KoopsimError(f"Name the preset first: koopsim {verb} PRESET [options]. 'koopsim presets' lists them.")
    return ["", *argv]


def refuse_columns(columns: OwnColumns) -> None:
    """What is said of a table where none is given."""
    if columns.said():
        raise KoopsimError(f"--{columns.said()[0]} is for data of your own: give --data FILE too.")


def _begin(name: str, rest: list[str]) -> None:
    """Begin with what needs no PyTorch: the preset's data set and a GPU's context, if these words will use them."""
    if {"-h", "--help"} & {*rest}:
        return
    if given(rest, "--data") is None and given(rest, "--scale") != "smoke":
        read_ahead(name.split("/")[0])  # a name of none begins nothing
    several = given(rest, "--devices") or given(rest, "--backend") or "RANK" in os.environ
    if not several and given(rest, "--device") in (None, "auto", "cuda", "cuda:0"):
        wake_gpu()


def given(argv: list[str], option: str) -> str | None:
    """The value of an option among the arguments."""
    pairs = [*itertools.pairwise(argv), *(tuple(a.split("=", 1)) for a in argv if "=" in a)]
    return next((value for key, value in pairs if key == option), None)


def _size(text: str | None) -> tuple[int, int] | None:
    """'64' or '96x64' as (width, height)."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5})(?:[xX](\d{1,5}))?", text.strip())
    if not found:
        raise KoopsimError(f"--size is {text!r}; expected one number of pixels, or WIDTHxHEIGHT such as 96x64.")
    return int(found[1]), int(found[2] or found[1])


def _train(options: TrainOptions, run: Run | None, name: str, argv: list[str]) -> int:
    from koopsim.engine.world import expected
    from koopsim.runs import RunDirectory
    from koopsim.training import fetched, mirror_of

    out, mirror = options.resume or options.out or Path("runs") / name, mirror_of(options.storage)
    if run is None and (expected() == 1 or os.environ.get("RANK") == "0"):  # others may not see it
        if mirror is not None:
            fetched(out, mirror)
        name, run = RunDirectory(out).read_config()
    if options.backend == "ray" and run is not None:
        return _show(_on_ray(options, run, name, out, argv), out, options.json)
    if options.devices != 1 and expected() == 1:
        from koopsim.cli.launching import launch

        return launch(["train", *argv], options.devices)
    return _here(options, run, name, out, argv)


def say_precision(argv: list[str], device: str) -> None:
    """Say it where a kind of device does not compute in the precision that was asked for; a preset's goes unsaid."""
    asked = given(argv, "--precision")
    used = asked and resolve_precision(asked, device)
    if used != asked:
        print(f"koopsim: --precision {asked} is a GPU's; on {device} this computes in {used}.", file=sys.stderr)


def _on_ray(options: TrainOptions, run: Run, name: str, out: Path, argv: list[str]) -> dict[str, Any]:
    from koopsim.engine.drive import pick_device
    from koopsim.ray_training import Asked, RayCluster, train_on_ray

    cluster = RayCluster(options.devices, options.address, options.device != "cpu" and pick_device().type == "cuda")
    say_precision(argv, "cuda" if cluster.gpus else "cpu")
    how = Asked(out, name, options.resume is not None, options.shard, options.recompute, options.storage)
    return train_on_ray(run, how, cluster)


def _here(options: TrainOptions, run: Run | None, name: str, out: Path, argv: list[str]) -> int:
    """In this process, which may be one of several."""
    from koopsim.engine.drive import Stopped, pick_device
    from koopsim.engine.world import device_of_rank, joined_world
    from koopsim.runs import RunDirectory
    from koopsim.tracking import together
    from koopsim.training import Session, mirror_of, resume_run, start_run

    try:
        with ExitStack() as stack:
            device = pick_device(device_of_rank(options.device))
            world = stack.enter_context(joined_world(device))
            if world.first:
                say_precision(argv, device.type)
            listeners = _listeners(options, run, name, out) if world.first and run is not None else []
            heard = [stack.enter_context(listener) for listener in listeners]
            session = Session(
                device, False if options.eager else None, listen=together(*heard), world=world, shard=options.shard,
                recompute=options.recompute, mirror=mirror_of(options.storage),
            )  # fmt: skip
            if not options.resume and run is not None:
                result = start_run(run, out, name, session, options.overwrite)
            else:
                if world.first and RunDirectory(out).result_file.exists():
                    print(f"{out} is finished; nothing to resume.", file=sys.stderr)
                result = resume_run(out, session)
    except Stopped:
        if world.first:
            print(f"koopsim: stopped and saved. Go on with: koopsim train --resume {out}", file=sys.stderr)
        return 130
    return _show(result, out, options.json) if world.first else 0


def _listeners(options: TrainOptions, run: Run, name: str, out: Path) -> list[Any]:
    """The bar, and the trackers that were asked for."""
    from koopsim.progress import Progress
    from koopsim.tracking import MLflow, TensorBoard, WeightsAndBiases

    heard: list[Any] = [Progress(name, run.recipe.epochs)]
    if options.tensorboard:
        heard.append(TensorBoard(out / "tensorboard"))
    if options.wandb:
        heard.append(WeightsAndBiases(options.wandb, name, to_dict(run)))
    if options.mlflow:
        heard.append(MLflow(options.mlflow, name, to_dict(run)))
    return heard


def _seconds(took: float) -> str:
    """A small table is learnt in hundredths of one."""
    return f"{took:.1f} s" if took >= 1 else f"{took:.2g} s"


def _show(result: dict, path: Path, as_json: bool) -> int:
    if as_json:
        print(json_text(result))
        return 0
    split = "test" if "test" in result else "valid"
    figures = "  ".join(f"{key} {value:.4g}" for key, value in result.get(split, {}).items())
    print(f"{result['name']}  {result['parameters']:,} parameters  {split}: {figures}")
    pace = f"{result['milliseconds_per_step']:.3f} ms a step"
    best = f", the best epoch {result['best_epoch']} kept" if "best_epoch" in result else ""
    set_up = f" after {_seconds(result['set_up_seconds'])} of set-up" if "set_up_seconds" in result else ""
    print(f"{_seconds(result['train_seconds'])} of training{set_up}, {pace}{best}; all of it in {path}")
    from koopsim.cli.table_rows import told_of

    for line in told_of(result):
        print(line)
    return 0
