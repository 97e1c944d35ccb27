"""How a search is carried out, and what `koopsim.search` asks for: nothing is trained here."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_search import CPU, FOUND, tiny_search

import koopsim
from koopsim.errors import KoopsimError
from koopsim.searching import carrying_out
from koopsim.searching.carrying_out import How, resume_search, start_search
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.outcome import Ended
from koopsim.searching.space import base_of, space_of
from koopsim.spaces import Choice
from koopsim.training import Session, unheard

SMALL = tiny_search(trials=2)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What would have been begun or gone on with."""
    found = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(carrying_out, "start_search", lambda search, out, how: found.append((search, out, how)))
    monkeypatch.setattr(carrying_out, "resume_search", lambda out, how: found.append((None, out, how)))
    return found


def test_the_papers_search_unless_something_else_is_said(asked):
    koopsim.search("copy/sim-two", device="cpu")
    search, out, how = asked[0]
    base = base_of(search.base)
    assert search == Search("copy/sim-two", base, space_of(base, "paper"), base.seed)
    assert (out, search.retrain) == (Path("searches") / "copy/sim-two", 1)
    assert (how.session.device, how.retrain, how.per_picture) == (CPU, None, False)
    koopsim.search("copy/sim-two", "here", scale="smoke", trials=5, confirm=2, space=["batch_size=3,4"], device="cpu",
                   progress=False)  # fmt: skip
    search, out, how = asked[1]
    assert (out, search.space.trials, search.confirm) == (Path("here"), 5, 2)
    assert search.space.parameters["recipe.batch_size"] == Choice((3, 4))
    assert search.space.max_t == space_of(search.base, "smoke").max_t
    with how.shown("a title", None) as listen:
        assert listen is unheard
    own = replace(space_of(search.base, "smoke"), trials=9)
    koopsim.search("copy/sim-two", "there", scale="smoke", space=own, device="cpu")
    assert asked[2][0].space == own


@pytest.mark.parametrize("space", ["batch_size=1", 5, {"batch_size": 1}])
def test_spaces_that_are_none(asked, space):
    with pytest.raises(KoopsimError, match="expected a SearchSpace, or a list"):
        koopsim.search("copy/sim-two", space=space)
    assert asked == []


def test_what_was_begun_goes_on_and_another_is_refused(asked):
    koopsim.search("copy/sim-two", "s", scale="smoke", device="cpu")
    SearchDirectory.create("s", asked[0][0])
    koopsim.search("copy/sim-two", "s", scale="smoke", device="cpu")
    assert [search is None for search, *_ in asked] == [False, True]
    for other in ({"trials": 3}, {"confirm": 1}, {"space": ["batch_size=1"]}):
        with pytest.raises(KoopsimError, match="s holds another search; give another folder"):
            koopsim.search("copy/sim-two", "s", scale="smoke", device="cpu", **other)


def test_a_trial_on_a_processor_has_one_thread_unless_the_user_said(monkeypatch):
    threads = []
    monkeypatch.setattr(carrying_out.torch, "set_num_threads", threads.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    carrying_out._prepare(SMALL, CPU)
    assert threads == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    carrying_out._prepare(SMALL, torch.device("meta"))
    assert threads == []
    carrying_out._prepare(SMALL, CPU)
    assert threads == [1]
    monkeypatch.setattr(carrying_out, "find_spec", lambda name: None)
    carrying_out._prepare(SMALL, CPU)
    with pytest.raises(KoopsimError, match="needs Ray Tune: pip install"):
        carrying_out._prepare(replace(SMALL, backend="ray"), CPU)


@pytest.fixture
def backend(monkeypatch):
    """A backend whose trials are there at once; what was done with it."""
    done = []

    class Done:
        elapsed = 3.5

        def __init__(self, search, directory, session, task):
            self.search, self.session = search, session
            done.append(("made", search.name, task))

        def load(self):
            done.append("loaded")

        def run(self):
            return [self.search.name]

    def conclude(search, directory, ended, session, task, seeds):
        done.append((ended, session.listen, task, seeds))
        return {"name": search.name}

    def confirmed(search, directory, trials, train):
        second = replace(search, name=f"{search.name} again")
        return [train(second, directory, True)] if search.confirm else []

    best = SimpleNamespace(run=SimpleNamespace(recipe=SimpleNamespace(epochs=7)))
    monkeypatch.setattr(carrying_out, "LocalSearch", Done)
    monkeypatch.setattr(carrying_out, "conclude", conclude)
    monkeypatch.setattr(carrying_out, "confirmed", confirmed)
    monkeypatch.setattr(carrying_out, "chosen", lambda search, trials, rows: best)
    monkeypatch.setattr(carrying_out, "build_task", lambda task, device: SimpleNamespace(many=False, names=["a"]))
    return done


def shown(titles):
    return lambda title, epochs: (titles.append((title, epochs)), nullcontext(title))[1]


def test_a_search_is_shown_concluded_and_given(backend, tmp_path):
    titles = []
    how = How(Session(CPU), retrain=3, shown=shown(titles))
    assert start_search(SMALL, tmp_path / "s", how) == {"name": SMALL.name}
    made, (ended, listen, task, seeds) = backend
    assert made[:2] == ("made", SMALL.name)
    assert (ended, seeds, task) == (Ended([SMALL.name], 3.5, []), 3, made[2])
    assert titles == [(SMALL.name, None), (f"{SMALL.name}, best trial", 7)]
    assert listen == f"{SMALL.name}, best trial"


def test_gone_on_with_it_is_loaded_first_and_what_is_confirmed_is_another_search(backend, tmp_path):
    own = replace(SMALL, confirm=1)
    directory = SearchDirectory.create(tmp_path / "s", own)
    assert resume_search(tmp_path / "s", How(Session(CPU))) == {"name": own.name}
    assert [d if d == "loaded" else d[1] for d in backend[:4]] == [own.name, "loaded", f"{own.name} again", "loaded"]
    assert backend[4][0].confirmed == [[f"{own.name} again"]]
    result = FOUND | {"name": "as it was written"}
    directory.result_file.write_text(json.dumps(result))
    assert resume_search(tmp_path / "s", How(Session(CPU))) == result
    assert len(backend) == 5  # nothing was done


def test_a_picture_alone_is_named(backend, tmp_path):
    titles = []
    search = tiny_search("image/sim-rff", trials=1)
    own = replace(search, base=replace(search.base, task=replace(search.base.task, only="cat")))
    start_search(own, tmp_path / "s", How(Session(CPU), shown=shown(titles)))
    assert titles == [("image/sim-rff, cat", None), ("image/sim-rff, cat, best trial", 7)]


def test_pictures_by_themselves_need_a_task_of_many(backend, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(carrying_out, "_every_picture", lambda each, how: begun.append(each.read()[1]) or {"all": 1})
    monkeypatch.setattr(carrying_out, "build_task", lambda task, device: SimpleNamespace(many=True, names=("a", "b")))
    search = tiny_search("image/sim-rff", trials=1)
    assert start_search(search, tmp_path / "s", How(Session(CPU), per_picture=True)) == {"all": 1}
    assert begun == [["a", "b"]]
    assert resume_search(tmp_path / "s", How(Session(CPU))) == {"all": 1}
    with pytest.raises(KoopsimError, match="already holds a search"):
        start_search(search, tmp_path / "s", How(Session(CPU), per_picture=True))
    assert start_search(search, tmp_path / "s", How(Session(CPU), per_picture=True, overwrite=True)) == {"all": 1}


def test_how_often_the_best_is_trained_again_stays_with_the_search(backend, tmp_path):
    own = replace(SMALL, retrain=0)
    assert Search(SMALL.name, SMALL.base, SMALL.space).retrain == 1
    SearchDirectory.create(tmp_path / "s", own)
    resume_search(tmp_path / "s", How(Session(CPU)))
    assert backend[-1][3] == 0
    file = SearchDirectory(tmp_path / "s").search_file
    before = {key: value for key, value in json.loads(file.read_text()).items() if key != "retrain"}
    file.write_text(json.dumps(before))  # of a version that did not keep it
    resume_search(tmp_path / "s", How(Session(CPU)))
    assert backend[-1][3] == 1
    resume_search(tmp_path / "s", How(Session(CPU), retrain=2))
    assert backend[-1][3] == 2
    with pytest.raises(KoopsimError, match=r"retrain is -1; it lies between 0 and 10,000\."):
        replace(SMALL, retrain=-1)
