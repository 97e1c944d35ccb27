"""Nothing that lies in a folder of runs can stop a report; what cannot be shown is named with its reason."""

import copy
import html
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import made, made_search

from koopsim.errors import KoopsimError
from koopsim.report import find
from koopsim.report.build import compose
from koopsim.report.checks import problem

WHOLE = [made(), made("cifar10/mondeq-single"), made("image/sim-rff")]


def write(folder, name, value):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def broken(**changes):
    result = copy.deepcopy(made())
    for path, value in changes.items():
        *way, last = path.split("__")
        place: Any = result
        for key in way:
            place = place[int(key) if isinstance(place, list) else key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return result


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("{", "Expecting"),
        ("[1]", "a list, expected an object"),
        ("[" * 100_000, "nested more than"),
        ('{"name": "\\ud800"}', "half a character"),
        ({"name": "copy/deq"}, "no parameters"),
        ({"name": "photo", "network_bytes": 3}, "the fit of one picture"),
        (broken(name=3), "name is 3"),
        (broken(run__task__kind="ChessConfig"), "'ChessConfig'; expected one of Copy"),
        (broken(run__task__horizon="far"), "horizon of its task is 'far'"),
        (broken(run__task=None), "lacks a task"),
        (broken(run__recipe__epochs=0), "0 epochs"),
        (broken(run__model__fourier=True), "fourier of its model is True"),
        (broken(run__model__forward={"method": 3}), "solved by 3"),
        (broken(test__loss=math.nan), "test loss is None"),
        (broken(test__digits_right=None), "digits_right is None"),
        (broken(test="good"), "its test is 'good'"),
        (broken(metrics__1__train_loss=math.inf), "train_loss is None in line 2"),
        (broken(metrics__0__seconds="soon"), "seconds is 'soon' in line 1"),
        (broken(train_seconds=10**400), "an integer has 401 digits"),
    ],
)
def test_what_cannot_be_shown_is_named_with_its_reason(tmp_path, result, reason):
    write(tmp_path, "good/result.json", made())
    write(tmp_path, "bad/result.json", result)
    found = find([tmp_path])
    assert len(found.runs) == 1
    assert len(found.skipped) == 1
    assert str(tmp_path / "bad" / "result.json") in found.skipped[0]
    assert reason in found.skipped[0]
    assert "\n" not in found.skipped[0]
    assert found.skipped[0] in html.unescape(compose(found).page())


def test_whole_results_have_no_problem():
    assert [problem(result) for result in WHOLE] == [None] * 3


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([10**400, -(10**30), 1e308, 5e-324]),
    st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just({"kind": "Run"}), st.just([[1]]),
)  # fmt: skip


def places(value, way=()):
    """Every place inside a JSON value."""
    yield way
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*way, key))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_broken_run_stops_a_report(tmp_path, data):
    """One entry of a run is missing or nonsense. It is shown or skipped; the page and all tables are made."""
    result = copy.deepcopy(data.draw(st.sampled_from(WHOLE)))
    way = data.draw(st.sampled_from([w for w in places(result) if w]))
    place = result
    for key in way[:-1]:
        place = place[key]
    if data.draw(st.booleans()):
        del place[way[-1]]
    else:
        place[way[-1]] = data.draw(ODD)
    write(tmp_path, "one.json", result)
    write(tmp_path, "two.json", made(seed=1))
    found = find([tmp_path])
    assert len(found.runs) + len(found.skipped) == 2
    content = compose(found)
    assert "Every run" in content.page()
    for table in content.tables.values():
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
        assert all([table.markdown(), table.csv(), table.latex()])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_broken_search_stops_a_report(tmp_path, data):
    search = copy.deepcopy(made_search(0.1, 0.2))
    way = data.draw(st.sampled_from([w for w in places(search) if w]))
    place = search
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = data.draw(ODD)
    write(tmp_path, "search.of.json", search)
    write(tmp_path, "two.json", made(seed=1))
    found = find([tmp_path])
    assert len(found.searches) + len(found.skipped) + len(found.measurements) == 1
    assert "Every run" in compose(found).page()


def test_unfinished_runs_and_searches_say_how_to_go_on(tmp_path):
    write(tmp_path, "going/config.json", "{}")
    write(tmp_path, "looking/search.json", "{}")
    found = find([tmp_path])
    assert f"koopsim train --resume {tmp_path / 'going'}" in "".join(found.skipped)
    assert f"koopsim tune --resume {tmp_path / 'looking'}" in "".join(found.skipped)
    assert len(found.skipped) == 2


def test_a_folder_named_twice_counts_once(tmp_path):
    write(tmp_path, "a/result.json", made())
    write(tmp_path, "b/config.json", "{}")
    found = find([tmp_path, tmp_path / "a", tmp_path / "a" / "result.json"])
    assert (len(found.runs), len(found.skipped)) == (1, 1)


def test_what_ray_keeps_for_itself_is_not_read(tmp_path):
    write(tmp_path, "search/search.json", "{}")
    write(tmp_path, "search/ray/trial/result.json", "{}\n{}")
    write(tmp_path, "search/best/result.json", made())
    found = find([tmp_path])
    assert len(found.runs) == 1
    assert len(found.skipped) == 1


def test_benchmarks_are_measurements(tmp_path):
    rows = [{"model": "x", "ms": 1.5}, {"model": "<b>", "peak": None}]
    write(tmp_path, "steps.json", {"rows": rows, "environment": {"command": "bench"}})
    write(tmp_path, "a.json", made())
    found = find([tmp_path])
    assert found.skipped == []
    page = compose(found).page()
    assert "<summary>steps</summary>" in page
    assert "&lt;b&gt;" in page


def compared(ours="SIM", seconds=0.002):
    sides = {"ours": {"name": ours, "seconds": seconds}, "other": {"name": "monDEQ", "seconds": 0.01}}
    return {"comparisons": [{"row": "train", "work": "train step", "ratio": 5.0, **sides}], "environment": {}}


def test_what_bench_wrote_is_shown_and_broken_ones_are_named(tmp_path):
    write(tmp_path, "bench.json", compared("SIM <b>"))
    write(tmp_path, "cut.json", {"comparisons": [{"ours": {"name": "SIM"}}], "environment": {}})
    write(tmp_path, "slow.json", compared(seconds="long"))
    found = find([tmp_path])
    assert [m.name for m in found.measurements] == ["bench"]
    row = found.measurements[0].rows[0]
    assert (row["ms"], row["other's ms"], row["times"]) == (2.0, 10.0, 5.0)
    assert sorted(line.split(":")[0].rsplit("/", 1)[1] for line in found.skipped) == ["cut.json", "slow.json"]
    assert "SIM &lt;b&gt;" in compose(found).page()


def test_a_measurement_that_also_has_trials_is_no_search(tmp_path):
    """Its rows are shown; a whole configuration among their values is for the file."""
    rows = [{"seed": 0, "seconds": 1.5, "run": {"kind": "Run"}}]
    write(tmp_path, "race.json", {"rows": rows, "trials": [{"accuracy": 0.8}], "environment": {}})
    found = find([tmp_path])
    assert (len(found.measurements), found.searches, found.skipped) == (1, [], [])
    page = compose(found).page()
    assert "<th>seconds</th>" in page
    assert ">run</th>" not in page


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(KoopsimError, match="no file or folder"):
        find([tmp_path / "nowhere"])
