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


def test_the_table_to_the_letter():
    one = trial(1, [2.5, 1.0], "pruned", began=0.12345)
    bare = Trial(2, {}, RUN)
    text = trials_csv([one, bare], SPACE).splitlines()
    assert (
        text[0] == f"trial,status,reason,t,loss,seconds,recipe.batch_size,recipe.learning_rate,{BANDWIDTH},seed,curve"
    )
    assert text[1] == (
        f'1,pruned,"why, oh why",2,1.0,1.123,1,0.005,2.0,{RUN.seed},"[[1, 0.123, 1.0, 2.5], [2, 1.123, 1.0, 1.0]]"'
    )
    assert text[2].startswith("2,waiting,,0,,,")
    assert text[2].endswith(",[]")


def test_a_table_without_a_curve_has_none(tmp_path):
    (tmp_path / "trials.csv").write_text("trial,curve\n0,\n")
    assert read_trials(tmp_path / "trials.csv") == [{"trial": "0", "curve": []}]


def test_equals_keep_their_order_and_who_has_no_figure_has_no_place():
    trials = [trial(0, [1.0]), trial(1, [1.0], "running"), Trial(2, {}, RUN, "finished"), trial(3, [0.5], "diverged")]
    assert [t.index for t in ranked(trials, SPACE)] == [0, 1]
    assert [t.index for t in ranked(trials, replace(SPACE, mode="max"))] == [0, 1]
    assert best_so_far(trials[:2], SPACE) == [(0.0, 1.0)]  # the same again is no improvement


def test_values_are_those_used_and_of_a_trial_that_failed_those_drawn():
    drawn = trial(0, [1.0])
    used = replace(drawn, run=with_values(drawn.run, {"recipe.batch_size": 2}))
    assert value_of(used, "recipe.batch_size") == 2
    assert value_of(replace(used, status="failed"), "recipe.batch_size") == 1
    elsewhere = replace(used, values={"model.nothing.at.all": 7, "recipe.batch_size.x": 8})
    assert value_of(elsewhere, "model.nothing.at.all") == 7
    assert value_of(elsewhere, "recipe.batch_size.x") == 8


def test_the_summary_field_by_field():
    found = summary(TRIALS, SPACE, 12.0)
    best = TRIALS[1]
    values = {"recipe.batch_size": 1, "recipe.learning_rate": 0.005, BANDWIDTH: 2.0}
    assert found["best"] == {"trial": 1, "loss": 1.0, "t": 2, "values": values, "run": found["best"]["run"]}
    assert found["best"]["run"]["recipe"]["learning_rate"] == best.run.recipe.learning_rate
    assert {k: found[k] for k in ("trials", "seconds", "metric")} == {"trials": 4, "seconds": 12.0, "metric": "loss"}
    assert summary(TRIALS, SPACE, 12.0, TRIALS[0])["best"]["trial"] == 0


def test_expected_epochs_by_hand():
    """Rungs 2 and 4 of 5 epochs: 2 + 2/2 + 1/4 = 3.25 for each; one that ended after 1 is a fifth beside four."""
    space = replace(SPACE, max_t=5, grace=2)
    mean = (1 + 4 * 3.25) / 5
    trials = [trial(0, [1.0], "pruned"), Trial(1, {}, RUN), trial(2, [1.0] * 4, "running"), trial(3, [1.0], "running")]
    assert expected_epochs(trials, space) == pytest.approx(1 + mean + 4 + mean)
    assert expected_epochs([Trial(0, {}, RUN)], replace(space, reduction=4)) == pytest.approx(2 + 3 / 4)
