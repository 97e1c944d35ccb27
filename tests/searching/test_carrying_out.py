"""A search from its beginning to its result in this process: begun, gone on with, read, refused; and its reports."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest
from small_search import CPU, tiny_search

import koopsim
from koopsim.config import SEEDS
from koopsim.errors import KoopsimError
from koopsim.searching import carrying_out, outcome
from koopsim.searching.carrying_out import How, resume_search, start_search
from koopsim.searching.directory import SEARCH_FILES, SearchDirectory, _is_best, _search_before_markers, search_to_dict
from koopsim.searching.reports import ReportedSearch
from koopsim.searching.results import best_trial
from koopsim.spaces import MOST_TRIALS
from koopsim.tasks import build_task
from koopsim.training import Session

SMALL = tiny_search(trials=2, batches=(10,))
HOW = How(Session(CPU))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "search"
    return folder, start_search(SMALL, folder, HOW)


def test_a_finished_search_is_read_and_its_best_run_is_not_trained_again(done, monkeypatch):
    folder, result = done
    assert result["trials"] == 2
    assert resume_search(folder, HOW) == json.loads((folder / "result.json").read_text())
    monkeypatch.setattr(outcome, "train_run", lambda *a, **k: pytest.fail("it was trained before"))
    (folder / "result.json").unlink()
    again = resume_search(folder, HOW)
    assert again["test"] == result["test"]
    assert again["best"]["values"] == result["best"]["values"]


def test_where_a_search_is_or_none_is(done, tmp_path):
    folder, _ = done
    with pytest.raises(KoopsimError, match="already holds a search: go on with"):
        start_search(SMALL, folder, HOW)
    with pytest.raises(KoopsimError, match=r"There is no folder .*nowhere\."):
        resume_search(tmp_path / "nowhere", HOW)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KoopsimError, match="holds no search"):
        resume_search(tmp_path / "empty", HOW)
    with pytest.raises(KoopsimError, match="expected a SearchSpace, or a list"):
        koopsim.search("copy/sim-two", space="batch_size=1", out=tmp_path / "x", scale="smoke")
    with pytest.raises(KoopsimError, match="holds another search"):
        koopsim.search("copy/sim-two", out=folder, scale="smoke")


def test_overwritten_it_begins_again(tmp_path):
    directory = SearchDirectory.create(tmp_path / "s", SMALL)
    with pytest.raises(KoopsimError, match="already holds a search"):
        SearchDirectory.create(tmp_path / "s", SMALL)
    directory.reports_file.write_text("{}\n")
    other = replace(SMALL, seed=7)
    assert SearchDirectory.create(tmp_path / "s", other, overwrite=True).read() == other
    assert not directory.reports_file.exists()
    assert SearchDirectory.create(tmp_path / "s", SMALL, again=True).read() == SMALL


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'koopsim[tune]'")
def test_stacks_on_ray_unless_it_was_begun_otherwise(tmp_path):
    task = build_task(SMALL.base.task, CPU)

    def made(search, directory):
        return type(carrying_out._backend(search, directory, False, HOW, HOW.session, task)).__name__

    stacks, trials = (replace(SMALL, backend="ray", engine=engine) for engine in ("auto", "separate"))
    directory = SearchDirectory.create(tmp_path / "a", stacks)
    assert made(stacks, directory) == "HybridSearch"
    (directory.ray_folder / carrying_out.TUNE_FOLDER).mkdir(parents=True)
    assert made(stacks, directory) == "RaySearch"
    assert made(trials, SearchDirectory.create(tmp_path / "b", trials)) == "RaySearch"
    assert made(SMALL, SearchDirectory.create(tmp_path / "c", SMALL)) == "LocalSearch"


def test_which_folders_are_of_the_best_and_which_are_searches_of_before(tmp_path):
    assert [n for n in ("best", "best-2", "best-10", "best-", "best-x", "bests", "the best") if _is_best(n)] == [
        "best", "best-2", "best-10",
    ]  # fmt: skip
    file = tmp_path / "search.json"
    for said, ours in ((search_to_dict(SMALL), SEARCH_FILES), ({"run": {}}, ()), ([], ()), ({"space": 1}, ())):
        file.write_text(json.dumps(said))
        assert _search_before_markers(tmp_path) == ours
    file.unlink()
    assert _search_before_markers(tmp_path) == ()
    (tmp_path / "pictures.json").write_text(json.dumps({"search": search_to_dict(SMALL), "pictures": []}))
    assert _search_before_markers(tmp_path) == SEARCH_FILES


def test_reports_become_trials(tmp_path):
    directory = SearchDirectory.create(tmp_path / "s", SMALL)
    heard = []
    search = ReportedSearch(SMALL, directory, listen=heard.append)
    one, two = search.trials
    search.hear({"index": 0, "t": 1, "loss": 2.0, "bandwidth": 3.5})
    assert (one.status, one.t, two.t) == ("running", 1, 0)
    assert one.run.model.fourier.bandwidth == 3.5
    search.hear({"index": 0, "ended": "complete", "reason": ""})
    assert (one.status, one.reason) == ("pruned", "below the others at epoch 1")
    for t in range(1, 5):
        search.hear({"index": 1, "t": t, "loss": 1.0 / t})
    search.hear({"index": 1, "t": 4, "loss": 0.2})  # told again: the last word counts
    search.hear({"index": 1, "ended": "complete", "reason": ""})
    assert (two.status, two.reason) == ("finished", "all 4 epochs")
    assert [line["loss"] for line in two.curve] == [1.0, 0.5, 1 / 3, 0.2]
    assert "index" not in two.curve[0]
    assert len(heard) == 8
    with directory.reports_file.open("a") as file:
        file.write('{"index": 1, "t"')  # cut short
    again = ReportedSearch(SMALL, directory)
    assert [t.status for t in again.trials] == ["pruned", "finished"]
    assert again.trials[1].curve == two.curve
    assert again.over == [0, 1]
    assert again.elapsed >= two.curve[-1]["seconds"]
    again.hear({"index": 0, "t": 2, "loss": 0.0})  # over: not heard
    assert again.trials[0].t == 1
    assert directory.reports_file.read_text().endswith("}\n")


def test_why_nobody_is_best():
    trials = [replace_status(t, reason) for t, reason in zip(draw(), ("out of memory", "out of memory"), strict=True)]
    with pytest.raises(KoopsimError, match=r"None of the 2 trials .* Most often: out of memory\.$"):
        best_trial(trials, SMALL.space)
    with pytest.raises(KoopsimError, match=r"None of the 2 trials gave a figure: all diverged or failed\.$"):
        best_trial([replace_status(t, "") for t in draw()], SMALL.space)


def draw():
    from koopsim.searching.trial import draw_trials

    return draw_trials(SMALL.base, SMALL.space, SMALL.seed)


def replace_status(trial, reason):
    trial.end("failed", reason)
    return trial


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("confirm", (0, 10_000), (-1, 10_001)), ("confirm_seeds", (1, 10_000), (0, 10_001)),
        ("at_once", (1, MOST_TRIALS, None), (0, MOST_TRIALS + 1)), ("seed", (0, SEEDS - 1), (-1, SEEDS)),
    ],
)  # fmt: skip
def test_a_search_at_the_ends_of_what_it_may_be(field, good, bad):
    for value in good:
        assert getattr(replace(SMALL, **{field: value}), field) == value
    for value in bad:
        with pytest.raises(KoopsimError, match="confirm" if "confirm" in field else field):
            replace(SMALL, **{field: value})


def test_how_often_the_best_may_be_trained_again():
    assert [How(HOW.session, retrain=n).retrain for n in (0, 10_000)] == [0, 10_000]
    for n in (-1, 10_001):
        with pytest.raises(KoopsimError, match="it lies between 0 and 10,000"):
            How(HOW.session, retrain=n)
