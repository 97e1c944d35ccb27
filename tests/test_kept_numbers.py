"""The kept numbers' own rules: what processors do not agree on is no witness, and that is little."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kept_numbers import KEPT, MOVES, _moved, agreed, packed, unpacked


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def test_what_moves_is_little():
    kept = unpacked(json.loads(KEPT.read_text()))
    every = list(leaves(kept))
    assert len(every) > 15_000
    assert every.count(MOVES) < 0.01 * len(every)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1.0, 1.0 + 4e-6], 1.0),
        ([1.0, 1.0 + 6e-6], MOVES),  # half of 1e-5 is asked for
        ([1e-12, 4e-10], 1e-12),
        ([True, 1], MOVES),
        ([["a", 2.0], ["b", 2.0]], [MOVES, 2.0]),
        ([{"n": [1, 2]}, {"n": [1, 2, 3]}], {"n": MOVES}),
        ([{"n": 1}, {"m": 1}], MOVES),
        ([float("nan"), float("nan"), 1.0], MOVES),
    ],
)
def test_what_arithmetics_agree_on(values, kept):
    assert agreed(values, 1e-5, 1e-9) == kept


def test_a_number_that_moved_is_found_and_one_that_moves_is_not_looked_at():
    was = {"a": [1.0, MOVES], "b": "word", "c": None}
    assert _moved(was, {"a": [1.0 + 1e-6, 7.0], "b": "word", "c": None}, 1e-5, 0, "x") is None
    assert _moved(was, {"a": [1.1, 7.0], "b": "word", "c": None}, 1e-5, 0, "x") == "x/a/0: 1.0 became 1.1"
    assert _moved(was, {"a": [1.0], "b": "word", "c": None}, 1e-5, 0, "x") is not None
    assert _moved(was, {"a": [1.0, 7.0], "b": "other", "c": None}, 1e-5, 0, "x") == "x/b: word became other"
    assert _moved(was, {"a": [1.0, 7.0], "b": "word", "c": 0}, 1e-5, 0, "x") is not None


def test_words_are_packed_and_come_back():
    value = {"said": ["one", "two", "one"], "rest": [[1.0, None], ["alone"]]}
    assert packed(value)["said"] == {"outcomes": ["one", "two"], "which": "0 1 0"}
    assert unpacked(packed(value)) == value
