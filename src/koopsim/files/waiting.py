"""A word to who waits: how far a long reading is, on standard error, after its first seconds and then now and then."""

from __future__ import annotations

import sys
import time

SECONDS = 5.0  # between two lines


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
        print(f"{self.what}: {done / self.total:.0%} read, about {about} to go", file=sys.stderr, flush=True)
