import json
import math

from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_search

from koopsim.cli import main
from koopsim.report.collect import find
from koopsim.report.search_views import search_charts, search_table
from koopsim.report.searches import SearchFound, TrialFound, running_best


def found_of(tmp_path, data, name="search.kept.json"):
    (tmp_path / name).write_text(json.dumps(data))
    (search,) = find([tmp_path]).searches
    return search


def test_a_kept_search_is_read(tmp_path):
    search = found_of(tmp_path, made_search(0.3, 0.1, math.nan, 0.2, rate=1e-3))
    assert (search.subject, search.metric, search.seconds) == ("copy/sim-single", "loss", 3.0)
    assert [t.figure for t in search.trials] == [0.3, 0.1, None, 0.2]
    best = search.best()
    assert best is not None
    assert best.learning_rate == 2e-3
    assert running_best(search) == [0.3, 0.1, 0.1, 0.1]
    assert "batch size 1" in best.settings
    table = search_table([search])
    assert table is not None
    assert table.rows[0][2:] == ["4", "loss", "1.00e-01", "0.002", "3 s", "1"]
    ((steps, rates),) = search_charts([search])
    assert [p[1] for p in steps.series[0].points] == [0.3, 0.1, 0.1, 0.1]
    assert len(rates.series[0].points) == len(rates.series[0].texts) == 3


def test_higher_accuracy_is_better_and_the_last_line_of_a_curve_counts(tmp_path):
    data = made_search(0.5, 0.7, 0.6, name="mnist/mondeq-multi", metric="accuracy")
    data["trials"][2] = {
        "run": data["trials"][2]["run"],
        "curve": [{"valid_accuracy": 0.99}, {"valid_accuracy": 0.6}],
        "error": None,
    }
    search = found_of(tmp_path, data)
    assert search.subject == "mnist/mondeq-multi"
    assert running_best(search) == [0.5, 0.7, 0.7]


def test_a_search_for_each_picture_is_read(tmp_path):
    members = [{"picture": "a", "learning_rate": 1e-3, "M": 32, "curve": [[100, 20.0], [200, 22.0]]}]
    search = found_of(tmp_path, {"name": "image/sim-rff", "set": "text16", "trials": 4, "members": members})
    assert search.subject == "image/sim-rff on text16"
    assert search.trials == (TrialFound(1e-3, 22.0, "picture a, M 32"),)


def test_searches_for_the_same_thing_share_their_charts(tmp_path):
    one = SearchFound("a", "copy/deq", "loss", (TrialFound(1e-3, 0.1, ""),), None)
    two = SearchFound("b", "copy/deq", "loss", (TrialFound(1e-3, 0.2, ""),), None)
    ((steps, _),) = search_charts([two, one])
    assert [s.name for s in steps.series] == ["a", "b"]
    assert steps.series[0].slot != steps.series[1].slot


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=8), st.sampled_from(["loss", "accuracy"]))
def test_the_best_so_far_never_gets_worse_and_ends_at_the_best(figures, metric):
    search = SearchFound("a", "b", metric, tuple(TrialFound(1.0, f, "") for f in figures), None)
    so_far, best = running_best(search), search.best()
    known = [f for f in so_far if f is not None]
    assert known == sorted(known, reverse=metric == "loss")
    assert (so_far[-1] if so_far else None) == (best.figure if best else None)


def test_a_search_of_koopsim_tune_is_shown(tmp_path, capsys):
    where = tmp_path / "tune"
    asked = ["tune", "digits/sim-single", "--scale", "smoke", "--trials", "2", "--out", str(where), "--json"]
    assert main(asked) == 0
    outcome = json.loads(capsys.readouterr().out)
    found = find([where])
    assert found.skipped == []
    (search,) = found.searches
    best = search.best()
    assert best is not None
    assert (len(search.trials), search.metric, search.subject) == (2, "accuracy", "digits/sim-single")
    assert best.figure == outcome["best"]["accuracy"]
    assert best.learning_rate == outcome["best"]["values"]["recipe.learning_rate"]
    assert len(found.runs) == 1  # the best trial, trained again
    assert search.doubts == tuple(outcome["doubts"])
    result = json.loads((where / "result.json").read_text())
    (where / "result.json").write_text(json.dumps(result | {"doubts": ["Look again."]}))
    table = search_table(find([where]).searches)
    assert table is not None
    assert "tune: Look again." in table.note
