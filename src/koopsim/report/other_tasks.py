"""Tasks that are not the paper's: a table each, from what their kinds say of them."""

from collections.abc import Sequence

from koopsim.kinds import TaskKind, task_kinds
from koopsim.report.collect import epochs_of, seconds_an_epoch
from koopsim.report.kinds import Result, is_of
from koopsim.report.names import place_of, rank_of, title_of
from koopsim.report.tables import Table, spread

PREFIX = "task-"  # of these tables' names


def other_tables(results: Sequence[Result]) -> dict[str, Table]:
    """By name: "task-echo"."""
    found = {}
    for kind in task_kinds():
        runs = [r for r in results if is_of(r, kind.config) and "test" in r]
        if kind.table is None and runs:
            found[PREFIX + kind.config.__name__.removesuffix("Config").lower()] = _table(kind, runs)
    return found


def _table(kind: TaskKind, runs: Sequence[Result]) -> Table:
    """One row for each data and model: the shown figures over seeds, and what is published, where anything is."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for run in sorted(runs, key=lambda r: (place_of(r), rank_of(r["name"]), r["name"])):
        groups.setdefault((place_of(run), run["name"]), []).append(run)
    known = any(kind.published(name) is not None for _, name in groups)
    rows = [
        [
            place, title_of(name), _parameters(group[0]), *(_figure(kind, key, group) for key in kind.shown),
            *([str(kind.published(name) or "-")] if known else []),
            "/".join(sorted({str(epochs_of(r)) for r in group})),
            f"{seconds_an_epoch(group):.2f}",
        ]
        for (place, name), group in groups.items()
    ]  # fmt: skip
    figures = [key.replace("_", " ") for key in kind.shown]
    head = ["data", "model", "params", *figures, *(["published"] if known else []), "epochs", "s/epoch"]
    note = "Mean and standard deviation over n seeds, on the test split. Seconds: of the fastest seed."
    return Table(kind.title, head, rows, note, words=2)


def _parameters(run: Result) -> str:
    count = run["parameters"]
    return f"{count if isinstance(count, int) else sum(count):,}"


def _figure(kind: TaskKind, key: str, group: Sequence[Result]) -> str:
    values = [r["test"][key] for r in group]
    return kind.judged.form.format(values[0]) if len(values) == 1 and key == kind.judged.key else spread(values, ".4g")
