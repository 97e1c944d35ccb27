"""How a file is fitted, and what is said of it."""

import numpy as np
import pytest

from koopsim.spectral import Delays, Identity, Monomials
from koopsim.spectral.observations import Observations, _standing_still, _without_times, fitted

RNG = np.random.default_rng


def seen(*lengths, d=1, **given):
    pieces = [np.cumsum(RNG(k).standard_normal((m, d)), axis=0) for k, m in enumerate(lengths)]
    return Observations(pieces, given.get("control"), [0.0] * len(lengths), 1.0, tuple("abcdefgh"[:d]), ())


def test_how_a_file_is_fitted():
    """Delays for a single series, a quarter of its length at most; truncated with fewer than four pairs a number."""
    assert fitted(seen(200)).dictionary_.delays == 30
    assert fitted(seen(40)).dictionary_.delays == 10
    assert not isinstance(fitted(seen(40), dictionary=Monomials(1)).dictionary_, Delays)
    assert not isinstance(fitted(seen(40, d=2)).dictionary_, Delays)
    assert not isinstance(fitted(seen(40), delays=0).dictionary_, Delays)
    still = seen(40)
    beside = Observations([np.c_[still.pieces[0], np.ones(40)]], None, [0.0], 1.0, ("a", "b"), ())
    assert fitted(beside).dictionary_.delays == 10  # a column that never changes is none
    for length, rank in ((15, None), (14, "auto")):  # 12 pairs for three numbers
        assert fitted(seen(length), delays=2).rank == rank
    for length, rank in ((9, None), (8, "auto")):
        assert fitted(seen(length, d=2), dictionary=Identity()).rank == rank
    assert fitted(seen(14), dictionary=Monomials(1), delays=2).rank is None
    assert fitted(seen(14), delays=2, rank=2).rank == 2
    assert fitted(seen(9, 4, 3), delays=2).n_samples_seen_ == 6 + 1
    with pytest.raises(ValueError, match="2 delays need 4"):
        fitted(seen(3), delays=2)
    steered = seen(20, control=[RNG(9).standard_normal((20, 1))])
    assert fitted(steered, delays=0).n_controls_ == 1
    assert isinstance(fitted(steered, delays=0).dictionary_, Identity)


def test_what_is_said_of_a_file():
    hole = np.array([[1.0], [2.0], [np.nan], [3.0], [4.0]])
    found, of = _without_times([hole, hole[:2]], None)
    assert of == [0, 0, 1]
    assert [len(p) for p in found.pieces] == [2, 2, 2]
    assert found.said == ("missing values cut the file into 3 pieces",)
    assert (found.dt, found.starts) == (1.0, [0.0, 3.0, 0.0])
    assert _without_times([hole[:2]], 0.5)[0].said == ()
    assert _without_times([hole[:2]], 0.5)[0].dt == 0.5
    assert _without_times([hole[:3]], None)[0].said == ()
    moving = np.arange(4.0)[:, None] * np.r_[1.0, np.zeros(6)]
    assert _standing_still(tuple("abcdefg"), [moving]) == ("b, c, d, e, f ... never changes",)
    assert _standing_still(tuple("abcdef"), [moving[:, :6]]) == ("b, c, d, e, f never changes",)
    assert _standing_still(("a",), [moving[:, :1]]) == ()
    assert _standing_still(("a", "b"), [moving[:, :2], moving[:, :2] + 1]) == ("b never changes",)
    with pytest.raises(ValueError, match="nothing ever changes"):
        _standing_still(("b",), [moving[:, 1:2]])


@pytest.mark.parametrize(
    ("lengths", "starts", "timed", "latest"),
    [
        ((7, 4), (0.0, 0.3), True, 1),  # both end at 0.7, the first at 0.7000000000000001
        ((8, 4), (0.0, 0.3), True, 0),
        ((4, 7), (0.3, 0.0), True, 1),
        ((9, 4, 3), (0.0, 0.0, 0.5), False, 2),  # without times the last in the file
    ],
)
def test_the_latest_piece(lengths, starts, timed, latest):
    pieces = [np.zeros((n, 1)) for n in lengths]
    seen = Observations(pieces, None, list(starts), 0.1, ("x",), (), timed=timed)
    assert seen.latest == latest
