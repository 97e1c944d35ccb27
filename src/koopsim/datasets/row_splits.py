"""Which rows are learnt, which choices are made on, and which are kept for the test.

share    a part of the rows, drawn by a seed; of every class its share, up to a row
group    rows of one group (a patient, a day) stay together: what is tested on was never seen in part
column   the table says it itself: train, valid or test in every row
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.columns import Column
from koopsim.errors import KoopsimError

TRAIN, VALID, TEST = 0, 1, 2
SPELLINGS = {"train": TRAIN, "training": TRAIN, "valid": VALID, "validation": VALID, "val": VALID, "test": TEST}

Marks = NDArray[np.int8]


def split_rows(
    n: int,
    valid: float,
    test: float,
    seed: int,
    strata: NDArray[np.integer] | None = None,
    groups: NDArray[np.integer] | None = None,
) -> Marks:
    """(n,): the mark of each row. `strata`: classes to be shared out evenly; `groups`: what must not be cut."""
    generator = np.random.default_rng(seed)
    if groups is not None:
        return _by_group(groups, valid, test, generator)
    marks = np.full(n, TRAIN, np.int8)
    marks[_drawn(np.arange(n), test, strata, generator)] = TEST
    rest = np.flatnonzero(marks == TRAIN)
    marks[_drawn(rest, valid / (1 - test), strata, generator)] = VALID
    return marks


def _drawn(
    rows: NDArray[np.integer], share: float, strata: NDArray[np.integer] | None, generator: np.random.Generator
) -> NDArray[np.integer]:
    """A share of the rows, at least one and not all: every 1/share-th of them, ordered by class and else at random."""
    order = rows[generator.permutation(len(rows))]
    if strata is not None:
        order = order[np.argsort(strata[order], kind="stable")]
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    if share == 0:
        return order[:0]
    return order[((np.arange(count) + generator.random()) * len(rows) / count).astype(int) % len(rows)]


def _by_group(groups: NDArray[np.integer], valid: float, test: float, generator: np.random.Generator) -> Marks:
    """Whole groups in a random order, the first to the test until its share is reached, then to the choices."""
    names, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    wanted = [TEST] * (test > 0) + [VALID] * (valid > 0)
    if len(names) <= len(wanted):
        raise KoopsimError(f"There are {len(names)} groups; a split into {len(wanted) + 1} parts needs one for each.")
    order = list(generator.permutation(len(names)))
    mark_of = np.full(len(names), TRAIN, np.int8)
    for mark in wanted:
        share = {TEST: test, VALID: valid}[mark] * len(groups)
        taken, parts_after = 0, len(wanted) - wanted.index(mark)
        while len(order) > parts_after and (taken == 0 or taken + counts[order[0]] / 2 <= share):
            taken += counts[order[0]]
            mark_of[order.pop(0)] = mark
    return mark_of[inverse]


def split_by_column(
    column: Column, path: object, valid: float, test: float, seed: int, strata: NDArray[np.integer] | None = None
) -> Marks:
    """As the column says; a part that it never names is drawn from the rows for training, by its share."""
    codes, words = column.codes()
    marks_of = [SPELLINGS.get(word.lower()) for word in words]
    if None in marks_of or (codes < 0).any():
        wrong = repr(words[marks_of.index(None)]) if None in marks_of else "nothing at all in a row"
        raise KoopsimError(f"{path}: column {column.name!r} says {wrong}; expected train, valid or test in every row.")
    return completed(np.array(marks_of, np.int8)[codes], f"{path}: column {column.name!r}", valid, test, seed, strata)


def completed(
    marks: Marks, what: str, valid: float, test: float, seed: int, strata: NDArray[np.integer] | None = None
) -> Marks:
    """Marks that somebody made, each part that they never name drawn from what is for training."""
    marks, generator = marks.copy(), np.random.default_rng(seed)
    for mark, share in ((TEST, test), (VALID, valid)):
        rows = np.flatnonzero(marks == TRAIN)
        if len(rows) < 2:
            raise KoopsimError(f"{what} leaves {len(rows)} rows to train on; expected more.")
        if not (marks == mark).any():
            marks[_drawn(rows, share, strata, generator)] = mark
    return marks
