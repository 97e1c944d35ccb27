"""Which rows go where, counted by hand."""

from collections import Counter

import numpy as np
import pytest

from koopsim.datasets.columns import Column
from koopsim.datasets.row_splits import TEST, TRAIN, VALID, completed, split_by_column, split_rows
from koopsim.errors import KoopsimError


@pytest.mark.parametrize(
    ("n", "valid", "test", "wanted"),
    [
        (10, 0.1, 0.2, (7, 1, 2)), (10, 0.0, 0.2, (8, 0, 2)), (10, 0.2, 0.0, (8, 2, 0)), (10, 0.0, 0.0, (10, 0, 0)),
        (3, 0.1, 0.1, (1, 1, 1)), (20, 0.3, 0.5, (4, 6, 10)), (2, 0.0, 0.99, (1, 0, 1)),
        (100, 0.25, 0.25, (50, 25, 25)),
    ],
)  # fmt: skip
def test_shares_are_of_all_rows(n, valid, test, wanted):
    for seed in range(5):
        counts = Counter(split_rows(n, valid, test, seed).tolist())
        assert tuple(counts[mark] for mark in (TRAIN, VALID, TEST)) == wanted


def test_every_class_has_its_share_up_to_a_row():
    strata = np.repeat([2, 0, 1], [10, 20, 30])
    for seed in range(5):
        marks = split_rows(60, 0.0, 0.5, seed, strata)
        assert np.bincount(strata[marks == TEST]).tolist() == pytest.approx([10, 15, 5], abs=1)
    assert len({tuple(split_rows(60, 0.0, 0.5, seed, strata)) for seed in range(5)}) == 5


def test_groups_go_to_the_test_until_its_share_is_reached():
    """Groups of one size: half a group over its share is the most that a part may have."""
    groups = np.repeat(np.arange(10), 4)
    for test, wanted in ((0.1, 4), (0.24, 8), (0.25, 12), (0.26, 12), (0.3, 12), (0.34, 12)):
        marks = split_rows(40, 0.0, test, 1, groups=groups)
        assert (marks == TEST).sum() == wanted, test
        assert (marks == VALID).sum() == 0
    both = Counter(split_rows(40, 0.3, 0.2, 1, groups=groups).tolist())
    assert both == {TRAIN: 20, VALID: 12, TEST: 8}
    assert Counter(split_rows(40, 0.2, 0.0, 1, groups=groups).tolist()) == {TRAIN: 32, VALID: 8}


def test_every_part_has_a_group_however_small_its_share():
    groups = np.repeat([7, 3, 5], [1, 1, 98])
    assert set(split_rows(100, 0.01, 0.01, 0, groups=groups).tolist()) == {TRAIN, VALID, TEST}
    assert set(split_rows(100, 0.9, 0.9, 0, groups=groups).tolist()) == {TRAIN, VALID, TEST}
    assert set(split_rows(100, 0.0, 0.9, 0, groups=np.repeat([0, 1], 50)).tolist()) == {TRAIN, TEST}
    for valid, test, count in ((0.1, 0.1, 2), (0.0, 0.1, 1), (0.1, 0.0, 1)):
        with pytest.raises(KoopsimError, match=f"There are {count} groups; a split into {count + 1} parts"):
            split_rows(8, valid, test, 0, groups=np.arange(8) % count)


def marked(*words):
    names = tuple(dict.fromkeys(words))
    return Column("part", np.array([names.index(w) for w in words], np.int32), names)


def test_a_part_that_the_column_never_names_is_drawn_from_the_rows_to_train_on():
    marks = split_by_column(marked(*["train"] * 20, *["val"] * 5), "f", 0.9, 0.25, 0)
    assert Counter(marks.tolist()) == {TRAIN: 15, VALID: 5, TEST: 5}
    assert set(marks[20:].tolist()) == {VALID}
    marks = split_by_column(marked(*["TRAINING"] * 20, *["test"] * 5), "f", 0.1, 0.9, 0)
    assert Counter(marks.tolist()) == {TRAIN: 18, VALID: 2, TEST: 5}
    strata = np.array([0] * 10 + [1] * 10)
    marks = split_by_column(marked(*["train"] * 20), "f", 0.25, 0.2, 0, strata)
    assert Counter(strata[marks == TEST].tolist()) == {0: 2, 1: 2}
    assert Counter(marks.tolist()) == {TRAIN: 12, VALID: 4, TEST: 4}


def test_two_rows_are_the_fewest_to_train_on():
    marks = split_by_column(marked("train", "train", "valid", "test"), "f", 0.5, 0.5, 0)
    assert marks.tolist() == [TRAIN, TRAIN, VALID, TEST]
    with pytest.raises(KoopsimError, match="column 'part' leaves 1 rows to train on"):
        split_by_column(marked("train", "valid", "test"), "f", 0.5, 0.5, 0)
    with pytest.raises(KoopsimError, match="says 'later'; expected train"):
        split_by_column(marked("train", "train", "later"), "f", 0.5, 0.5, 0)


def test_parts_that_are_there_stay_and_the_others_are_drawn():
    given = np.array([TRAIN] * 10 + [TEST] * 5, np.int8)
    found = completed(given, "f", 0.2, 0.5, 0)
    assert (found == TEST).sum() == 5
    assert (found[10:] == TEST).all()
    assert (found == VALID).sum() == 2
    assert (given == TRAIN).sum() == 10  # the marks given are not changed
    with pytest.raises(KoopsimError, match="f leaves 1 rows to train on"):
        completed(given[9:], "f", 0.2, 0.5, 0)
