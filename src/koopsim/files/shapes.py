"""What a JSON value has to be before anyone takes something out of it.

    str  int  float  bool  dict  list     its kind: a float may be whole, and true is no number
    object, None                          anything; nothing
    (A, B)                                one of these
    [A]                                   a list, each entry an A
    {"a": A, "b?": B, "*": C}             an object: `a` is there, `b` may be, all others are C (without "*": anything)
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError

Kind = Any
WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object",
         list: "a list", None: "null"}  # fmt: skip


def require_shape(value: Any, kind: Kind, where: Path | str, what: str, way_out: str = "") -> None:
    """One line that names the file and the field where `value` is not of this kind, and the way out."""
    found = _misfit(value, kind, "")
    if found:
        place, wanted, given = found
        field = f"{place!r}" if place else "it"
        raise KoopsimError(f"{where} is not {what}: {field} is {given}; expected {wanted}.{way_out}")


@contextlib.contextmanager
def naming(where: Path | str) -> Iterator[None]:
    """What is refused inside names the file, though whoever refuses it does not know that there is one."""
    try:
        yield
    except KoopsimError as error:
        if str(where) in str(error):
            raise
        raise KoopsimError(f"{where}: {error}") from error


def require_field(good: bool, where: Path | str, field: str, why: str) -> None:
    """One line that names the file and the field where something about it is not good."""
    if not good:
        raise KoopsimError(f"{where}: {field!r} {why}.")


def require_different(names: Sequence[str], where: Path | str, field: str) -> None:
    """No name twice: two columns, words or classes of one name cannot be told apart."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    require_field(twice is None, where, field, f"says {(twice or '')[:40]!r} twice")


def require_divisor(value: float, where: Path | str, field: str) -> None:
    """A positive number whose inverse is one, too."""
    require_field(value > 0 and math.isfinite(1 / value), where, field, f"is {value:g}; expected a positive number")


def _misfit(value: Any, kind: Kind, place: str) -> tuple[str, str, str] | None:
    """(which entry, what it should be, what it is) of the first that is wrong."""
    if isinstance(kind, tuple):
        found = [_misfit(value, one, place) for one in kind]
        deeper = next((f for f in found if f and f[0] != place), None)
        return None if None in found else deeper or (place, _word(kind), briefly(value))
    if isinstance(kind, dict):
        return _plain(value, dict, place) or _entries(value, kind, place)
    if isinstance(kind, list):
        parts = enumerate(value) if isinstance(value, list) else ()
        each = (_misfit(part, kind[0], f"{place}[{i}]") for i, part in parts)
        return _plain(value, list, place) or next(filter(None, each), None)
    return _plain(value, kind, place)


def _entries(value: dict[str, Any], kind: dict[str, Kind], place: str) -> tuple[str, str, str] | None:
    known = {name.removesuffix("?"): (name.endswith("?"), own) for name, own in kind.items() if name != "*"}
    for name, (free, own) in known.items():
        inner = f"{place}.{name}" if place else name
        if name not in value:
            if not free:
                return inner, _word(own), "missing"
        elif found := _misfit(value[name], own, inner):
            return found
    rest = [name for name in value if name not in known] if "*" in kind else []
    each = (_misfit(value[name], kind["*"], f"{place}.{name[:40]}" if place else name[:40]) for name in rest)
    return next(filter(None, each), None)


def _plain(value: Any, kind: Kind, place: str) -> tuple[str, str, str] | None:
    good = value is None if kind is None else isinstance(value, (int, float) if kind is float else kind)
    if kind in (int, float):
        good = good and not isinstance(value, bool) and math.isfinite(value)
    return None if good else (place, _word(kind), briefly(value))


def _word(kind: Kind) -> str:
    if isinstance(kind, tuple):
        return " or ".join(_word(one) for one in kind)
    plain = type(kind) if isinstance(kind, dict | list) else kind
    return WORDS.get(plain, "something")


def briefly(value: Any) -> str:
    """A value as it may stand in a sentence."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
