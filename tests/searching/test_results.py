"""The table, the choice, the pictures: on trials written by hand."""

import csv
import json
from dataclasses import replace

import matplotlib.image
import pytest
from small_search import tiny_run

from koopsim.errors import KoopsimError
from koopsim.searching.plots import save_plots
from koopsim.searching.results import (
    best_so_far,
    best_trial,
    expected_epochs,
    ranked,
    read_trials,
    summary,
    trials_csv,
    value_of,
)
from koopsim.searching.space import with_values
from koopsim.searching.trial import Trial
from koopsim.spaces import BANDWIDTH, Choice, LogUniform, SearchSpace

RUN = tiny_run("copy/sim-two")
SPACE = SearchSpace(
    {"recipe.batch_size": Choice((1, 2)), "recipe.learning_rate": LogUniform(1e-4, 1e-1), BANDWIDTH: LogUniform(1, 10)},
    trials=4, max_t=4, grace=1,
)  # fmt: skip


def trial(index, losses, status="finished", began=0.0, **values):
    drawn = {"recipe.batch_size": 1, "recipe.learning_rate": 10.0**-index / 20, BANDWIDTH: 2.0} | values
    curve = [{"t": t + 1, "seconds": began + t, "train_loss": 1.0, "loss": loss} for t, loss in enumerate(losses)]
    return Trial(index, drawn, with_values(RUN, drawn), status, "why, oh why", curve)


TRIALS = [
    trial(0, [3.0, 2.0, 0.1, 1.5]),  # best on the way, not at the end
    trial(1, [2.5, 1.0], "pruned", began=0.5),
    trial(2, [], "diverged"),
    trial(3, [9.0, 0.5], "failed"),
]


def test_the_last_value_decides_and_pruned_trials_take_part():
    assert [t.index for t in ranked(TRIALS, SPACE)] == [1, 0]
    assert best_trial(TRIALS, SPACE).index == 1
    assert [t.index for t in ranked(TRIALS, replace(SPACE, mode="max"))] == [0, 1]


def test_without_a_figure_the_error_says_why():
    with pytest.raises(KoopsimError, match=r"None of the 1 trials.*why, oh why"):
        best_trial(TRIALS[2:3], SPACE)


def test_the_table_holds_everything_and_reads_back(tmp_path):
    (tmp_path / "trials.csv").write_text(trials_csv(TRIALS, SPACE))
    rows = read_trials(tmp_path / "trials.csv")
    assert [row["status"] for row in rows] == ["finished", "pruned", "diverged", "failed"]
    assert rows[0]["reason"] == "why, oh why"  # a comma inside
    assert rows[0]["curve"] == [[1, 0.0, 1.0, 3.0], [2, 1.0, 1.0, 2.0], [3, 2.0, 1.0, 0.1], [4, 3.0, 1.0, 1.5]]
    assert float(rows[1]["recipe.learning_rate"]) == TRIALS[1].run.recipe.learning_rate
    assert rows[2]["loss"] == ""
    with (tmp_path / "trials.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == 5


def test_a_bandwidth_from_the_data_stands_as_the_number_used():
    found = replace(TRIALS[0], values=TRIALS[0].values | {BANDWIDTH: "median*1.0"})
    assert value_of(found, BANDWIDTH) == 2.0


def test_best_so_far_only_improves():
    assert best_so_far(TRIALS[:2], SPACE) == [(0.0, 3.0), (0.5, 2.5), (1.0, 2.0), (1.5, 1.0), (2.0, 0.1)]
    up = best_so_far(TRIALS[:2], replace(SPACE, mode="max"))
    assert up == [(0.0, 3.0)]


def test_the_summary_is_json_and_counts():
    found = json.loads(json.dumps(summary(TRIALS, SPACE, 12.0)))
    assert found["ended"] == {"finished": 1, "pruned": 1, "diverged": 1, "failed": 1}
    assert found["epochs"] == 8
    assert found["best"]["trial"] == 1
    assert found["best"]["loss"] == 1.0


def test_expected_epochs_start_at_halving_and_end_at_what_was_trained():
    waiting = [Trial(i, {}, RUN) for i in range(100)]
    space = replace(SPACE, max_t=4, grace=1)
    assert expected_epochs(waiting, space) == pytest.approx(100 * (1 + 0.5 * 1 + 0.25 * 2))
    assert expected_epochs(TRIALS, SPACE) == 8


def test_pictures_are_drawn_for_any_outcome(tmp_path):
    assert save_plots(TRIALS, SPACE, tmp_path) == ["best-so-far.png", "parallel.png", "sensitivity.png"]
    for name in ("best-so-far.png", "parallel.png", "sensitivity.png"):
        assert matplotlib.image.imread(tmp_path / name).std() > 0.01  # something is on it
    assert save_plots(TRIALS[2:3], SPACE, tmp_path) == []
    median = [replace(t, values=t.values | {BANDWIDTH: "median*1.0"}) for t in TRIALS]
    assert len(save_plots(median, replace(SPACE, mode="max", metric="loss"), tmp_path)) == 3
