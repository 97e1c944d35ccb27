"""koopsim spectrum: does it settle, oscillate or blow up? For a matrix, a trajectory, a trained run or a cell."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.export import one_of
from koopsim.cli.observed import DataArguments, data_lines, dictionary_of, fit_series
from koopsim.cli.written import png_of, say_files, write_files
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

MOST_MODES = 10  # rows of the table that are printed; verdict.json has all
SECONDS_A_LINE = 5


@dataclass(frozen=True)
class Arguments(DataArguments):
    """Does it settle, oscillate or blow up, and where to? A matrix, a trajectory, a trained SIM or DEQ, or a cell."""

    what: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE_OR_RUN]")] = None
    """A run directory, or a file: .csv, .npy, .npz, .parquet, .nc, .h5. Rows are times; a column t, time or time (s)
    is time."""
    as_: Annotated[Literal["matrix", "trajectory"] | None, tyro.conf.arg(name="as")] = None
    """What a file holds; a square .npy or .npz is a matrix unless told otherwise."""
    noise: float | None = None
    """Relative error of the matrix; by default its rounding, or how well the data were fitted."""
    cell: str | None = None
    """A cell f(z, x) of your own, as module:function, instead of a file or a run."""
    x: Path | None = None
    """The cell's inputs, .npy or .csv, one a row; by default points at random in [-1, 1]."""
    input_size: int = 2
    """How many numbers an input of the cell has, where no file is given."""
    inputs: int = 16
    """How many inputs of a DEQ or a cell are observed."""
    steps: int = 500
    """How long the hidden iteration of a DEQ is observed."""
    picture: int = 0
    """Of a run of image regression: which of its networks, counted from 0."""
    out: Path | None = None
    """A folder for verdict.json and the pictures. Ours that are there are replaced."""
    overwrite: bool = False
    """Also replace files of the same names that koopsim did not write."""
    json: bool = False
    """Print the verdict as JSON on standard output."""


@dataclass
class Answer:
    """What is printed, what is saved, and the pictures by name."""

    lines: list[str]
    values: dict[str, Any]
    figures: dict[str, Any]


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "spectrum")
    import matplotlib as mpl

    mpl.use("Agg")
    if arguments.noise is not None and not 0 <= arguments.noise < 1:
        raise KoopsimError(f"--noise is {arguments.noise}; it is relative and lies in [0, 1).")
    if (arguments.what is None) == (arguments.cell is None):
        raise KoopsimError("Name a file or a run, or a cell with --cell module:function; one of the two.")
    name = arguments.cell or str(arguments.what)
    try:
        answer = answer_of(arguments)
    except ValueError as error:  # what the spectral side says of data it cannot use
        raise KoopsimError(f"{name}: {' '.join(str(error).split())}.") from error
    files = _save_answer(answer, arguments.out, arguments.overwrite) if arguments.out else []
    if arguments.json:
        print(json_text({"what": name, **answer.values, "files": files}))
        return 0
    print("\n".join(answer.lines))
    say_files(arguments.out, files)
    return 0


def answer_of(arguments: Arguments) -> Answer:
    if arguments.cell is not None:
        from koopsim.cli.spectrum_cell import cell_inputs, describe_cell

        with Stages() as stages:
            x = cell_inputs(arguments.x, arguments.inputs, arguments.input_size)
            return Answer(*describe_cell(arguments.cell, x, arguments.steps, stages))
    assert arguments.what is not None
    return of_run(arguments) if arguments.what.is_dir() else of_file(arguments)


def of_file(arguments: Arguments) -> Answer:
    """A matrix or trajectories."""
    from koopsim.datasets.series import read_series
    from koopsim.spectral import analyze

    path = arguments.what
    assert path is not None
    series = read_series(path)
    if series.meaning(arguments.as_) == "matrix":
        matrix = series.matrix()
        verdict = analyze(matrix, arguments.noise)
        head = f"{path}: a {matrix.shape[0]} x {matrix.shape[0]} matrix"
        return Answer([head, str(verdict)], {"kind": "matrix", **verdict.to_dict()}, {"verdict": verdict.plot()})
    seen, model = fit_series(arguments, series)
    verdict = model.verdict(arguments.noise)
    table = model.mode_table()
    lines = [*data_lines(path, seen, model), *table.lines(MOST_MODES), str(verdict)]
    values = {
        "kind": "trajectory", "observables": model.n_observables_, "rank": model.rank_,
        "pairs": model.n_samples_seen_, "misfit": model.solution_.relative_residual, "dt": seen.dt,
        "said": list(seen.said), "modes": table.to_dict(), **verdict.to_dict(),
    }  # fmt: skip
    summary = model.plot_summary(seen.pieces[seen.longest], control=seen.control and seen.control[seen.longest])
    return Answer(lines, values, {"verdict": verdict.plot(), "summary": summary})


def of_run(arguments: Arguments) -> Answer:
    """A trained SIM or DEQ."""
    from torch import nn

    from koopsim.kinds import model_kind
    from koopsim.nn import SIM
    from koopsim.nn.started import StartedSIM
    from koopsim.runs import RunDirectory
    from koopsim.training import load_run

    assert arguments.what is not None
    name, run = RunDirectory(arguments.what).read_config()
    model = load_run(arguments.what)
    if isinstance(model, nn.ModuleList):
        model, name = one_of(model, arguments.picture), f"{name}, picture {arguments.picture}"
    model = model.sim if isinstance(model, StartedSIM) else model
    if isinstance(model, SIM):
        return of_sim(model, name, run, arguments)
    if not model_kind(run.model).has_solver:
        raise KoopsimError(f"{name} has neither a limit operator U V nor an iteration: it has no spectrum to look at.")
    return of_deq(model, name, run, arguments)


def of_sim(model: Any, name: str, run: Any, arguments: Arguments) -> Answer:
    """How far U V is from the projector it stands for, and how far the sets spread that a two-tier one stands for."""
    from koopsim.bridge import examine
    from koopsim.bridge.examine import set_sizes
    from koopsim.tasks import build_task

    found = examine(model, arguments.noise)
    verdict, s = found.verdict, found.singular_values
    lines = [
        f"{arguments.what}: {name}, a SIM with U V of size {found.dim} and rank {found.rank}",
        f"  invariance defect ||VU - I||/sqrt(K)  {found.defect:.3g}   (0: one more step changes nothing)",
        f"  singular values of U V                {s[0]:.3g} to {s[-1]:.3g}; {found.numerical_rank} of "
        f"{found.rank} count",
        f"  the readout's first layer             tells {found.seen_rank} of these directions apart; "
        f"{found.seen_share:.0%} of it looks at them",
        f"Applied again and again (the model applies it once), U V is: {verdict}",
    ]
    values = {"kind": "sim", "name": name, **found.to_dict()}
    if run.model.fourier is not None:
        sizes = set_sizes(model, build_task(run.task).split("test")[0][: arguments.inputs])
        low, middle, high = (float(sizes.quantile(q)) for q in (0.0, 0.5, 1.0))
        lines.insert(4, f"  the set: ||U' V' psi(mu(x))||          {low:.3g} to {high:.3g}, median {middle:.3g}   "
                        "(an embedded point has 1, a set that spreads less)")  # fmt: skip
        values["set_sizes"] = {"least": low, "median": middle, "most": high}
    return Answer(lines, values, {"verdict": verdict.plot()})


def of_deq(model: Any, name: str, run: Any, arguments: Arguments) -> Answer:
    """The hidden iteration, its verdicts, and what the solver did."""
    from koopsim.bridge import linearise, observe, plot_observation
    from koopsim.bridge.observe import PATIENCE
    from koopsim.bridge.sets import plot_sets, set_of
    from koopsim.spectral import EDMD
    from koopsim.tasks import build_task

    if arguments.inputs < 1:
        raise KoopsimError(f"--inputs is {arguments.inputs}; observe at least one.")
    x, _ = build_task(run.task).split("test")
    x = x[: arguments.inputs]
    with Stages() as stages:
        seen = observe(model, x, arguments.steps, progress=stages.begin("observing"))
        local = linearise(model, x, progress=stages.begin("linearising"))
        trajectories, inputs = seen.trajectories(8)
        dictionary = dictionary_of(arguments, trajectories[0].shape[1] + inputs[0].shape[0], 1)
        koopman = EDMD(dictionary, rtol=1e-6).fit(trajectories, inputs=inputs).verdict(arguments.noise)
    share = seen.agreement
    found, same, jacobian = _linearised(local, seen.settled)
    cases = ", ".join(f"{case} on {count}" for case, count in seen.counts.items())
    counted = "1 test input" if len(x) == 1 else f"{len(x)} test inputs"
    solver = seen.solver
    assert solver is not None  # a run's model has one
    lines = [
        f"{arguments.what}: {name}, a DEQ, on {counted}, {seen.states.shape[1]} starts each",
        f"  verdict          {cases}",
        f"  plain iteration  settled on {int(seen.settled.sum())} of {len(x)} within {PATIENCE} steps",
        f"  agreement        {share['agree']:.0%} agree, {share['undecided']:.0%} undecided, "
        f"{share['disagree']:.0%} disagree",
        f"  its own solver   converged on {int(solver.converged.sum())} of {len(x)}, "
        f"{float(solver.steps.double().mean()):.1f} steps in the mean",
        f"  df/dz at z*      {jacobian}",
        f"Over all inputs, (K g)(z, x) = g(f(z, x), x) is {koopman}",
    ]
    ends = [set_of(states) for states in seen.states]
    moving = [i for i, settled in enumerate(seen.settled) if not settled]
    lines += [f"  the set          input {i}: {ends[i]}" for i in moving[:8]]
    values = {
        "kind": "deq", "name": name, "sets": [found.to_dict() for found in ends],
        "inputs": len(x), "case": seen.case, "cases": list(seen.cases),
        "agreement": share, "settled": seen.settled.tolist(), "plain_steps": seen.plain.steps[:, 0].tolist(),
        "solver_converged": solver.converged.tolist(), "solver_steps": solver.steps.tolist(),
        "jacobian_radius": [l.radius if l.found else None for l in local],
        "jacobian_agrees": same, "jacobian_found": found, "koopman": koopman.to_dict(),
    }  # fmt: skip
    shown = moving or list(range(len(ends)))
    sets = plot_sets([ends[i] for i in shown], [f"input {i}" for i in shown])
    return Answer(lines, values, {"verdict": koopman.plot(), "inputs": plot_observation(seen, local), "sets": sets})


def _linearised(local: Any, settled: Any) -> tuple[int, int, str]:
    """(inputs with an equilibrium, those where df/dz says what the iteration does, both in words)."""
    radii = sorted(l.radius for l in local if l.found)
    if not radii:
        return 0, 0, "no equilibrium was found to linearise at"
    same = sum(l.stable == bool(s) for l, s in zip(local, settled, strict=True) if l.found)
    words = (
        f"spectral radius {radii[0]:.4f} to {radii[-1]:.4f}; says the same as the iteration on {same} of {len(radii)}"
    )
    return len(radii), same, words


class Stages:
    """A bar a stage while inputs are worked on, plain lines where there is no terminal; on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console, self.last_line = Console(stderr=True), time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True)

    def __enter__(self) -> "Stages":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, name: str) -> Callable[[int, int], None]:
        """What a stage tells (inputs done, inputs in all)."""
        task = self.bar.add_task(name, total=None)

        def tell(done: int, total: int) -> None:
            self.bar.update(task, completed=done, total=total)
            if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_A_LINE:
                self.last_line = time.monotonic()
                print(f"{name}  {done} of {total} inputs", file=sys.stderr)

        return tell


def _save_answer(answer: Answer, out: Path, overwrite: bool = False) -> list[str]:
    """Pictures and verdict.json, each whole or not at all, and none before all are drawn."""
    drawn = {f"{name}.png": png_of(figure) for name, figure in answer.figures.items()}
    drawn["verdict.json"] = (json_text(answer.values) + "\n").encode()
    return write_files(drawn, out, overwrite, "spectrum")
