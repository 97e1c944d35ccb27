"""A search by its reports: what each of them does to a trial."""

import json
from dataclasses import replace

import pytest
from small_search import tiny_search

from koopsim.searching import reports
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.reports import ReportedSearch
from koopsim.spaces import BANDWIDTH


def line(index, t, loss=1.0, **more):
    return {"seconds": 1.0, "index": index, "t": t, "loss": loss} | more


@pytest.fixture
def after(tmp_path):
    """A search of three trials of four epochs, after these reports."""

    def make(*said, **more):
        search = tiny_search(trials=3)
        search = replace(search, base=replace(search.base, recipe=replace(search.base.recipe, epochs=4)))
        directory = SearchDirectory.create(tmp_path / "s", search, again=True)
        directory.reports_file.write_text("".join(json.dumps(one) + "\n" for one in said))
        return ReportedSearch(search, directory, **more)

    return make


def end(index, ended, reason=""):
    return {"seconds": 2.0, "index": index, "ended": ended, "reason": reason}


def test_a_report_is_a_line_of_the_trials_curve(after):
    search = after(line(1, 1, 3.0, bandwidth=2.5), line(1, 2, 2.0), line(1, 3, 1.5), line(1, 2, 2.1))
    trial = search.trials[1]
    assert trial.curve == [{"seconds": 1.0, "t": 1, "loss": 3.0}, {"seconds": 1.0, "t": 2, "loss": 2.1}]  # from 2 again
    assert (trial.status, trial.run.model.fourier.bandwidth) == ("running", 2.5)
    assert search.trials[0].status == "waiting"
    assert trial.run.seed == search.search.base.seed + 1
    assert search.over == []


def test_the_end_of_a_trial_that_ray_calls_complete(after):
    whole = [line(0, t) for t in (1, 2, 3, 4)]
    search = after(*whole, end(0, "complete"), line(1, 1), line(1, 2), end(1, "complete"), end(2, "failed", "lost"))
    assert [(t.status, t.reason) for t in search.trials] == [
        ("finished", "all 4 epochs"), ("pruned", "below the others at epoch 2"), ("failed", "lost"),
    ]  # fmt: skip
    assert search.over == [0, 1, 2]


def test_the_first_end_stays(after):
    assert after(line(0, 1), end(0, "diverged", "nan"), end(0, "complete")).trials[0].reason == "nan"


def test_time_goes_on_from_the_last_report(after):
    assert after(line(0, 1) | {"seconds": 5000.0}).elapsed == pytest.approx(5000.0, abs=30)
    assert after().elapsed < 30


def test_what_is_heard_is_kept_first_and_then_told(after, monkeypatch):
    told = []
    search = after(end(2, "failed", "lost"), listen=told.append)
    search.hear({"index": 2, "t": 1, "loss": 1.0})  # over: Ray did not know
    assert told == []
    search.hear({"index": 0, "t": 1, "loss": 1.5})
    kept = [json.loads(text) for text in search.reports_file.read_text().splitlines()]
    assert [list(one) for one in kept] == [["seconds", "index", "ended", "reason"], ["seconds", "index", "t", "loss"]]
    assert (told[0]["trial"].index, told[0]["seconds"], told[0]["over"]) == (0, kept[1]["seconds"], False)
    full = OSError(28, "No space left on device")

    def no_room(*given):
        raise full

    monkeypatch.setattr(reports, "append_line", no_room)
    with pytest.raises(OSError, match="No space"):
        search.hear({"index": 1, "t": 1, "loss": 1.5})
    assert search.full is full
    assert (len(told), search.trials[1].t) == (1, 0)
    search.save()
    assert search.directory.trials_file.read_text().startswith("trial,status,reason,t,loss,")


def test_a_bandwidth_that_is_not_told_is_left_as_it_was(after):
    search = after(line(0, 1))
    assert search.trials[0].run.model.fourier.bandwidth == search.trials[0].values[BANDWIDTH]
