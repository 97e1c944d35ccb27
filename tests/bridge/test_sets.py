"""The set an iteration ends in, from runs: points, branches, cycles, moving sets, nothing."""

import numpy as np
import pytest

from koopsim.bridge.sets import plot_sets, set_of
from koopsim.errors import KoopsimError


def runs(f, starts, steps=400):
    out = np.empty((len(starts), steps + 1, np.size(starts[0])))
    for i, z in enumerate(starts):
        for k in range(steps + 1):
            out[i, k] = z
            z = f(np.atleast_1d(z))
    return out


def test_points_and_branches():
    one = set_of(runs(lambda z: 0.5 * z + 1, [0.0, 5.0]))
    assert (one.kind, one.components) == ("point", 1)
    assert str(one) == "a point"
    two = set_of(runs(lambda z: z + (z - z**3) / 4, [0.1, -0.1, 2.0]))
    assert (two.kind, two.components) == ("points", 2)
    assert "the start decides" in str(two)


def test_cycles_and_moving_sets():
    flip = set_of(runs(lambda z: 1 - z, [0.2, 0.2]))
    assert (flip.kind, flip.period, flip.components) == ("cycle", 2, 1)
    two = set_of(runs(lambda z: -z, [[0.2, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    assert two.period == 2
    assert two.components == 2  # each start keeps its own pair
    chaos = set_of(runs(lambda z: 4 * z * (1 - z), [0.3, 0.4], 2000))
    assert chaos.kind == "moving"
    assert chaos.mixing_rate < 0.8
    assert len(plot_sets([flip, two, chaos], ["a", "b", "c"]).axes) == 3
    assert chaos.to_dict()["components"] == 1


def test_nothing_is_left_of_what_blew_up():
    with np.errstate(over="ignore"):
        gone = set_of(runs(lambda z: z**2 + 2, [1.0, 2.0]))
    assert gone.kind == "none"
    assert "blew up" in str(gone)
    with pytest.raises(KoopsimError, match="8 steps or more"):
        set_of(np.zeros((2, 3, 1)))
