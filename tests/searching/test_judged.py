"""What a trial is judged by: the last look, or the mean of the last few, wherever one is chosen; and that it stays."""

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_search import CPU, tiny_run, tiny_search

from koopsim.cli import main
from koopsim.cli.tune_lines import show_search
from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.searching.carrying_out import How, resume_search, start_search
from koopsim.searching.confirm import compared, confirmed, confirming, contenders
from koopsim.searching.directory import Search, SearchDirectory, search_from_dict, search_to_dict
from koopsim.searching.local import LocalSearch
from koopsim.searching.overview import overview
from koopsim.searching.plots import draw_sensitivity
from koopsim.searching.ray_worker import payload_of, prepared
from koopsim.searching.results import best_trial, ranked, read_trials, summary, trials_csv
from koopsim.searching.space import with_values
from koopsim.searching.space_text import overridden
from koopsim.searching.trial import Trial
from koopsim.spaces import LogUniform, SearchSpace
from koopsim.training import Session

RUN = tiny_run("copy/sim-two")
SPACE = SearchSpace({"recipe.learning_rate": LogUniform(1e-4, 1e-1)}, trials=4, max_t=4, grace=1)


def over(looks, **more):
    return replace(SPACE, judge_over=looks, **more)


def trial(index, *losses, status="finished"):
    curve = [{"t": t + 1, "seconds": float(t), "loss": loss} for t, loss in enumerate(losses)]
    values = {"recipe.learning_rate": 0.01 * (index + 1)}
    return Trial(index, values, with_values(RUN, values), status, "so", curve)


TRIALS = [
    trial(0, 4.0, 3.0, 3.0, 1.0),  # lucky at its last look
    trial(1, 4.0, 1.5, 1.5, 1.5),
    trial(2, 5.0, 2.0, status="pruned"),
    trial(3, 0.1, 0.1, status="diverged"),
]


@pytest.mark.parametrize(
    ("looks", "figures", "order"),
    [
        (1, [1.0, 1.5, 2.0], [0, 1, 2]),
        (2, [2.0, 1.5, 3.5], [1, 0, 2]),
        (3, [7 / 3, 1.5, 3.5], [1, 0, 2]),  # the pruned one has two looks: their mean
        (99, [11 / 4, 8.5 / 4, 3.5], [1, 0, 2]),
    ],
)
def test_the_mean_of_the_last_looks_of_all_where_there_are_fewer(looks, figures, order):
    space = over(looks)
    assert [t.judged(space) for t in TRIALS[:3]] == pytest.approx(figures)
    assert [t.index for t in ranked(TRIALS, space)] == order
    assert best_trial(TRIALS, space).index == order[0]
    assert [t.index for t in ranked(TRIALS, replace(space, mode="max"))] == order[::-1]
    assert trial(0).judged(space) is None


looked = st.lists(st.floats(-1e6, 1e6), max_size=5)


@given(curves=st.lists(looked, max_size=6), mode=st.sampled_from(["min", "max"]))
def test_one_look_is_exactly_the_papers_choice(curves, mode):
    """Scope `last`: by the value reported last, equals in their order."""
    trials, sign = [trial(i, *curve) for i, curve in enumerate(curves)], 1 if mode == "min" else -1
    wanted = sorted((t for t in trials if t.curve), key=lambda t: sign * t.curve[-1]["loss"])
    assert ranked(trials, replace(SPACE, mode=mode)) == wanted
    assert SPACE.judge_over == 1
    assert all(t.judged(SPACE) == t.last("loss") for t in trials)


def test_the_figure_is_shown_wherever_a_trial_is():
    found = summary(TRIALS, over(2), 1.0)
    assert (found["judge_over"], found["best"]["trial"], found["best"]["loss"]) == (2, 1, 1.5)
    assert summary(TRIALS, over(2), 1.0, TRIALS[0])["best"]["loss"] == 2.0
    rows = trials_csv(TRIALS, over(2)).splitlines()[1:]
    assert [row.split(",")[4] for row in rows] == ["2.0", "1.5", "3.5", "0.1"]
    seen = overview(TRIALS, over(2), 1.0, None)
    assert "best loss 1.5 (trial 1)" in seen["line"]
    assert [row[1] for row in seen["rows"]] == ["1.5", "2", "3.5"]
    drawn = draw_sensitivity(TRIALS, over(2))
    assert drawn is not None
    assert np.asarray(drawn.axes[0].collections[0].get_offsets())[:, 1].tolist() == [1.5, 2.0, 3.5]


@pytest.mark.parametrize(("t", "looks"), [(1, 1), (2, 2), (9, 4)])
def test_a_trial_with_fewer_looks_is_not_said_to_have_more(t, looks, tmp_path, capsys):
    best = {"trial": 0, "loss": 1.5, "t": t, "values": {}}
    result = {"name": "s", "trials": 1, "seconds": 1.0, "metric": "loss", "ended": {}, "pictures": []}
    assert show_search(result | {"best": best, "judge_over": 4}, tmp_path, False) == 0
    said = f" (mean of the last {looks} looks)" if looks > 1 else ""
    assert f"validation loss 1.5{said} after {t} epochs" in capsys.readouterr().out


# ---------------------------------------------------------------- confirmed


def test_contenders_and_confirmed_ones_are_judged_so():
    search = Search("copy/sim-two", RUN, over(2), confirm=2, confirm_seeds=1)
    assert [t.index for t in contenders(search, TRIALS)] == [1, 0]
    assert confirming(search, TRIALS[:2]).space.judge_over == 2
    again = [trial(0, 9.0, 3.0, 1.0), trial(1, 9.0, 1.5, 1.6)]  # by the last alone the first of them
    rows = compared(search, TRIALS[:2], again)
    assert [(row["trial"], row["figures"], row["in_search"]) for row in rows] == [
        (1, [pytest.approx(1.55)], 1.5), (0, [2.0], 2.0)]  # fmt: skip
    last = compared(replace(search, space=SPACE), TRIALS[:2], again)
    assert [(row["trial"], row["mean"]) for row in last] == [(0, 1.0), (1, 1.6)]


def test_one_begun_by_a_version_that_knew_one_look_goes_on(tmp_path):
    begun = []

    def train(second, directory, was_begun):
        begun.append(was_begun)
        return [trial(0, 1.0)]

    search = Search("copy/sim-two", RUN, SPACE, confirm=1, confirm_seeds=1)
    confirmed(search, SearchDirectory(tmp_path), TRIALS[:1], train)
    file = tmp_path / "confirm" / "search.json"
    kept = json.loads(file.read_text())
    del kept["space"]["judge_over"]
    file.write_text(json.dumps(kept))
    confirmed(search, SearchDirectory(tmp_path), TRIALS[:1], train)
    confirmed(replace(search, space=over(2)), SearchDirectory(tmp_path), TRIALS[:1], train)  # another question
    assert begun == [False, True, False]
    file.write_text("[]")
    confirmed(search, SearchDirectory(tmp_path), TRIALS[:1], train)
    assert begun[3:] == [False]


# ---------------------------------------------------------------- kept


def test_it_stays_with_the_search_and_a_file_from_before_has_one(tmp_path):
    search = Search("copy/sim-two", RUN, over(4))
    kept = json.loads(json.dumps(search_to_dict(search)))
    assert search_from_dict(kept, tmp_path) == search
    del kept["space"]["judge_over"]
    assert search_from_dict(kept, tmp_path) == replace(search, space=SPACE)
    assert prepared(payload_of(search, []), "cpu")[0].space == search.space  # what a worker on Ray is told


@pytest.mark.parametrize("looks", [0, -1, 2.5, "2", True, None, 100_001])
def test_what_is_no_number_of_looks(looks):
    with pytest.raises(KoopsimError, match=r"judge_over is .*; give a whole number of looks from 1 .* to 100,000\."):
        over(looks)


@pytest.mark.parametrize("looks", [2.5, "x", None, [1]])
def test_nor_in_a_file(looks):
    with pytest.raises(KoopsimError, match=r"judge_over in s\.toml is .*; expected int"):
        overridden(SPACE, RUN, {"judge_over": looks}, "s.toml")
    assert overridden(SPACE, RUN, {"judge_over": "3"}, "s.toml").judge_over == 3


def pressing(index):
    """Ctrl-C at the second look of this trial."""

    def listen(event):
        if (event["trial"].index, event["trial"].t) == (index, 2):
            os.kill(os.getpid(), signal.SIGINT)

    return listen


def by_hand(folder, looks):
    """The trial with the best mean over the last looks of its curve in trials.csv."""
    rows = read_trials(folder / "trials.csv")
    means = [sum(line[3] for line in row["curve"][-looks:]) / min(looks, len(row["curve"])) for row in rows]
    return min(range(len(means)), key=means.__getitem__), min(means)


@pytest.mark.parametrize("engine", ["stacked", "separate"])
def test_a_search_stopped_and_gone_on_with_is_judged_as_it_was_begun(tmp_path, engine):
    search = tiny_search(trials=4, engine=engine, retrain=0, confirm=2, confirm_seeds=1)
    search = replace(search, space=replace(search.space, judge_over=3))
    whole = start_search(search, tmp_path / "whole", How(Session(CPU)))
    stopping = How(Session(CPU), shown=lambda title, epochs: nullcontext(pressing(1)))
    with pytest.raises(Stopped):
        start_search(search, tmp_path / "stopped", stopping)
    again = resume_search(tmp_path / "stopped", How(Session(CPU)))
    assert (again["best"], again["confirmed"]) == (whole["best"], whole["confirmed"])
    assert again["judge_over"] == 3
    best, mean = by_hand(tmp_path / "stopped" / "confirm", 3)
    assert again["confirmed"][0]["mean"] == pytest.approx(mean)
    assert again["confirmed"][0]["trial"] == contenders(search, _trials(tmp_path / "stopped", search))[best].index


def _trials(folder, search):
    local = LocalSearch(search, SearchDirectory(folder), Session(CPU))
    local.load()
    return local.trials


# ---------------------------------------------------------------- the command

TINY = [
    *"--scale smoke --device cpu --trials 4 --recipe.epochs 4 --task.horizon 3 --model.lift.levels 2".split(),
    *"--task.train 40 --task.valid 10 --task.test 10 --retrain 0".split(),
]


def test_the_command_says_what_it_judged_by(tmp_path, capsys):
    path = tmp_path / "s"
    words = ["--no-prune", "--judge-over", "3", "--confirm", "1", "--confirm-seeds", "1"]
    assert main(["tune", "copy/sim-two", *TINY, *words, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    result = json.loads((path / "result.json").read_text())
    best, mean = by_hand(path, 3)
    assert (result["judge_over"], result["best"]["trial"]) == (3, best)
    assert result["best"]["loss"] == pytest.approx(mean)
    assert f"validation loss {mean:.4g} (mean of the last 3 looks) after 4 epochs" in out
    assert "confirmed with 1 other seeds each, validation loss (mean of the last 3 looks):" in out
    (path / "result.json").unlink()
    assert main(["tune", "--resume", str(path), "--device", "cpu"]) == 0
    assert json.loads((path / "result.json").read_text())["best"] == result["best"]


def test_each_picture_is_judged_so(tmp_path, capsys):
    words = "--per-picture --scale smoke --device cpu --trials 3 --recipe.epochs 3 --task.size 16 --retrain 0".split()
    path = tmp_path / "each"
    assert main(["tune", "image/sim-rff", *words, "--no-prune", "--judge-over", "2", "--out", str(path)]) == 0
    assert "valid (mean of the last 2 looks)" in capsys.readouterr().out
    result = json.loads((path / "result.json").read_text())
    assert result["judge_over"] == 2
    for name in result["pictures"]:
        curves = [row["curve"] for row in read_trials(path / name / "trials.csv")]
        assert [len(curve) for curve in curves] == [3, 3, 3]
        means = [(curve[-1][3] + curve[-2][3]) / 2 for curve in curves]
        assert result["valid"][f"psnr/{name}"] == pytest.approx(max(means))
        own = json.loads((path / name / "result.json").read_text())
        assert own["best"]["trial"] == means.index(max(means))
    del result["environment"]
    (path / "result.json").unlink()
    (path / "flower" / "result.json").unlink()  # as if killed before it was written
    assert main(["tune", "--resume", str(path), "--device", "cpu"]) == 0
    again = json.loads((path / "result.json").read_text())
    assert (again["settings"], again["valid"], again["judge_over"]) == (result["settings"], result["valid"], 2)


@pytest.mark.parametrize("looks", ["0", "-2", "2.5", "x", ""])
def test_a_bad_number_is_one_line_and_writes_nothing(looks, tmp_path, capsys):
    words = ["tune", "copy/sim-single", "--scale", "smoke", "--judge-over", looks, "--out", str(tmp_path / "s")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "give a whole number of looks" in err
    assert not (tmp_path / "s").exists()
