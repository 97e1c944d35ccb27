"""What a verb writes where --out says, a file or files in a folder, and how it tells of them."""

import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.json import json_text


def refuse_existing(out: Path | None, overwrite: bool) -> None:
    """A file that is there is somebody's, unless --overwrite lets go of it."""
    if out is not None and out.exists() and not overwrite:
        raise KoopsimError(f"{out} exists; add --overwrite, or give another --out.")


def require_place(file: Path, overwrite: bool) -> None:
    """Refuse what cannot be written, before anything is computed for it."""
    from koopsim.files.writing import refuse_special, sweep

    refuse_existing(file, overwrite)
    if not file.parent.is_dir():
        raise KoopsimError(f"There is no folder {file.parent} to write {file.name} into.")
    refuse_special(file)
    sweep(file.parent)


def write_answers(answers: Any, out: Path) -> None:
    """Answers row by row, as JSON where the file ends in .json, else as CSV."""
    from koopsim.files.writing import write_atomically

    write_atomically(out, (answers.json() + "\n" if out.suffix == ".json" else answers.csv()).encode())


def write_files(named: dict[str, bytes], out: Path, overwrite: bool, verb: str) -> list[str]:
    """Each whole or not at all; the paths written."""
    from koopsim.files import folders
    from koopsim.files.writing import write_atomically

    with folders.held(out):
        folders.claim(out, verb, list(named), overwrite)
        try:
            for name, data in named.items():
                write_atomically(out / name, data)
        except OSError as error:
            raise KoopsimError(f"Cannot write into {out}: {error.strerror}.") from error
    return [str(out / name) for name in named]


def write_forecast(arguments: Any, draw: Callable[[], Any], table: str, values: dict[str, Any]) -> list[str]:
    """forecast.csv, .json and .png, where --out was given; the paths."""
    if not arguments.out:
        return []
    named = {"forecast.png": png_of(draw()), "forecast.csv": table.encode()}
    named["forecast.json"] = (json_text(values) + "\n").encode()
    return write_files(named, arguments.out, arguments.overwrite, "forecast")


def png_of(figure: Any) -> bytes:
    """A matplotlib figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def say_files(out: Path | None, files: list[str]) -> None:
    if files:
        print(f"in {out}/: {', '.join(Path(file).name for file in files)}")


def say_figures(figures: Mapping[str, float]) -> None:
    for key, value in figures.items():
        print(f"  {key:<18} {value:.6g}")


def noted_look(directory: Any, name: str, figures: dict[str, float]) -> int:
    """How often the test split has been looked at with this look; a folder that cannot be written is no hindrance."""
    try:
        return directory.note_look(name, figures)
    except KoopsimError as error:
        print(f"This look at the test split was not noted: {error}", file=sys.stderr)
        return 0


def say_looks(looks: int) -> None:
    if looks > 1:
        print(f"  {looks} looks at the test split by now: choose settings by the valid split (looks.jsonl).")
