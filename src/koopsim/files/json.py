"""JSON from anyone: read only where it is small, shallow, UTF-8, and all its numbers are numbers.

    file -> bytes (bounded) -> text (UTF-8) -> values: finite floats, integers of at most 20 digits, at most 64 deep

Written the same way: NaN and infinity are no JSON, so a figure that is one of them is named and refused.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.opened import MEBI, read_bytes

MOST_BYTES = 256 * MEBI
DEEPEST = 64
DIGITS = 20  # of an integer: enough for an unsigned one of 64 bits


def read_json(path: Path, most: int = MOST_BYTES, old: bool = False) -> Any:
    """The value in a JSON file, checked; FileNotFoundError where there is no file.

    `old`: NaN, which results from before it was refused may hold, is read as null.
    """
    try:
        return parse_json(read_bytes(path, most, "JSON file"), str(path), old)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KoopsimError(f"{path} cannot be read: {error.strerror}.") from error


def parse_json(data: bytes | str, where: str, old: bool = False) -> Any:
    """The value in a text; `where` names it in an error."""
    no_number = (lambda text: None) if old else _no_number
    try:
        text = data.decode() if isinstance(data, bytes) else data
        value = json.loads(text, parse_int=_integer, parse_float=_real, parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise KoopsimError(f"{where} cannot be read: byte {error.start} is not UTF-8.") from error
    except RecursionError:
        raise KoopsimError(f"{where} cannot be read: it is nested more than {DEEPEST} deep.") from None
    except ValueError as error:
        raise KoopsimError(f"{where} cannot be read: {error}.") from error
    _check(value, where)
    return value


def read_lines(path: Path, problem: Callable[[dict[str, Any]], str | None] = lambda line: None) -> list[dict[str, Any]]:
    """The good lines of a .jsonl file, each an object; of bad ones a warning says how many and why.

    A last line without an end was cut short by a crash and is left out in silence. No file: no lines.
    """
    try:
        raw = read_bytes(path, MOST_BYTES, "file of lines").split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    good, bad = [], []
    for number, line in enumerate(raw, 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line, f"line {number}")
            why = problem(value) if isinstance(value, dict) else "it is no object"
        except KoopsimError as error:
            why = str(error).partition("cannot be read: ")[2].rstrip(".") or str(error)
        if why is None:
            good.append(value)
        else:
            bad.append(f"line {number}: {why}")
    if bad:
        count = "1 line was" if len(bad) == 1 else f"{len(bad)} lines were"
        warnings.warn(f"{path}: {count} left out ({bad[0]}).", stacklevel=2)
    return good


def json_text(value: Any, where: str = "the result", indent: int | None = 2) -> str:
    """`value` as JSON; a figure that is NaN or infinite is refused by name."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        name, figure = _not_finite(value) or ("a value", "not JSON")
        raise KoopsimError(
            f"{name} is {figure} in {where}, which is no figure; nothing was written there. "
            "Try a smaller learning rate, or look at the data."
        ) from None


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"an integer has {len(text):,} digits")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _check(value: Any, where: str) -> None:
    """Depth and characters, without recursion."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list):
            if depth > DEEPEST:
                raise KoopsimError(f"{where} cannot be read: it is nested more than {DEEPEST} deep.")
            parts = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            waiting.extend((part, depth + 1) for part in parts if isinstance(part, dict | list | str))
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise KoopsimError(f"{where} cannot be read: it holds half a character.") from None


def _not_finite(value: Any, name: str = "") -> tuple[str, float] | None:
    """The name and the value of the first number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return name or "a value", value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        found = _not_finite(part, f"{name}.{key}" if name else str(key))
        if found:
            return found
    return None
