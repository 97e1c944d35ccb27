"""A trial: how long it may be, what its figures come to, why it ended, where its bandwidth comes from."""

from dataclasses import replace

import pytest
from small_search import CPU, tiny_search

from koopsim.engine.slots import Diverged
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.runs import RunDirectory
from koopsim.searching import trial as module
from koopsim.searching.directory import SearchDirectory, search_from_dict, search_to_dict, take_folder
from koopsim.searching.space import is_median, trial_run
from koopsim.searching.trial import STATUSES, Trial, checked, draw_trials, length, settled, why
from koopsim.spaces import BANDWIDTH, Choice

SEARCH = tiny_search(trials=3)


def test_how_old_it_is_and_what_it_said_last():
    own = Trial(0, {}, SEARCH.base)
    assert (own.t, own.last("loss"), own.over) == (0, None, False)
    own.curve = [{"t": 1, "loss": 3.0}, {"t": 2, "loss": 2.0}]
    assert (own.t, own.last("loss"), own.last("psnr")) == (2, 2.0, None)
    going = [s for s in STATUSES if not replace(own, status=s).over]
    assert going == ["waiting", "running"]


def test_the_recipes_epochs_and_no_more_than_the_searchs():
    run = replace(SEARCH.base, recipe=replace(SEARCH.base.recipe, epochs=7))
    assert [length(run, t) for t in (6, 7, 8)] == [6, 7, 7]


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_figure_that_is_no_number_is_divergence(value):
    assert checked({"loss": -1e308}, "loss") == -1e308
    with pytest.raises(Diverged, match=f"loss is {value} on the validation split"):
        checked({"loss": value}, "loss")
    assert why(Diverged("so")) == ("diverged", "so")
    assert why(ValueError("x" * 400)) == ("failed", "ValueError: " + "x" * 300)


@pytest.mark.parametrize(("value", "factor"), [("median", 1.0), ("median*0.25", 0.25), (2.0, None)])
def test_a_bandwidth_from_the_data_has_a_factor(monkeypatch, value, factor):
    asked = []
    monkeypatch.setattr(module, "with_median_bandwidth", lambda run, task, factor, device: asked.append(factor))
    own = Trial(0, {BANDWIDTH: value}, SEARCH.base)
    found = settled(own, "task", CPU)
    assert asked == ([] if factor is None else [factor])
    assert found is (None if asked else SEARCH.base)
    assert is_median(value) is (factor is not None)
    assert trial_run(SEARCH.base, {BANDWIDTH: value}, 4).seed == SEARCH.base.seed + 4


def test_every_trial_is_drawn_though_its_values_cannot_go_together():
    space = replace(SEARCH.space, parameters={"model.rank": Choice((4, 4000))}, trials=12)
    drawn = draw_trials(SEARCH.base, space, 0)
    assert [t.index for t in drawn] == list(range(12))
    for own in drawn:
        bad = own.values["model.rank"] == 4000
        assert (own.status, own.run == SEARCH.base) == ("failed" if bad else "waiting", bad)
        assert bool(own.reason) is bad
    assert {t.status for t in drawn} == {"failed", "waiting"}


# ---------------------------------------------------------------- its search's folder


def test_a_search_written_down_is_the_search():
    own = replace(SEARCH, seed=3, backend="ray", at_once=2, engine="separate", confirm=2, confirm_seeds=5)
    data = search_to_dict(own)
    assert search_from_dict(data, "f") == own
    before = {k: v for k, v in data.items() if k not in ("confirm", "confirm_seeds")}
    assert search_from_dict(before, "f") == replace(own, confirm=0, confirm_seeds=3)
    for key in ("run", "space", "name", "seed", "backend", "at_once", "engine"):
        with pytest.raises(KoopsimError, match=f"f is not a search: '{key}' is missing"):
            search_from_dict({k: v for k, v in data.items() if k != key}, "f")


def test_where_the_best_are_trained_again(tmp_path):
    directory = SearchDirectory(tmp_path)
    assert [directory.best_folder(n).name for n in (0, 1, 9)] == ["best", "best-2", "best-10"]
    with pytest.raises(KoopsimError, match=r"holds no search: it has no search\.json"):
        directory.read()
    with pytest.raises(KoopsimError, match=r"There is no folder .*none"):
        SearchDirectory(tmp_path / "none").read()


def test_what_stops_a_new_search(tmp_path):
    """Somebody else's folder of a name that ours would have; a search that is there already."""
    folder = tmp_path / "s"
    directory = SearchDirectory.create(folder, SEARCH)
    folders.make_inside(folder, "ray")
    for again in ({"overwrite": True}, {"overwrite": False, "again": True}):
        directory.reports_file.write_text("{}")
        SearchDirectory.create(folder, SEARCH, **again)
        assert not directory.reports_file.exists()
        assert not (folder / "ray").exists()
    for name in ("search.json", "pictures.json"):
        other = tmp_path / name
        other.mkdir()
        (other / name).write_text("{}")
        with pytest.raises(KoopsimError, match="already holds a search: go on with"):
            take_folder(other, False)
    for name in ("confirm", "best", "best-2"):
        foreign = tmp_path / f"of-{name}"
        (foreign / name).mkdir(parents=True)
        (foreign / name / "mine.txt").write_text("mine")
        with pytest.raises(KoopsimError, match=f"{name} is not of a search of koopsim; move it away"):
            SearchDirectory.create(foreign, SEARCH, overwrite=True)
        assert (foreign / name / "mine.txt").read_text() == "mine"
    free = tmp_path / "free"
    (free / "bests").mkdir(parents=True)
    (free / "bests" / "mine.txt").write_text("mine")
    SearchDirectory.create(free, SEARCH, overwrite=True)
    assert (free / "bests" / "mine.txt").exists()


def test_the_best_of_an_older_search_is_let_go_of_and_stays_a_folder_of_ours(tmp_path):
    directory = SearchDirectory.create(tmp_path / "s", SEARCH)
    best = RunDirectory.create(directory.best_folder(0), SEARCH.base, SEARCH.name)
    confirm = SearchDirectory.create(directory.confirm_folder, SEARCH)
    for _ in range(2):  # the second time there is nothing to let go of
        SearchDirectory.create(tmp_path / "s", SEARCH, again=True)
        assert not best.config_file.exists()
        assert not confirm.search_file.exists()
        assert folders.is_ours(best.path)
        assert folders.is_ours(confirm.path)
