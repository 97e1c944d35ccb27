"""What a configuration refuses: a sentence that says what was given and what belongs there.

No torch here, nor anywhere in this room: the command line reads configurations before anything heavy is imported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

from koopsim.errors import KoopsimError


def require(ok: bool, message: Callable[[], str]) -> None:
    """Refuse what is not ok. The sentence is made only then: configurations are read by the thousand."""
    if not ok:
        raise KoopsimError(message())


def require_each(config: Any, names: Iterable[str], ok: Callable[[Any], bool], must: str) -> None:
    """Refuse the first of the named entries that is not ok; `must` has places for its name and its value."""
    for name in names:
        value = getattr(config, name)
        try:
            good = ok(value)
        except TypeError:  # of another kind than can be compared
            good = False
        if not good:
            raise KoopsimError(must.format(name, value if isinstance(value, (int, float)) else in_short(value)))


SEEDS = 2**40  # a picture's or a trial's own seed is a multiple of one, and still fits in 64 bits
MOST = 2**31 - 1  # of any whole number: beyond it nothing here has a meaning


def require_sane(config: Any, where: str) -> None:
    """What holds for every entry, a plugin's too: numbers are finite and no monsters, words can be printed."""
    for field_ in dataclasses.fields(config):
        name, value = f"{where}{field_.name}", getattr(config, field_.name)
        if dataclasses.is_dataclass(value):
            require_sane(value, f"{name}.")
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float) and not math.isfinite(part):
                raise KoopsimError(f"{name} is {part}; expected a finite number.")
            if isinstance(part, int) and field_.name == "seed" and not 0 <= part < SEEDS:
                raise KoopsimError(f"{name} is {part}; a seed lies between 0 and {SEEDS - 1}.")
            if isinstance(part, int) and field_.name != "seed" and abs(part) > MOST:
                raise KoopsimError(f"{name} is {part}; no such number goes beyond {MOST}.")
            if isinstance(part, str) and (not part.isprintable() or len(part) > 4096):
                raise KoopsimError(f"{name} is {part[:100]!r}; expected a short text without control characters.")


def largest_number(config: Any) -> int:
    """The largest whole number of a configuration, at any depth: what its memory may grow with."""
    found = [0]
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        for part in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(part):
                found.append(largest_number(part))
            elif isinstance(part, int) and field_.name != "seed":
                found.append(part)
    return max(found)


def in_short(data: Any) -> str:
    """A value in an error: its beginning is enough."""
    text = repr(data)
    return text if len(text) <= 200 else f"{text[:200]}..."


def positive(count: int) -> bool:
    return isinstance(count, Integral) and count >= 1


def positive_or_none(count: int | None) -> bool:
    return count is None or count >= 1
