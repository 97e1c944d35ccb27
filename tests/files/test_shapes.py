"""What a value read from JSON has to be: the first wrong field is named, with what it is and what was expected."""

import pytest

from koopsim.errors import KoopsimError
from koopsim.files.shapes import require_different, require_divisor, require_shape

KIND = {
    "name": str,
    "count": int,
    "mean": (float, None),
    "rows": [[float]],
    "best": {"t": int, "on?": bool},
    "figures?": {"*": float},
    "any": object,
}
GOOD = {"name": "a", "count": 3, "mean": 1, "rows": [[1.5], []], "best": {"t": 1}, "any": None, "more": "x"}


@pytest.mark.parametrize("more", [{}, {"mean": None}, {"figures": {}}, {"figures": {"a": 1, "b": 0.5}}, {"rows": []}])
def test_what_fits_is_taken(more):
    require_shape(GOOD | more, KIND, "f", "it")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "f.json is not a result: it is None; expected an object."),
        ([], "it is []; expected an object"),
        ({k: v for k, v in GOOD.items() if k != "count"}, "'count' is missing; expected a whole number"),
        (GOOD | {"count": True}, "'count' is True; expected a whole number"),
        (GOOD | {"count": 1.5}, "'count' is 1.5; expected a whole number"),
        (GOOD | {"mean": "x"}, "'mean' is 'x'; expected a number or null"),
        (GOOD | {"mean": False}, "'mean' is False; expected a number or null"),
        (GOOD | {"rows": {}}, "'rows' is {}; expected a list"),
        (GOOD | {"rows": [[1], ["x"]]}, "'rows[1][0]' is 'x'; expected a number"),
        (GOOD | {"best": {"t": 1, "on": 1}}, "'best.on' is 1; expected true or false"),
        (GOOD | {"best": 7}, "'best' is 7; expected an object"),
        (GOOD | {"figures": {"a": 1, "b": None}}, "'figures.b' is None; expected a number"),
        (GOOD | {"name": "x" * 99, "count": "y" * 99}, "'count' is '" + "y" * 36 + "...; expected a whole number"),
    ],
)
def test_what_does_not_is_named(value, why):
    with pytest.raises(KoopsimError) as error:
        require_shape(value, KIND, "f.json", "a result")
    assert why in str(error.value)


def test_of_several_kinds_the_one_that_is_nearest_is_told():
    with pytest.raises(KoopsimError, match=r"'a\[1\]' is None; expected a whole number"):
        require_shape({"a": [1, None]}, {"a": (int, [int])}, "f", "it")


def test_names_differ_and_divisors_divide():
    require_different(("a", "b"), "f", "words")
    with pytest.raises(KoopsimError, match="f: 'words' says 'b' twice"):
        require_different(("a", "b", "b"), "f", "words")
    require_divisor(1e-300, "f", "scale")
    for bad in (0.0, -1.0, 1e-320):
        with pytest.raises(KoopsimError, match=r"f: 'scale' is .*; expected a positive number"):
            require_divisor(bad, "f", "scale")
