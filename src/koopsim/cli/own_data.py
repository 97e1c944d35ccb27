"""Which preset learns the data that a person brought, where none is named: by what was said of it and what it is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

from koopsim.config import TaskConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns, task_kind
from koopsim.presets import run_of

IMAGES, TABLE, TEXT = "cifar10/sim-single", "table/sim-single", "text/sim-single"
TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
OF_SEQUENCES = ("id", "time", "text", "horizon")  # whoever says one of these means sequences


def read_columns(argv: list[str]) -> OwnColumns:
    """What was said of the columns among all arguments."""
    import tyro

    plain = [word for word in argv if word not in ("-h", "--help")]
    for option in ("--target", "--drop"):
        if sum(word.split("=")[0] == option for word in plain) > 1:
            raise KoopsimError(f"{option} is given twice, and only the last would count; name all after one: A B.")
    found: Any = tyro.cli(OwnColumns, args=plain, return_unknown_args=True)
    columns: OwnColumns = found[0]
    for option, names in (("--target", columns.target), ("--drop", columns.drop)):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise KoopsimError(f"{option} names {twice[0]!r} twice; once is enough.")
    return columns


def task_as_said(task: TaskConfig, argv: list[str]) -> Any:
    """A task's configuration with the --task options among all arguments: how data is read may depend on them."""
    import tyro

    whole: Any = make_dataclass("Said", [("task", type(task))])
    plain = [word for word in argv if word not in ("-h", "--help")]
    return tyro.cli(whole, args=plain, default=whole(task), return_unknown_args=True)[0].task


def preset_for(data: str, columns: OwnColumns) -> str:
    """The preset that learns it."""
    path, said = Path(data), columns.said()
    folder = path.is_dir() and _holds_sequences(path)
    arrays = path.suffix.lower() == ".npz" and columns.goal is not None and not columns.target
    if folder or arrays or columns.goal in ("tag", "forecast") or any(word in said for word in OF_SEQUENCES):
        return f"{columns.goal or _goal_of(data, columns)}/sim-single"
    if path.suffix.lower() == ".txt":
        return TEXT
    if path.suffix.lower() in TABLES and not columns.target:
        raise KoopsimError(f"{data} is a table: say which of its columns is to be foretold, --target COLUMN.")
    return TABLE if columns.target else IMAGES


def _holds_sequences(folder: Path) -> bool:
    """Whether more of its files, two folders down at most, are sequences than pictures."""
    from koopsim.datasets.folder import ENDINGS
    from koopsim.datasets.sequence_files import FILES
    from koopsim.datasets.split_folders import folders_in, split_folders

    if {"x_train.npy", "y_train.npy"} <= {p.name for p in folder.iterdir()}:  # pictures that datasets/blocks.py streams
        return False
    parts = split_folders(folder).values() or [folder]
    inside = [p for part in parts for p in folders_in(part).values() or [part]]
    endings = [f.suffix.lower() for p in inside for f in p.iterdir() if not f.name.startswith(".")]
    return sum(e in FILES for e in endings) > sum(e in ENDINGS for e in endings)


def _goal_of(data: str, columns: OwnColumns) -> str:
    """What the sequences themselves say: labels, tags, or neither."""
    from koopsim.datasets.sequence_files import read_sequences

    found = read_sequences(data, columns)
    return "classify" if found.labels is not None else "tag" if found.tags is not None else "forecast"


def on_own_data(name: str, data: str, argv: list[str], size: tuple[int, int] | None) -> tuple[str, Any]:
    """(name, run) of a preset on the user's data."""
    with _said_once(data):
        return _on_own_data(name, data, argv, size)


@contextmanager
def _said_once(data: str) -> Iterator[None]:
    """What is warned of while the data is looked at is not said again when it is read to be learnt."""
    said: set[str] = set()
    show, whole = warnings.showwarning, str(Path(data).resolve())

    def shown(message: Warning | str, *where: Any, **more: Any) -> None:
        text = str(message).replace(whole, data)
        if text not in said:
            show(message, *where, **more)
        said.add(text)

    warnings.showwarning = shown
    try:
        yield
    finally:
        warnings.showwarning = show
        for text in said:
            warnings.filterwarnings("ignore", re.escape(text).replace(re.escape(data), ".*"))


def _on_own_data(name: str, data: str, argv: list[str], size: tuple[int, int] | None) -> tuple[str, Any]:
    columns = read_columns(argv)
    name = preset_for(data, columns) + name if name in ("", ":best") else name
    run = run_of(name)
    kind = task_kind(run.task)
    useless = [word for word in columns.said() if word not in kind.words]
    if useless:
        raise KoopsimError(f"--{useless[0]} says nothing to {name}, which is to learn {data}; leave it out.")
    if kind.words:
        if size is not None:
            raise KoopsimError(f"--size is for pictures; {name} does not look at any.")
        run = replace(run, task=task_as_said(run.task, argv))
        return kind.on_own_table(run, name, data, columns)
    return kind.on_own_data(run, name, data, size)
