"""koopsim tune: search for hyper-parameters, then train with the best of them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.own_data import on_own_data
from koopsim.cli.train import given, named_first, refuse_columns, say_precision
from koopsim.cli.tune_lines import show_pictures, show_search
from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns
from koopsim.presets import preset_lines, run_of

USAGE = """usage: koopsim tune PRESET [options]
       koopsim tune --resume DIR

Random search with asynchronous successive halving, judged on the validation split; then the best configuration is
trained again on train+valid and tested. Writes search.json, trials.csv, pictures and result.json.

presets:
{presets}

  koopsim tune copy/sim-single --scale smoke ends in a minute on a laptop.
  koopsim tune PRESET --search learning_rate='log 1e-4 1e-2' batch_size=1,2,5 changes what is searched over.
  koopsim tune PRESET --search learning_rate='listed 2e-3 4e-3' --trials 2 tries a list of yours, each to its end.
  koopsim tune PRESET --no-prune stops no trial early; --judge-over 4 judges each by the mean of its last four looks.
  koopsim tune PRESET --confirm 5 trains the five best again with other seeds and chooses by their mean.
  koopsim tune image/sim-rff --per-picture --task.pictures DIR finds each picture's own settings.
  koopsim tune PRESET --backend ray --ray-address auto runs on a Ray cluster (docs/search.md).
  koopsim tune PRESET --help lists every setting.
"""


UNSAID = OwnColumns()
WHOLE_LIST = (
    "all that is searched over is listed, so every trial runs to its end; "
    "--max-t, --grace or --reduction bring pruning back."
)
NO_PRUNE = "--no-prune: every trial runs to its end; what was given beside it has no part: {}."


@dataclass(frozen=True)
class TuneOptions:
    trials: int | None = None
    """How many configurations to try; the paper's number unless told."""
    backend: Literal["local", "ray"] = "local"
    """local: stacked inside one process and one device. ray: workers of this machine or a cluster, a stack each."""
    search: tuple[str, ...] = ()
    """NAME=VALUES: what to search over. VALUES is 1,2,5 or 'log 1e-4 0.05' or 'uniform 0 1' or, for a bandwidth,
    median or 'median 0.1 10'. A single value fixes it. 'listed 2e-3 4e-3' takes values in turn: the first trial has the
    first; several listed are the columns of a table. Where all are listed and --trials is enough for the whole list,
    every trial runs to its end, unless --max-t, --grace or --reduction say when to stop one."""
    space: Path | None = None
    """A YAML, TOML or JSON file with the same, under "parameters", and trials, max_t, grace, reduction, judge_over."""
    max_t: int | None = None
    """Epochs a trial may have."""
    grace: int | None = None
    """Epochs before a trial may be stopped."""
    reduction: float | None = None
    """At each rung one in so many goes on."""
    no_prune: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Every trial runs to the end of its recipe, nobody is stopped early: --max-t, --grace and --reduction then have no
    part. For settings that an early look cannot tell apart. It stays with the search."""
    judge_over: Annotated[str | None, tyro.conf.arg(metavar="K")] = None
    """Judge a trial by the mean of its last K looks at the validation split, of all where it has fewer: from look to
    look a figure moves by more than good settings differ. 1 unless told: the last look, as the paper chooses. Halving
    goes by single looks all the same. It stays with the search."""
    retrain: int | None = None
    """Seeds the best configuration is trained again with: 1 unless told; 0: not at all. It stays with the search."""
    confirm: int = 0
    """Train so many of the best configurations again with other seeds and choose by their mean: the best of many single
    trials is the luckiest one. 0: choose by the search alone, as the paper does."""
    confirm_seeds: int = 3
    """Seeds each of them is trained again with; what --confirm costs is the product, in full trainings."""
    per_picture: bool = False
    """Of image regression: a search of its own for every picture, as in the paper; else one setting for all of them."""
    at_once: int | None = None
    """Trials in training at a time; by default as many as suit the backend and the device."""
    engine: Literal["auto", "stacked", "separate"] = "auto"
    """Trials as one batched model, or side by side; of the ray backend separate is a process a trial, by Ray Tune."""
    compile: bool = False
    """Let torch.compile fuse the stack's small kernels."""
    ray_address: str | None = None
    """A running Ray cluster: auto, or host:port of its head. By default one is started on this machine."""
    cpus_per_trial: float = 1.0
    """Of the ray backend: of each worker, which has a stack of trials, or one."""
    gpus_per_trial: float | None = None
    """The same of GPUs; a fraction shares one. Where there are any: one for a stack, a quarter for a trial."""
    data: str | None = None
    """Your own data instead of the preset's, as in train: pictures, a table, sequences."""
    out: Path | None = None
    """The search's folder; searches/PRESET by default."""
    scale: Literal["paper", "smoke"] = "paper"
    """The paper's size, or the same code at a size that ends in a minute."""
    resume: Path | None = None
    """Go on with the search in this folder; its own configuration is used."""
    overwrite: bool = False
    """Start again where --out already holds a search."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    eager: bool = False
    """Do not capture steps in CUDA graphs."""
    json: bool = False
    """Print the result as JSON on standard output."""


@dataclass(frozen=True)
class Arguments:
    """Search for hyper-parameters."""

    run: Annotated[Run, tyro.conf.arg(name="")]
    options: Annotated[TuneOptions, tyro.conf.arg(name="")]
    columns: Annotated[OwnColumns, tyro.conf.arg(name="")] = UNSAID


def main(argv: list[str]) -> int:
    if "--resume" in argv:
        return _tune(_as_begun(parse(TuneOptions, argv, "tune")), None, argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE.format(presets=preset_lines()))
        return 0
    argv = named_first(argv, "tune")
    name, rest = argv[0], argv[1:]
    scale = "smoke" if given(rest, "--scale") == "smoke" else "paper"  # decides the defaults of all other options
    data = given(rest, "--data")
    name, run = on_own_data(name, data, rest, None) if data is not None else (name, run_of(name, scale))
    default = Arguments(run, TuneOptions(scale=scale))
    arguments = parse(Arguments, rest, f"tune {name}", default)
    if data is None:
        refuse_columns(arguments.columns)
    return _tune(arguments.options, _search(arguments.options, arguments.run, name), argv)


def _search(options: TuneOptions, run: Run, name: str) -> Any:
    from koopsim.searching.directory import Search
    from koopsim.searching.space import base_of

    base = base_of(run)
    space, note = _space(options, base, run.seed)
    seeds = 1 if options.retrain is None else options.retrain
    asked = (options.at_once, options.engine, options.confirm, options.confirm_seeds, seeds)
    search = Search(name, base, space, run.seed, options.backend, *asked)
    if note:
        print(f"koopsim: {note}", file=sys.stderr)
    return search


def _space(options: TuneOptions, base: Run, seed: int) -> tuple[Any, str]:
    """The paper's space with what the file, then the options say; and what there is to say of pruning, if anything."""
    from koopsim.searching.pruning import HALVING, unpruned, whole_list
    from koopsim.searching.space import space_of
    from koopsim.searching.space_text import overridden, read_space, space_from_arguments

    in_file = read_space(options.space) if options.space else {}
    space = overridden(space_of(base, options.scale), base, in_file, str(options.space))
    space = space_from_arguments(space, base, options.search)
    said: dict[str, Any] = {name: getattr(options, name) for name in ("trials", *HALVING)}
    said["judge_over"] = None if options.judge_over is None else _looks(options.judge_over)
    said = {name: value for name, value in said.items() if value is not None}
    given = {*in_file, *said}
    if options.no_prune:
        unheard = [name for name in HALVING if name in given]
        space = replace(space, **{name: value for name, value in said.items() if name not in HALVING})
        return unpruned(space, base, seed), NO_PRUNE.format(", ".join(unheard)) if unheard else ""
    if "max_t" in said and "grace" not in said:  # a shorter search has a shorter first rung
        said["grace"] = min(space.grace, said["max_t"])
    space = replace(space, **said)
    return (unpruned(space, base, seed), WHOLE_LIST) if whole_list(space, given) else (space, "")


def _looks(text: str) -> int:
    """K of --judge-over, in one line where it is none: it is read as text for that."""
    try:
        return int(text)
    except ValueError:
        raise KoopsimError(f"--judge-over is {text!r}; give a whole number of looks, 1 or more.") from None


def _as_begun(options: TuneOptions) -> TuneOptions:
    """These options, of a search that goes on: what its trials are judged by, and whether they are pruned, stays."""
    if options.no_prune or options.judge_over is not None:
        raise KoopsimError("--judge-over and --no-prune stay as the search was begun with; leave them out of --resume.")
    return options


def _tune(options: TuneOptions, search: Any, argv: list[str]) -> int:
    from koopsim.engine.drive import Stopped, pick_device
    from koopsim.progress import Progress
    from koopsim.searching.carrying_out import How, resume_search, start_search
    from koopsim.searching.confirm import confirmed_search
    from koopsim.searching.directory import Cluster, SearchDirectory, is_search
    from koopsim.searching.per_picture import PictureSearches
    from koopsim.training import Session

    session = Session(pick_device(options.device), False if options.eager else None, options.compile)
    if options.backend == "local":
        say_precision(argv, session.device.type)
    cluster = Cluster(options.ray_address, options.cpus_per_trial, options.gpus_per_trial)
    how = How(session, options.retrain, options.per_picture, options.overwrite, cluster, Progress)
    out = confirmed_search(options.resume) if options.resume else options.out or Path("searches") / search.name
    try:
        if options.resume:
            if SearchDirectory(out).result_file.exists():
                print(f"{out} is finished; nothing to resume.", file=sys.stderr)
            result = resume_search(out, how)
        else:
            result = start_search(search, out, how)
    except (Stopped, KeyboardInterrupt) as stop:  # the latter between two trainings
        if not is_search(out):
            raise
        saved = " and saved" if isinstance(stop, Stopped) else ""
        print(f"koopsim: stopped{saved}. Go on with: koopsim tune --resume {out}", file=sys.stderr)
        return 130
    return (show_pictures if PictureSearches(out).file.exists() else show_search)(result, out, options.json)
