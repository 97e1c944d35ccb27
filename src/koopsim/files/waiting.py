"""A word to who waits: how far a long reading is, after its first seconds and then now and then.

It goes to the log as a warning, which Python shows on standard error unless somebody asked otherwise.
"""

from __future__ import annotations

import logging
import time

SECONDS = 5.0  # between two lines
log = logging.getLogger(__name__)


class Waiting:
    """Says how much of `total` is done, and about how long the rest takes."""

    def __init__(self, what: str, total: float):
        self.what, self.total = what, total
        self.began = self.said = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if now - self.said < SECONDS or not 0 < done < self.total:
            return
        self.said = now
        left = (now - self.began) * (self.total / done - 1)
        about = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        log.warning("%s: %.0f%% read, about %s to go", self.what, 100 * done / self.total, about)
