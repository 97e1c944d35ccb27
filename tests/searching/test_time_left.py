"""What is said of the time left is honest: never less than the oldest trial needs by itself, and never "0 s left"."""

from dataclasses import replace

from koopsim.config import Run
from koopsim.presets import run_of
from koopsim.progress import fitting_columns
from koopsim.searching.overview import Pace, event_of, overview, remaining
from koopsim.searching.space import base_of, space_of
from koopsim.searching.trial import Trial
from koopsim.spaces import Choice, LogUniform

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


def test_the_time_left_by_hand():
    """Two trials, an epoch each in 4 s: 2 s an epoch; of 20 epochs halving leaves 2 + 1 + 1 + 1 + 0.25 to each."""
    pace, space = Pace(), replace(SPACE, trials=2)
    guess = 2 + 2 / 2 + 4 / 4 + 8 / 8 + 4 / 16
    two = [trial(0, 1), trial(1, 1)]
    assert pace.left(two, space, 4.0) == 2.0 * (2 * guess - 2)
    two = [trial(0, 3), trial(1, 1, "pruned")]  # the other alone: two epochs in 10 s
    expected = 1 + (1 + 4 * guess) / 5
    assert pace.left(two, space, 14.0) == max(14.0 / 4 * (expected - 4), (20 - 3) * 5.0) == 85.0
    assert pace.left([trial(0, 20, "finished"), trial(1, 1, "pruned")], space, 20.0) == 0.0


def test_every_trial_that_goes_on_has_an_epoch_left():
    late = [trial(0, 19), trial(1, 19)]
    pace = Pace()
    pace.first = (0.0, 0)
    assert pace.left(late, SPACE, 38.0) == 2.0


def test_a_search_that_was_resumed_counts_anew():
    pace = Pace()
    assert pace.left([trial(0, 5), trial(1, 5)], SPACE, 100.0) is None
    assert pace.first == (100.0, 10)
    left = pace.left([trial(0, 6), trial(1, 5)], SPACE, 103.0)
    assert left == (20 - 6) * 3.0  # an epoch in 3 s


def test_the_view_of_a_search_to_the_letter():
    space = replace(
        SPACE, parameters={"recipe.learning_rate": LogUniform(1e-4, 1e-1), "recipe.batch_size": Choice((1,))}
    )
    trials = [trial(i, 2, "pruned" if i == 1 else "running") for i in range(9)]
    trials[3].curve[-1]["loss"] = 0.123456
    seen = overview(trials, space, 61.0, 34.2)
    assert seen["line"] == "1/9 trials  best loss 0.1235 (trial 3)  1 min 1 s, about 34 s left"
    assert seen["head"] == "1/9 trials  1 min 1 s, about 34 s left"
    assert seen["columns"] == ["trial", "loss", "t", "", "learning rate", "batch size"]
    rate, batch = RUN.recipe.learning_rate, RUN.recipe.batch_size
    assert seen["rows"][0] == ["3", "0.1235", "2", "running", f"{rate:.3g}", str(batch)]
    assert [row[0] for row in seen["rows"]] == ["3", "0", "1", "2", "4", "5", "6", "7"]  # eight of nine
    assert "no figure yet" in overview([trial(0, 0)], space, 0.0, None)["line"]
    assert remaining(1.0) == ", about 1 s left"


def test_what_a_listener_hears():
    trials = [trial(0, 2), trial(1, 1, "pruned")]
    heard = event_of(trials[0], trials, SPACE, 5.0, Pace())
    assert {k: heard[k] for k in ("event", "trial", "trials", "seconds", "over")} == {
        "event": "trial", "trial": trials[0], "trials": trials, "seconds": 5.0, "over": False}  # fmt: skip
    assert heard["view"]()["head"].startswith("1/2 trials")
    trials[0].end("finished", "")
    assert event_of(trials[0], trials, SPACE, 5.0, Pace())["over"] is True
