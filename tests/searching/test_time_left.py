"""What is said of the time left is honest: never less than the oldest trial needs by itself, and never "0 s left"."""

from dataclasses import replace

from koopsim.config import Run
from koopsim.presets import run_of
from koopsim.progress import fitting_columns
from koopsim.searching.overview import Pace, overview, remaining
from koopsim.searching.space import base_of, space_of
from koopsim.searching.trial import Trial

RUN: Run = run_of("copy/sim-single", "smoke")
SPACE = replace(space_of(base_of(RUN), "smoke"), trials=4, max_t=20, grace=2, reduction=2)


def trial(index: int, age: int, status: str = "running") -> Trial:
    return Trial(index, {}, RUN, status, curve=[{"t": t, "loss": 1.0 / t} for t in range(1, age + 1)])


def test_the_last_of_a_stack_takes_its_own_time():
    """Eight trials did an epoch in a second together; the one that is left still takes a second for each."""
    pace = Pace()
    for seconds in range(1, 9):
        pace.left([trial(0, seconds)] + [trial(i, seconds, "stopped") for i in range(1, 8)], SPACE, float(seconds))
    left = pace.left([trial(0, 9)] + [trial(i, 8, "stopped") for i in range(1, 8)], SPACE, 9.0)
    assert left is not None
    assert 0.9 * (SPACE.max_t - 9) <= left <= 3 * (SPACE.max_t - 9)


def test_nobody_knows_before_the_first_epoch_and_nothing_is_left_after_the_last():
    assert Pace().left([trial(0, 0, "waiting")], SPACE, 0.1) is None
    assert Pace().left([trial(0, 20, "done")], SPACE, 9.0) == 0


def test_no_second_is_promised_that_is_not_known():
    assert remaining(None) == ""
    assert remaining(0.0) == ""
    assert remaining(0.4) == ", a moment left"
    assert remaining(34.2) == ", about 34 s left"
    for left in (None, 0.0, 0.4):
        assert "0 s left" not in overview([trial(0, 3)], SPACE, 5.0, left)["line"]


def test_a_narrow_terminal_shows_the_first_columns():
    rows = [["trial", "loss", "t", "", "learning rate", "batch size"], ["12", "0.001", "6", "running", "0.0012", "20"]]
    assert fitting_columns(rows, 200) == 6
    assert fitting_columns(rows, 40) == 4
    assert fitting_columns(rows, 5) == 2
