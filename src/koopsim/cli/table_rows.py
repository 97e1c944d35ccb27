"""`eval` of a run that learnt a table on another one: figures where the truth is known, and answers row by row."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from koopsim.cli.written import noted_look, refuse_existing, say_figures, say_looks, write_answers
from koopsim.datasets.inputs import FILE, read_inputs
from koopsim.datasets.table_inputs import TableInputs
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

ENDINGS = (".csv", ".json")


def learnt_a_table(what: str) -> bool:
    """Whether a run directory is one of a table."""
    return (Path(what) / FILE).exists() and isinstance(read_inputs(Path(what)), TableInputs)


def evaluate_rows(arguments: Any) -> int:
    """The figures on another table, or on a split of the run's own; with --out every row's answer."""
    from koopsim import zoo
    from koopsim.engine.drive import pick_device
    from koopsim.runs import RunDirectory
    from koopsim.table_answers import answer_table, asked_of
    from koopsim.tasks.fingerprint import fingerprint_of
    from koopsim.tasks.table import TableTask, table_figures

    if arguments.out is not None and arguments.out.suffix not in ENDINGS:
        what = "the answers of a table's run go to a file that ends in .csv or .json"
        raise KoopsimError(f"--out is {arguments.out}; {what}.")
    refuse_existing(arguments.out, arguments.overwrite)
    directory = RunDirectory(arguments.what)
    name, run = directory.read_config()
    model: Any = zoo.load(arguments.what, pick_device(arguments.device))
    inputs = model.takes
    if arguments.data is not None:
        from koopsim.datasets.named_tables import load_table

        table, where = load_table(arguments.data), str(arguments.data)
    else:
        task = TableTask(run.task)  # pyright: ignore[reportArgumentType]
        directory.check_data(fingerprint_of(task))
        table, where = task.table.take(task.rows(arguments.split).numpy()), arguments.split
    known = all(target.name in table.columns for target in inputs.targets)
    if not known and arguments.out is None:
        raise KoopsimError(f"{where} has no column {inputs.targets[0].name!r} to compare with; give --out FILE.csv.")
    figures = table_figures(asked_of(model, inputs, table), inputs, table) if known else {}
    values = {"name": name, "data": where, "rows": len(table), **figures}
    json_text(values, f"the figures of {arguments.what}")
    looks = noted_look(directory, name, figures) if arguments.data is None and arguments.split == "test" else 0
    its = run.task.data  # pyright: ignore[reportAttributeAccessIssue]
    if figures and arguments.data is not None and its in (where, str(Path(where).resolve())):
        warnings.warn(
            f"{where} is the table that {name} was trained on: most of these rows it has learnt from. What it makes of "
            f"rows it never saw says koopsim eval {arguments.what}.",
            stacklevel=2,
        )
    if arguments.out is not None:
        write_answers(answer_table(model, inputs, table), arguments.out)
    if arguments.json:
        print(json_text(values))
        return 0
    print(f"{name} on {where}, {len(table):,} rows")
    say_figures(figures)
    say_looks(looks)
    if arguments.out is not None:
        print(f"  every row's answer is in {arguments.out}")
    return 0


def told_of(result: dict[str, Any]) -> list[str]:
    """What was found out about a table, in lines: what its target is, and what stands for what is missing."""
    task, look = result["run"]["task"], result.get("look", {})
    if "meaning" not in task or "missing" not in look:
        return []
    classes = task["meaning"] == "classification"
    what, other = ("classes", "regress") if classes else ("numbers", "classify")
    lines = [f"{', '.join(task['target'])}: foretold as {what}; --goal {other} says otherwise"]
    gaps = "; ".join(f"{name} by {rule}" for name, rule in look["missing"].items())
    return [*lines, f"missing values: {gaps}"] if gaps else lines
