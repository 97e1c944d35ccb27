"""Searches in which nobody is pruned: what makes one, and that every backend and `--resume` know."""

import json
from dataclasses import replace

import pytest
from small_search import tiny_run, tiny_search

import koopsim
from koopsim.cli import main
from koopsim.errors import KoopsimError
from koopsim.searching import carrying_out
from koopsim.searching.asha import ASHA
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.pruning import unpruned, whole_list
from koopsim.searching.results import read_trials
from koopsim.spaces import Choice, Listed, LogUniform, SearchSpace

RATE, BATCH, EPOCHS = "recipe.learning_rate", "recipe.batch_size", "recipe.epochs"
RUN = tiny_run("copy/sim-two")
TWO, THREE = Listed((1e-3, 2e-3)), Listed((5, 10, 20))


def space(trials=3, **parameters):
    named = {"rate": RATE, "batch": BATCH, "epochs": EPOCHS}
    return SearchSpace({named[name]: p for name, p in parameters.items()}, trials, max_t=6, grace=3)


def test_every_trial_has_all_epochs_of_its_recipe():
    run = replace(RUN, recipe=replace(RUN.recipe, epochs=20))
    found = unpruned(space(rate=LogUniform(1e-3, 1e-2)), run, 0)
    assert found == replace(space(rate=LogUniform(1e-3, 1e-2)), max_t=20, grace=20)
    longest = unpruned(space(epochs=Listed((3, 40, 5))), run, 0)
    assert (longest.max_t, longest.grace) == (40, 40)
    asha = ASHA(40, 40, 2)
    assert all(asha.report(trial, t, 10.0**trial) for trial in range(9) for t in range(1, 40))
    for trial, t in ((0, 3), (1, 5)):  # shorter recipes
        asha.complete(trial, t, 1.0)
    assert asha.recorded == [{}]


@pytest.mark.parametrize(
    ("own", "said", "whole"),
    [
        (space(2, rate=TWO), {"trials"}, True),
        (space(3, rate=TWO, batch=THREE), {"trials", "parameters", "judge_over"}, True),
        (space(3, rate=TWO, batch=Choice((10,))), {"trials"}, True),  # a value that is fixed is not searched over
        (space(9, rate=TWO), {"trials"}, True),
        (space(2, rate=TWO, batch=THREE), {"trials"}, False),  # 20 is never tried
        (space(3, rate=TWO, batch=Choice((5, 10))), {"trials"}, False),
        (space(3, rate=LogUniform(1e-3, 1e-2), batch=THREE), {"trials"}, False),
        (space(3, batch=Choice((10,))), {"trials"}, False),  # nothing is listed
        (space(3), {"trials"}, False),
        (space(200, rate=TWO), set(), False),  # the paper's number of trials was not asked for
        *((space(2, rate=TWO), {"trials", word}, False) for word in ("max_t", "grace", "reduction")),
    ],
)
def test_when_a_list_given_by_hand_is_tried_to_its_end(own, said, whole):
    assert whole_list(own, said) is whole


# ---------------------------------------------------------------- from Python


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The searches that would have been begun."""
    found = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(carrying_out, "start_search", lambda search, out, how: found.append(search.space))
    return found


def test_what_koopsim_search_asks_for(asked):
    listed = ["learning_rate=listed 1e-3 2e-3", "batch_size=10", "bandwidth=listed 1 2"]

    def begun(**more):
        koopsim.search("copy/sim-two", device="cpu", **more)
        return asked[-1].trials, asked[-1].max_t, asked[-1].grace, asked[-1].judge_over

    whole = 20  # epochs of the recipe
    assert begun() == (100, 6, 3, 1)
    assert begun(judge_over=4) == (100, 6, 3, 4)
    assert begun(prune=False) == (100, whole, whole, 1)
    assert begun(space=listed, trials=2) == (2, whole, whole, 1)
    assert begun(space=listed, trials=2, prune=True) == (2, 6, 3, 1)
    assert begun(space=listed) == (100, 6, 3, 1)
    own = SearchSpace({RATE: TWO}, 2, max_t=6, grace=3, judge_over=5)  # it says when trials are stopped
    assert begun(space=own, trials=2) == (2, 6, 3, 5)
    assert begun(space=own, judge_over=1, prune=False) == (2, whole, whole, 1)
    with pytest.raises(KoopsimError, match="judge_over is 0"):
        koopsim.search("copy/sim-two", judge_over=0)


# ---------------------------------------------------------------- the command

TINY = [
    *"tune copy/sim-two --scale smoke --device cpu --recipe.epochs 7 --task.horizon 3 --model.lift.levels 2".split(),
    *"--task.train 40 --task.valid 10 --task.test 10 --retrain 0".split(),
]
LISTED = ["--search", "learning_rate=listed 1e-3 2e-3 4e-3", "batch_size=10", "bandwidth=5"]
SAID = (
    "koopsim: all that is searched over is listed, so every trial runs to its end; "
    "--max-t, --grace or --reduction bring pruning back.\n"
)


@pytest.fixture
def begun(monkeypatch, capsys, tmp_path):
    """(max_t, grace, what was said) of a search that would begin."""
    found = []

    def start(search, out, how):
        found.append(search)
        raise KoopsimError("enough")

    monkeypatch.setattr(carrying_out, "start_search", start)

    def make(*words):
        assert main([*TINY, *words, "--out", str(tmp_path / "s")]) == 2
        said = capsys.readouterr().err.replace("koopsim: enough\n", "")
        return found[-1].space.max_t, found[-1].space.grace, said

    return make


def test_a_list_given_by_hand_is_not_pruned_and_that_is_said(begun):
    usual = begun("--trials", "3")
    assert usual[1] < usual[0]
    assert usual[2] == ""
    assert begun("--trials", "3", *LISTED) == (7, 7, SAID)
    assert begun("--trials", "2", *LISTED) == usual  # not the whole list
    assert begun(*LISTED) == usual
    assert begun("--trials", "3", *LISTED[:-2]) == usual  # batch size and bandwidth are drawn
    assert begun("--trials", "3", *LISTED, "--max-t", "4") == (4, min(usual[1], 4), "")
    assert begun("--trials", "3", *LISTED, "--grace", "1") == (usual[0], 1, "")
    assert begun("--trials", "3", *LISTED, "--reduction", "3") == usual


def test_a_file_says_it_like_the_command_line(begun, tmp_path):
    file, usual = tmp_path / "space.toml", begun("--trials", "3")
    listed = "[parameters]\nlearning_rate = {listed = [1e-3, 2e-3]}\nbatch_size = 10\nbandwidth = 5\n"
    file.write_text(f"trials = 2\njudge_over = 2\n{listed}")
    assert begun("--space", str(file)) == (7, 7, SAID)
    file.write_text(f"trials = 2\nmax_t = {usual[0]}\n{listed}")  # as it would be anyway, but said
    assert begun("--space", str(file)) == usual
    assert begun("--space", str(file), "--no-prune")[2].endswith("has no part: max_t.\n")


def test_no_prune_says_what_has_no_part_then(begun):
    assert begun("--no-prune") == (7, 7, "")
    assert begun("--no-prune", "--trials", "3", *LISTED) == (7, 7, "")
    said = "koopsim: --no-prune: every trial runs to its end; what was given beside it has no part: "
    assert begun("--no-prune", "--max-t", "2", "--grace", "5") == (7, 7, f"{said}max_t, grace.\n")
    assert begun("--no-prune", "--reduction", "0.5") == (7, 7, f"{said}reduction.\n")


def test_every_trial_to_its_end_after_a_stop_too(tmp_path, capsys):
    path = tmp_path / "s"
    assert main([*TINY, *LISTED, "--trials", "3", "--at-once", "2", "--out", str(path)]) == 0
    said = capsys.readouterr()
    assert SAID in said.err
    assert "3 finished" in said.out
    rows = read_trials(path / "trials.csv")
    assert [(row["status"], row["t"], row[RATE]) for row in rows] == [
        ("finished", "7", rate) for rate in ("0.001", "0.002", "0.004")]  # fmt: skip
    for name in ("result.json", "state.safetensors", "trials.csv"):
        (path / name).unlink()  # killed before anything was saved
    for refused in ("--no-prune", "--judge-over=2"):
        assert main(["tune", "--resume", str(path), refused]) == 2
        assert "stay as the search was begun with" in capsys.readouterr().err
    assert main(["tune", "--resume", str(path), "--device", "cpu"]) == 0
    again = read_trials(path / "trials.csv")
    assert [(row["t"], row["loss"]) for row in again] == [(row["t"], row["loss"]) for row in rows]


def test_it_is_kept_as_when_trials_are_stopped(tmp_path):
    search = tiny_search(trials=3)
    own = replace(search, space=unpruned(search.space, search.base, search.seed))
    directory = SearchDirectory.create(tmp_path / "s", own)
    assert directory.read() == own
    kept = json.loads(directory.search_file.read_text())["space"]
    assert (kept["max_t"], kept["grace"]) == (search.base.recipe.epochs,) * 2
