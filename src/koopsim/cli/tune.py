"""koopsim tune: search for hyper-parameters, then train with the best of them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.own_data import on_own_data
from koopsim.cli.train import _given
from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text
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
  koopsim tune PRESET --confirm 5 trains the five best again with other seeds and chooses by their mean.
  koopsim tune image/sim-rff --per-picture --task.pictures DIR finds each picture's own settings.
  koopsim tune PRESET --backend ray --ray-address auto runs on a Ray cluster (docs/search.md).
  koopsim tune PRESET --help lists every setting.
"""


UNSAID = OwnColumns()


@dataclass(frozen=True)
class TuneOptions:
    trials: int | None = None
    """How many configurations to try; the paper's number unless told."""
    backend: Literal["local", "ray"] = "local"
    """local: stacked inside one process and one device. ray: workers of this machine or a cluster, a stack each."""
    search: tuple[str, ...] = ()
    """NAME=VALUES: what to search over. VALUES is 1,2,5 or 'log 1e-4 0.05' or 'uniform 0 1' or, for a bandwidth,
    median or 'median 0.1 10'. A single value fixes it."""
    space: Path | None = None
    """A YAML, TOML or JSON file with the same, under "parameters", and trials, max_t, grace, reduction."""
    max_t: int | None = None
    """Epochs a trial may have."""
    grace: int | None = None
    """Epochs before a trial may be stopped."""
    reduction: float | None = None
    """At each rung one in so many goes on."""
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
        return _tune(parse(TuneOptions, argv, "tune"), None)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE.format(presets=preset_lines()))
        return 0
    if argv[0].startswith("-") and _given(argv, "--data"):
        argv = ["", *argv]  # the data says which preset
    if argv[0].startswith("-"):
        raise KoopsimError("Name the preset first: koopsim tune PRESET [options]. 'koopsim presets' lists them.")
    name, rest = argv[0], argv[1:]
    scale = "smoke" if _given(rest, "--scale") == "smoke" else "paper"  # decides the defaults of all other options
    data = _given(rest, "--data")
    name, run = on_own_data(name, data, rest, None) if data is not None else (name, run_of(name, scale))
    default = Arguments(run, TuneOptions(scale=scale))
    arguments = parse(Arguments, rest, f"tune {name}", default)
    if data is None and arguments.columns.said():
        raise KoopsimError(f"--{arguments.columns.said()[0]} is for data of your own: give --data FILE too.")
    return _tune(arguments.options, _search(arguments.options, arguments.run, name))


def _search(options: TuneOptions, run: Run, name: str) -> Any:
    from koopsim.searching.directory import Search
    from koopsim.searching.space import base_of, space_of
    from koopsim.searching.space_text import space_from_arguments, space_from_file

    base = base_of(run)
    space = space_of(base, options.scale)
    if options.space:
        space = space_from_file(space, base, options.space)
    space = space_from_arguments(space, base, options.search)
    given = {"trials": options.trials, "max_t": options.max_t, "grace": options.grace, "reduction": options.reduction}
    changed = {key: value for key, value in given.items() if value is not None}
    if "max_t" in changed and "grace" not in changed:  # a shorter search has a shorter first rung
        changed["grace"] = min(space.grace, changed["max_t"])
    space = replace(space, **changed)
    seeds = 1 if options.retrain is None else options.retrain
    asked = (options.at_once, options.engine, options.confirm, options.confirm_seeds, seeds)
    return Search(name, base, space, run.seed, options.backend, *asked)


def _tune(options: TuneOptions, search: Any) -> int:
    from koopsim.engine.drive import Stopped, pick_device
    from koopsim.progress import Progress
    from koopsim.searching.carrying_out import How, resume_search, start_search
    from koopsim.searching.confirm import confirmed_search
    from koopsim.searching.directory import Cluster, SearchDirectory, is_search
    from koopsim.searching.per_picture import PictureSearches
    from koopsim.training import Session

    session = Session(pick_device(options.device), False if options.eager else None, options.compile)
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
    return (_show_pictures if PictureSearches(out).file.exists() else _show)(result, out, options.json)


def _show(result: dict[str, Any], path: Path, as_json: bool) -> int:
    if as_json:
        print(json_text(result))
        return 0
    best, metric = result["best"], result["metric"]
    ended = ", ".join(f"{count} {status}" for status, count in result["ended"].items())
    print(f"{result['name']}  {result['trials']} trials in {result['seconds']:.1f} s: {ended}")
    print(f"best: trial {best['trial']}, validation {metric} {best[metric]:.4g} after {best['t']} epochs")
    for name, value in best["values"].items():
        print(f"  {name:<28} {_shown(value)}")
    for line in _confirmed_lines(result.get("confirmed", []), metric):
        print(line)
    for doubt in result.get("doubts", []):
        print(f"note: {doubt}")
    if "test" in result:
        figures = "  ".join(f"{key} {value:.4g}" for key, value in result["test"].items())
        print(f"trained again: test {figures}")
        over = result["test_over_seeds"]
        if len(over["values"]) > 1:
            print(f"over {len(over['values'])} seeds: {metric} {over['mean']:.4g} +- {over['std']:.2g}")
    print(f"all of it in {path}: trials.csv, {', '.join(result['pictures'])}")
    return 0


def _confirmed_lines(rows: list[dict[str, Any]], metric: str) -> list[str]:
    """The best configurations with fresh seeds, the chosen one first."""
    if not rows:
        return []
    lines = [f"confirmed with {len(rows[0]['seeds'])} other seeds each, validation {metric}:"]
    for row in rows:
        lost = row["figures"].count(None)
        mean = "none" if row["mean"] is None else f"{row['mean']:.4g} +- {row['std']:.2g}"
        gone = f", {lost} diverged or failed" if lost else ""
        before = f"in the search {row['in_search']:.4g} after {row['in_search_epochs']} epochs"
        lines.append(f"  trial {row['trial']:<5} {mean:<22} {before}{gone}")
    return lines


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_pictures(result: dict[str, Any], path: Path, as_json: bool) -> int:
    """A line a picture."""
    if as_json:
        print(json_text(result))
        return 0
    judged = [split for split in ("valid", "test") if split in result]
    for name in result["pictures"]:
        figures = "  ".join(f"{split} {result[split][f'psnr/{name}']:.2f} dB" for split in judged)
        values = "  ".join(
            f"{key.rpartition('.')[2]} {_shown(value)}" for key, value in result["settings"][name].items()
        )
        print(f"{name:<16} {figures}  {values}")
    means = "  ".join(f"{split} {result[split]['psnr']:.2f} +- {result[split]['psnr_std']:.2f} dB" for split in judged)
    print(f"{result['name']}  {len(result['pictures'])} pictures in {result['seconds']:.1f} s: {means}")
    print(f"all of it in {path}: a search a picture, and result.json")
    return 0
