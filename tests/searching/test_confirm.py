"""The confirm step: fresh seeds decide, not luck; and nothing stops it for good."""

import json
import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_search import CPU, tiny_run, tiny_search, trained_alone

from koopsim.cli import main
from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.report.collect import find
from koopsim.searching.confirm import confirmed, confirmed_search, confirming, contenders
from koopsim.searching.directory import Search, SearchDirectory, search_from_dict, search_to_dict
from koopsim.searching.local import LocalSearch
from koopsim.searching.outcome import Ended, conclude, final_run
from koopsim.searching.results import read_trials, value_of
from koopsim.searching.space import with_values
from koopsim.searching.space_text import overridden, parameter_text, parse_parameter, space_from_arguments
from koopsim.searching.trial import Trial, draw_trials
from koopsim.spaces import BANDWIDTH, Choice, Listed, LogUniform, SearchSpace
from koopsim.tasks import build_task
from koopsim.training import Session

RATE, BATCH = "recipe.learning_rate", "recipe.batch_size"
RUN = tiny_run("copy/sim-two")
SPACE = SearchSpace({BATCH: Choice((1, 2)), RATE: LogUniform(1e-4, 1e-1), BANDWIDTH: LogUniform(1, 10)}, 9, 4, 1)


def asked(best=3, seeds=3, **more):
    return Search("copy/sim-two", RUN, replace(SPACE, **more), confirm=best, confirm_seeds=seeds)


def trial(index, loss, status="finished", **values):
    drawn = {BATCH: 1, RATE: 10.0**-index / 20, BANDWIDTH: 2.0} | values
    known = {path: 3.5 if value == "median*1.0" else value for path, value in drawn.items()}
    run = replace(with_values(RUN, known), seed=index)
    curve = [] if loss is None else [{"t": 4 if status == "finished" else 1, "seconds": 1.0, "loss": loss}]
    return Trial(index, drawn, run, status, "it was so", curve)


def reporting(figures):
    """Stands in for a backend: configuration k comes to figures[k][s] with its s-th seed, None: it diverges."""

    def train(second, directory, begun):
        trials = draw_trials(second.base, second.space, second.seed)
        for t in trials:
            figure = figures[t.index % len(figures)][t.index // len(figures)]
            t.end("diverged" if figure is None else "finished", "it was so")
            t.curve = [{"t": 1, "seconds": 1.0, "loss": 1.0 if figure is None else figure}]
        return trials

    return train


def training(search, directory, begun, listen=lambda event: None):
    local = LocalSearch(search, directory, Session(CPU, listen=listen))
    if begun:
        local.load()
    return local.run()


# ---------------------------------------------------------------- who is chosen


def test_the_mean_over_fresh_seeds_decides_and_not_the_luckiest(tmp_path):
    trials = [trial(0, 0.1), trial(1, 0.5), trial(2, 0.6), trial(3, 0.7)]
    figures = [[2.0, 2.0, 2.0], [1.0, 1.5, 0.5], [0.05, 3.0, 3.0]]  # luck in the search; steady; luck here
    rows = confirmed(asked(), SearchDirectory(tmp_path), trials, reporting(figures))
    assert [row["trial"] for row in rows] == [1, 0, 2]
    assert (rows[0]["mean"], rows[0]["std"], rows[0]["in_search"]) == (1.0, 0.5, 0.5)
    assert (rows[0]["figures"], rows[0]["in_search_epochs"]) == (figures[1], 4)
    up = confirmed(asked(mode="max"), SearchDirectory(tmp_path), trials[:3], reporting(figures[::-1]))
    assert [row["trial"] for row in up] == [2, 0, 1]  # 0.6 comes first now, and 2.02 > 2 > 1


def test_one_that_loses_a_seed_comes_after_those_that_lose_none(tmp_path):
    trials = [trial(0, 0.1), trial(1, 0.5), trial(2, 0.6)]
    figures = [[0.01, 0.01, None], [1.0, 1.0, 1.0], [None, None, None]]
    rows = confirmed(asked(), SearchDirectory(tmp_path), trials, reporting(figures))
    assert [row["trial"] for row in rows] == [1, 0, 2]
    assert [row["mean"] for row in rows] == [1.0, pytest.approx(0.01), None]
    json.dumps(rows, allow_nan=False)
    with pytest.raises(KoopsimError, match=r"None of the 9 trials gave a figure.*it was so"):
        confirmed(asked(), SearchDirectory(tmp_path), trials, reporting([[None] * 3] * 3))


def test_contenders_came_to_their_last_epoch_and_differ():
    same: dict[str, Any] = {RATE: 0.02}
    trials = [
        trial(0, 0.1, "pruned"),
        trial(1, 0.5, **same),
        trial(2, 0.4, **same),  # the same configuration, and better
        trial(3, 0.7),
        trial(4, None, "diverged"),
        trial(5, 0.01, "failed"),
        trial(6, 0.2, "pruned"),
    ]
    assert [t.index for t in contenders(asked(2), trials)] == [2, 3]
    assert [t.index for t in contenders(asked(3), trials)] == [2, 3, 0]  # too few of them: the best of the others
    assert [t.index for t in contenders(asked(99), trials)] == [2, 3, 0, 6]
    with pytest.raises(KoopsimError, match="gave a figure"):
        contenders(asked(2), trials[4:6])


@given(best=st.integers(1, 5), seeds=st.integers(1, 4), base=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_only_the_seed_differs_and_none_repeats(best, seeds, base):
    trials = [trial(i, 0.1 * i, **{BANDWIDTH: "median*1.0", BATCH: 1 + i % 2}) for i in range(6)]
    trials = [replace(t, run=replace(t.run, seed=base + t.index)) for t in trials]
    search = replace(asked(best, seeds), base=replace(RUN, seed=base))
    chosen = contenders(search, trials)
    second = confirming(search, chosen)
    again = draw_trials(second.base, second.space, second.seed)
    assert len(again) == best * seeds
    for t in again:
        assert replace(t.run, seed=0) == replace(chosen[t.index % best].run, seed=0)
        assert value_of(t, BANDWIDTH) == 3.5  # the median as the number it came to
    own = [t.run.seed for t in again]
    others = {final_run(t.run, number).seed for t in trials for number in range(50)}
    assert len(set(own)) == len(own)
    assert not others & set(own)


def test_without_confirm_nothing_is_trained(tmp_path):
    assert confirmed(asked(0), SearchDirectory(tmp_path), [trial(0, 1.0)], reporting([])) == []
    assert list(tmp_path.iterdir()) == []


def test_the_chosen_one_is_trained_again(tmp_path):
    search = replace(tiny_search(trials=3), confirm=2, confirm_seeds=1)
    directory = SearchDirectory.create(tmp_path / "s", search)
    trials = training(search, directory, False)
    first, other = contenders(search, trials)
    rows = confirmed(search, directory, trials, reporting([[2.0], [1.0]]))
    result = conclude(search, directory, Ended(trials, 1.0, rows), Session(CPU))
    assert result["best"]["trial"] == other.index != first.index
    best = json.loads((directory.best_folder(0) / "result.json").read_text())
    assert best["run"]["recipe"]["learning_rate"] == other.run.recipe.learning_rate
    assert [row["trial"] for row in result["confirmed"]] == [other.index, first.index]


# ---------------------------------------------------------------- real training


def searched(folder, engine):
    """A finished search whose trials differ in length too."""
    search = replace(tiny_search(trials=6, engine=engine), confirm=3, confirm_seeds=2)
    space = replace(search.space, parameters=search.space.parameters | {"recipe.epochs": Choice((2, 3))}, max_t=3)
    search = replace(search, space=space)
    directory = SearchDirectory.create(folder, search)
    return search, directory, training(search, directory, False)


@pytest.mark.parametrize("engine", ["stacked", "separate"])
def test_nobody_is_stopped_and_the_figures_are_those_trained_alone(tmp_path, engine):
    search, directory, trials = searched(tmp_path / "s", engine)
    rows = confirmed(search, directory, trials, training)
    table = read_trials(directory.confirm_folder / "trials.csv")
    assert len(table) == 6
    assert all(row["status"] == "finished" and row["t"] == row["recipe.epochs"] for row in table)
    task, chosen = build_task(RUN.task, CPU), rows[0]
    run = trials[chosen["trial"]].run
    for seed, figure in zip(chosen["seeds"], chosen["figures"], strict=True):
        _, lines = trained_alone(replace(run, seed=seed), task, run.recipe.epochs)
        assert figure == pytest.approx(lines[-1]["loss"], rel=1e-6)
    assert len(set(chosen["figures"])) == 2


@pytest.mark.parametrize("engine", ["stacked", "separate"])
def test_stopped_within_it_comes_to_the_same_rows(tmp_path, engine):
    whole = confirmed(*searched(tmp_path / "whole", engine), training)
    search, directory, trials = searched(tmp_path / "stopped", engine)

    def press(event):
        if event["trial"].index == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        confirmed(search, directory, trials, lambda *second: training(*second, listen=press))
    assert not (directory.confirm_folder / "result.json").exists()
    begun = []

    def going_on(search, directory, was_begun):
        begun.append(was_begun)
        return training(search, directory, was_begun)

    assert confirmed(search, directory, training(search, directory, True), going_on) == whole
    steps = []
    nothing_left = confirmed(search, directory, trials, lambda *second: training(*second, listen=steps.append))
    assert (nothing_left, begun, steps) == (whole, [True], [])
    confirmed(replace(search, confirm=2), directory, trials, going_on)
    assert begun == [True, False]  # another question is another search


# ---------------------------------------------------------------- on paper

values = st.lists(st.integers(0, 50) | st.floats(1e-6, 1e6) | st.sampled_from(["step", "a b, (c)", None, True]))


@given(values=values.filter(len), index=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_listed_values_are_taken_in_turn_and_written_down(values, index):
    listed = Listed(tuple(values))
    assert SearchSpace({"x": listed}, 1, 1, 1).sample(7, index) == {"x": values[index % len(values)]}
    assert parse_parameter("x", json.loads(json.dumps(parameter_text(listed)))) == listed != Choice(tuple(values))


def test_listed_values_can_be_asked_for_like_any_others():
    space = space_from_arguments(SPACE, RUN, ("learning_rate=listed 1e-3, 2e-3", "schedule=listed step constant"))
    assert [space.sample(0, i)[RATE] for i in range(3)] == [1e-3, 2e-3, 1e-3]
    for given_, says in [
        ({"listed": 3}, "listed with a list"),
        ({"x": [1]}, "listed with a list"),
        ("listed", "no val"),
    ]:
        with pytest.raises(KoopsimError, match=says):
            parse_parameter("x", given_)
    with pytest.raises(KoopsimError, match="batch_size is 0"):
        overridden(SPACE, RUN, {"parameters": {"batch_size": {"listed": [1, 0]}}}, "here")


def test_a_search_keeps_what_is_to_be_confirmed_and_an_old_file_reads(tmp_path):
    search = asked(4, 5)
    second = confirming(search, [trial(0, 0.1), trial(1, 0.2)])
    for one in (search, second):
        assert search_from_dict(json.loads(json.dumps(search_to_dict(one))), tmp_path) == one
    old = {key: value for key, value in search_to_dict(search).items() if not key.startswith("confirm")}
    assert search_from_dict(old, tmp_path) == replace(search, confirm=0, confirm_seeds=3)


@pytest.mark.parametrize(("words", "says"), [("--confirm -1", "is -1"), ("--confirm 2 --confirm-seeds 0", "is 0")])
def test_a_bad_number_is_one_line_and_writes_nothing(words, says, tmp_path, capsys):
    assert main(["tune", "copy/sim-single", "--scale", "smoke", *words.split(), "--out", str(tmp_path / "s")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1, err
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------- the command

TINY = [
    *"--scale smoke --device cpu --trials 4 --recipe.epochs 2 --task.horizon 3 --model.lift.levels 2".split(),
    *"--task.train 40 --task.valid 10 --task.test 10".split(),
]
CONFIRM = "--confirm 2 --confirm-seeds 2".split()


def test_the_command_confirms_goes_on_and_starts_again(tmp_path, capsys):
    path = tmp_path / "s"
    assert main(["tune", "copy/sim-two", *TINY, *CONFIRM, "--out", str(path)]) == 0
    said = capsys.readouterr()
    assert "confirmed with 2 other seeds each, validation loss:" in said.out
    assert "copy/sim-two, confirmed  4/4 trials" in said.err
    result = json.loads((path / "result.json").read_text())
    best, rows = result["best"], result["confirmed"]
    assert len(rows) == 2
    assert (best["trial"], best["values"]) == (rows[0]["trial"], rows[0]["values"])
    assert rows[0]["mean"] == pytest.approx(sum(rows[0]["figures"]) / 2)
    assert rows[0]["mean"] <= rows[1]["mean"]
    assert json.loads((path / "best" / "config.json").read_text())["run"]["recipe"] == best["run"]["recipe"]
    assert len(read_trials(path / "trials.csv")) == 4  # the search's own table is as it was
    found = find([path])
    assert (len(found.searches), len(found.runs), found.skipped) == (1, 1, [])  # the report shows one search

    (path / "result.json").unlink()  # as if killed in its last moment; asked for by the folder the error may name
    assert confirmed_search(path / "confirm") == path
    assert main(["tune", "--resume", str(path / "confirm"), "--device", "cpu"]) == 0
    again = json.loads((path / "result.json").read_text())
    assert (again["best"], again["confirmed"], again["test"]) == (best, rows, result["test"])

    assert main(["tune", "copy/sim-two", *TINY, "--out", str(path), "--overwrite", "--retrain", "0"]) == 0
    assert "confirmed" not in json.loads((path / "result.json").read_text())
    assert not (path / "confirm" / "search.json").exists()


def test_each_picture_is_confirmed_by_itself(tmp_path):
    words = "--per-picture --scale smoke --device cpu --trials 3 --recipe.epochs 1 --task.size 16 --retrain 0".split()
    path = tmp_path / "each"
    assert main(["tune", "image/sim-rff", *words, *CONFIRM, "--out", str(path)]) == 0
    settings = json.loads((path / "result.json").read_text())["settings"]
    for name in ("china", "flower"):
        own = json.loads((path / name / "result.json").read_text())
        assert settings[name] == own["confirmed"][0]["values"]
        assert own["confirmed"][0]["mean"] >= own["confirmed"][1]["mean"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'koopsim[tune]'")
def test_on_ray_it_finds_what_it_finds_here(tmp_path, capsys):
    found = []
    for backend in ("local", "ray"):
        path = tmp_path / backend
        words = ["--backend", backend, "--retrain", "0", "--max-t", "2", "--grace", "2", "--json"]
        assert main(["tune", "copy/sim-two", *TINY, *CONFIRM, *words, "--out", str(path)]) == 0
        found.append(json.loads(capsys.readouterr().out)["confirmed"])
    here, there = found
    assert [row["trial"] for row in here] == [row["trial"] for row in there]
    for a, b in zip(here, there, strict=True):
        assert a["seeds"] == b["seeds"]
        assert a["figures"] == pytest.approx(b["figures"], rel=1e-3)
