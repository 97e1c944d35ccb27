"""A search's state is believed field by field."""

import json
from dataclasses import replace

import pytest
import torch
from small_search import tiny_search

from koopsim.errors import KoopsimError
from koopsim.files.tensors import tensors_bytes
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.reports import _problem, read_reports
from koopsim.searching.space import with_values
from koopsim.searching.state import _require_sense, _require_trials, read_state, write_state
from koopsim.searching.trial import draw_trials
from koopsim.spaces import BANDWIDTH, Median

GROUP = {"waiting": [1], "slots": [0, None], "ages": [2, 0]}
GOOD = {"turn": 0, "position": 3, "seconds": 1.5, "asha": [{"0": -0.5}], "groups": [GROUP]}


def test_what_a_search_writes_makes_sense():
    _require_sense(GOOD, range(2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("turn", -1), ("position", 1.0), ("seconds", float("nan")), ("asha", {}), ("asha", [{"2": 0.1}]),
        ("asha", [{"0": float("inf")}]), ("groups", None), ("groups", [GROUP | {"waiting": [2]}]),
        ("groups", [GROUP | {"slots": [True, None]}]), ("groups", [GROUP | {"ages": [1]}]),
    ],
)  # fmt: skip
def test_what_does_not_is_named(field, value):
    with pytest.raises(ValueError, match="no good"):
        _require_sense(GOOD | {field: value}, range(2))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(a search, the folder in which it was saved after an epoch)"""
    search = tiny_search(trials=2)
    directory = SearchDirectory.create(tmp_path_factory.mktemp("search") / "s", search)
    trials = draw_trials(search.base, search.space, search.seed)
    trials[0].curve.append({"t": 1, "seconds": 0.5, "train_loss": 2.0, "loss": 1.5})
    write_state(directory, GOOD, trials, {})
    return search, directory


def test_a_state_is_of_the_search_that_is_asked_for(saved):
    search, directory = saved
    drawn = draw_trials(search.base, search.space, search.seed)
    assert read_state(directory, drawn, "loss")[1][0].curve[0]["loss"] == 1.5
    wider = replace(search.base, model=replace(search.base.model, hidden=9))
    for other in (
        draw_trials(search.base, search.space, 1),
        draw_trials(search.base, replace(search.space, trials=3), search.seed),
        draw_trials(wider, search.space, search.seed),
    ):
        with pytest.raises(KoopsimError, match="the state of another search than"):
            read_state(directory, other, "loss")
    with pytest.raises(KoopsimError, match="no good '1e999'"):
        read_state(directory, drawn, "1e999")


def test_a_median_bandwidth_that_was_settled_is_the_same_search(tmp_path):
    search = tiny_search("image/sim-rff", trials=1)
    space = replace(search.space, parameters=search.space.parameters | {BANDWIDTH: Median(0.5, 2.0)})
    directory = SearchDirectory.create(tmp_path / "s", replace(search, space=space))
    drawn, trials = (draw_trials(search.base, space, 0) for _ in range(2))
    trials[0].run = with_values(trials[0].run, {BANDWIDTH: 3.25})
    write_state(directory, GOOD | {"groups": [], "asha": []}, trials, {})
    assert read_state(directory, drawn, "loss")[1][0].run.model.fourier.bandwidth == 3.25


def test_reports_of_a_cluster_are_read_line_by_line(tmp_path):
    good = [
        {"index": 0, "t": 1, "seconds": 1.0, "loss": 2.0},
        {"index": 1, "seconds": 2, "ended": "failed", "reason": ""},
    ]
    bad = [
        {"index": 2, "t": 1, "seconds": 1.0, "loss": 2.0}, {"index": 0, "t": 0, "seconds": 1.0, "loss": 2.0},
        {"index": 0, "t": 1, "seconds": 1.0}, {"index": 0, "seconds": 1.0, "ended": "failed"},
        {"index": 0, "seconds": 1.0, "ended": "gone", "reason": ""}, {"index": 0, "t": 1, "loss": 1.0},
        {"index": True, "t": 1, "seconds": 1.0, "loss": 2.0},
    ]  # fmt: skip
    file = tmp_path / "reports.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*good, *bad]))
    with pytest.warns(UserWarning, match="7 lines were left out"):
        assert read_reports(file, "loss", 2) == good


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"index": 0, "seconds": 1.0, "t": 1, "loss": 2}, None),
        ({"index": 1, "seconds": 0, "ended": "complete", "reason": ""}, None),
        ({"index": 2, "seconds": 1.0, "t": 1, "loss": 2.0}, "its index is 2, which is no trial's"),
        ({"index": -1, "seconds": 1.0, "t": 1, "loss": 2.0}, "its index is -1, which is no trial's"),
        ({"index": True, "seconds": 1.0, "t": 1, "loss": 2.0}, "its index is True"),
        ({"index": 0, "t": 1, "loss": 2.0}, "its seconds are no number"),
        ({"index": 0, "seconds": 1.0, "ended": "gone", "reason": ""}, "an end that is not known"),
        ({"index": 0, "seconds": 1.0, "ended": "failed"}, "an end that is not known"),
        ({"index": 0, "seconds": 1.0, "t": 0, "loss": 2.0}, "neither of an epoch nor of an end"),
        ({"index": 0, "seconds": 1.0, "loss": 2.0}, "neither of an epoch nor of an end"),
        ({"index": 0, "seconds": 1.0, "t": 1}, "it has no loss"),
        ({"index": 0, "seconds": 1.0, "t": 1, "loss": "low"}, "it has no loss"),
    ],
)
def test_what_is_wrong_with_a_report_is_said(report, said):
    found = _problem(report, "loss", 2)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("turn", 0), ("position", 0), ("seconds", 0), ("seconds", 0.0), ("asha", []), ("asha", [{}]),
        ("asha", [{"1": 5}]), ("groups", []), ("groups", [GROUP | {"ages": []}]),
        ("groups", [GROUP | {"slots": [], "ages": [], "waiting": [0]}]), ("groups", [GROUP | {"ages": [0, 0]}]),
    ],
)  # fmt: skip
def test_the_least_that_makes_sense(field, value):
    _require_sense(GOOD | {field: value}, range(2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", -0.1), ("seconds", True), ("seconds", "1"), ("asha", [{"-1": 0.1}]), ("asha", [{"x": 0.1}]),
        ("asha", [{"0": "1"}]), ("groups", [GROUP | {"waiting": [-1]}]), ("groups", [GROUP | {"waiting": [0.0]}]),
        ("groups", [GROUP | {"slots": [2, 0]}]), ("groups", [GROUP | {"slots": [0.0, None]}]),
        ("groups", [GROUP | {"ages": [-1, 0]}]), ("groups", [GROUP | {"ages": [1, 2, 3]}]), ("turn", True),
    ],
)  # fmt: skip
def test_what_is_just_outside_is_named(field, value):
    with pytest.raises(ValueError, match="no good"):
        _require_sense(GOOD | {field: value}, range(2))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"index": 1}, "index"), ({"values": []}, "index"), ({"status": "gone"}, "status"),
        ({"reason": None}, "status"),
        ({"curve": [{"t": 0, "seconds": 1.0, "loss": 1.0}]}, "curve"),
        ({"curve": [{"t": 1, "seconds": -1.0, "loss": 1.0}]}, "curve"),
        ({"curve": [{"t": 1, "seconds": 1.0}]}, "loss"),
        ({"curve": [{"t": 1, "seconds": 1.0, "loss": float("inf")}]}, "loss"),
    ],
)  # fmt: skip
def test_trials_are_believed_field_by_field(changed, field):
    search = tiny_search(trials=2)
    trials = draw_trials(search.base, search.space, search.seed)
    trials[0].curve = [{"t": 1, "seconds": 0.0, "loss": -3}]
    _require_trials(trials, "loss")
    trials[0] = replace(trials[0], **changed)
    with pytest.raises(ValueError, match=f"no good '{field}'"):
        _require_trials(trials, "loss")


def test_nothing_saved_is_none_and_half_a_header_is_refused(tmp_path):
    search = tiny_search(trials=2)
    directory = SearchDirectory.create(tmp_path / "s", search)
    drawn = draw_trials(search.base, search.space, search.seed)
    assert read_state(directory, drawn, "loss") is None
    write_state(directory, GOOD, drawn, {"0/w": torch.ones(2), "1/v": torch.full((1,), float("nan"))})
    position, trials, parts = read_state(directory, drawn, "loss")
    assert position == GOOD
    assert trials == drawn
    assert (parts[0]["w"].tolist(), list(parts[1])) == ([1.0, 1.0], ["v"])  # a trial that diverged holds NaN
    directory.state_file.write_bytes(tensors_bytes({}, {"search": {"trials": 3}}))
    with pytest.raises(KoopsimError, match="is not a whole search state"):
        read_state(directory, drawn, "loss")
