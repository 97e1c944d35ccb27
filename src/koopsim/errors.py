"""The one kind of error that is the user's to fix: it is printed as one line, without a traceback."""

import difflib
from collections.abc import Iterable


class KoopsimError(Exception):
    """Something given to koopsim cannot be used. The message says what was given, what was expected, what to do."""


def printable(text: str) -> str:
    """`text` on one line, without what would move a terminal's cursor or colour it: a name may come from anyone."""
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


class LostOthers(KoopsimError):
    """Of several processes another one is gone; what went wrong is that one's to say."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says first, without its full stop; its kind where it says nothing."""
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?", or the list of what is known when nothing is close."""
    known = list(known)
    close = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."
