"""A search's state is believed field by field."""

import pytest

from koopsim.searching.state import _require_sense

GROUP = {"waiting": [1], "slots": [0, None], "ages": [2, 0]}
GOOD = {"turn": 0, "position": 3, "seconds": 1.5, "asha": [{"0": -0.5}], "groups": [GROUP]}


def test_what_a_search_writes_makes_sense():
    _require_sense(GOOD, range(2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("turn", -1), ("position", 1.0), ("seconds", float("nan")), ("asha", {}), ("asha", [{"2": 0.1}]),
        ("asha", [{"0": float("inf")}]), ("groups", None), ("groups", [GROUP | {"waiting": [2]}]),
        ("groups", [GROUP | {"slots": [True, None]}]), ("groups", [GROUP | {"ages": [1]}]),
    ],
)  # fmt: skip
def test_what_does_not_is_named(field, value):
    with pytest.raises(ValueError, match="no good"):
        _require_sense(GOOD | {field: value}, range(2))
