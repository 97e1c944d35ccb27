"""Sequences from arrays, folders and tables: what is read is what was written, and what cannot be is one sentence."""

import numpy as np
import pytest

from koopsim.datasets.sequence_files import read_sequences
from koopsim.datasets.sequences import carried_forward, filled_up
from koopsim.datasets.systems import SYSTEMS
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns

LOG = "who,when,a,b,state\nann,3,5,1,up\nbob,1,7,2,up\nann,1,4,,up\nann,2,,3,down\nbob,2,8,4,up\n"


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text(LOG)
    return file


def test_a_long_table_is_cut_by_id_and_sorted_by_time(log):
    found = read_sequences(log, OwnColumns(target=("state",), id="who", time="when"))
    assert found.names == ("ann", "bob")
    assert found.channels == ("a", "b")
    assert found.lengths.tolist() == [3, 2]
    np.testing.assert_array_equal(found.values[0], [[4, np.nan], [np.nan, 3], [5, 1]])
    assert found.times is not None
    assert found.times[1].tolist() == [1, 2]
    assert found.tags is not None  # it changes within ann
    assert [[found.classes[t] for t in own] for own in found.tags] == [["up", "down", "up"], ["up", "up"]]


def test_the_goal_is_found_out_or_said(log):
    numbers = read_sequences(log, OwnColumns(("a",), "forecast", "who", "when", drop=("state",)))
    assert numbers.labels is None
    assert numbers.tags is None
    assert numbers.channels == ("a", "b")
    with pytest.raises(KoopsimError, match="changes within the sequence 'ann'"):
        read_sequences(log, OwnColumns(("state",), "classify", "who", "when"))


def test_gaps_are_carried_forward_and_a_first_one_is_the_mean():
    values = [np.array([[np.nan, 1], [2, np.nan], [np.nan, np.nan]], np.float32)]
    (own,) = carried_forward(values, np.array([9.0, 8.0], np.float32))
    np.testing.assert_array_equal(own, [[9, 1], [2, 1], [2, 1]])
    np.testing.assert_array_equal(filled_up([own, own[:1]])[1], [[9, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (OwnColumns(("nothing",), id="who", time="when"), "no column 'nothing'"),
        (OwnColumns(id="whom", time="when"), "no column 'whom'"),
        (OwnColumns(id="who", time="state"), "no time"),
        (OwnColumns(id="who", time="when"), "column 'state' holds words"),
        (OwnColumns(("state",), time="when", drop=("who",)), "same time 1"),
        (OwnColumns(("state", "a"), "tag", "who", "when"), "one --target"),
        (OwnColumns(("state",), "tag", "who", "when", drop=("a", "b")), "no columns left"),
    ],
)
def test_what_does_not_fit_a_table_is_one_sentence(log, columns, said):
    with pytest.raises(KoopsimError, match=said) as error:
        read_sequences(log, columns)
    assert "\n" not in str(error.value)


def test_arrays_with_lengths_labels_and_splits(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 6, 2))
    file = tmp_path / "s.npz"
    np.savez(file, x=x, y=np.array(["a", "b", "a", "b"]), lengths=[6, 3, 1, 2], split=["train", "valid", "test", "val"])
    found = read_sequences(file, OwnColumns())
    assert found.lengths.tolist() == [6, 3, 1, 2]
    np.testing.assert_allclose(found.values[1], x[1, :3], rtol=1e-6)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.splits is not None
    assert found.splits.tolist() == [0, 1, 2, 1]
    np.savez(file, x=np.arange(30).reshape(2, 15) % 7, y=np.arange(30).reshape(2, 15) % 3)
    found = read_sequences(file, OwnColumns())
    assert found.plain
    assert found.tags is not None
    np.savez(file, x=np.arange(10.0))
    assert read_sequences(file, OwnColumns()).values[0].shape == (10, 1)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"z": np.zeros(3)}, "expected x"),
        ({"x": np.zeros((2, 3, 4, 5))}, "expected numbers"),
        ({"x": np.zeros((0, 3, 1))}, "expected numbers"),
        ({"x": np.array([["a"]])}, "expected numbers"),
        ({"x": np.zeros((2, 3, 1)), "y": np.zeros(2)}, "whole numbers or words"),
        ({"x": np.zeros((2, 3, 1)), "y": np.zeros((2, 2), int)}, "whole numbers or words"),
        ({"x": np.zeros((2, 3, 1)), "lengths": np.array([4, 1])}, "from 1 to 3"),
        ({"x": np.zeros((2, 3, 1)), "split": np.array(["train", "later"])}, "train, valid or test"),
        ({"x": np.full((2, 3, 1), np.inf)}, "infinite"),
    ],
)
def test_arrays_that_are_none_are_one_sentence(tmp_path, arrays, said):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(KoopsimError, match=said):
        read_sequences(tmp_path / "s.npz", OwnColumns())


def test_folders_and_texts(tmp_path):
    for label, text in (("angry", "NO!"), ("calm", "yes, of course")):
        (tmp_path / "mail" / label).mkdir(parents=True)
        (tmp_path / "mail" / label / "1.txt").write_text(text)
    found = read_sequences(tmp_path / "mail", OwnColumns())
    assert found.bytes
    assert found.classes == ("angry", "calm")
    assert bytes(found.values[1]) == b"yes, of course"
    for label in ("down", "up"):
        (tmp_path / "moves" / label).mkdir(parents=True)
        (tmp_path / "moves" / label / "1.csv").write_text("v\n1\n2\n")
    for goal in (None, "classify"):
        found = read_sequences(tmp_path / "moves", OwnColumns(goal=goal))
        assert (found.classes, found.channels) == (("down", "up"), ("v",))
        assert found.labels is not None
        assert found.labels.tolist() == [0, 1]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.csv").write_text("t,v\n1,2\n2,3\n")
    (tmp_path / "runs" / "b.csv").write_text("t,v\n1,5\n")
    found = read_sequences(tmp_path / "runs", OwnColumns(time="t"))
    assert found.names == ("a", "b")
    assert found.lengths.tolist() == [2, 1]
    (tmp_path / "runs" / "c.csv").write_text("t,w\n1,5\n")
    with pytest.raises(KoopsimError, match=r"c\.csv has the columns w where"):
        read_sequences(tmp_path / "runs", OwnColumns(time="t"))
    (tmp_path / "table.csv").write_text("say,mood\nhello,good\nbye,bad\n")
    found = read_sequences(tmp_path / "table.csv", OwnColumns(("mood",), text="say"))
    assert [bytes(v) for v in found.values] == [b"hello", b"bye"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(KoopsimError, match="no sequences"):
        read_sequences(tmp_path / "empty", OwnColumns())
    with pytest.raises(KoopsimError, match="holds no sequences"):
        read_sequences(tmp_path / "x.doc", OwnColumns())
    with pytest.raises(KoopsimError, match="no file"):
        read_sequences(tmp_path / "x.csv", OwnColumns())


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_follow_from_their_seed(name):
    a, b, c = (SYSTEMS[name](30, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(a.values, b.values, strict=True))
    assert not np.array_equal(a.values[0], c.values[0])
    assert all(np.isfinite(v).all() for v in a.values)


def test_a_folders_name_is_the_label_of_its_tables(tmp_path):
    """As `koopsim train --data FOLDER` reads it: the goal is known by then, and no column is a target."""
    for number, label in enumerate(("down", "up")):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.csv").write_text(f"a,b\n1,{number}\n2,3\n")
    found = read_sequences(tmp_path, OwnColumns(goal="classify"))
    assert found.classes == ("down", "up")
    assert found.labels.tolist() == [0, 1]
    assert found.channels == ("a", "b")


def test_folders_of_arrays_and_of_tagged_tables(tmp_path):
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "a.npy", np.arange(3))
    np.save(tmp_path / "arrays" / "b.npy", np.arange(4.0)[:, None])
    found = read_sequences(tmp_path / "arrays", OwnColumns())
    assert found.channels == ("x0",)
    assert [v.tolist() for v in found.values] == [[[0], [1], [2]], [[0], [1], [2], [3]]]
    assert found.values[0].dtype == np.float32
    for bad in (np.zeros((2, 2, 2)), np.array(["a"]), np.zeros((0, 2)), np.zeros(())):
        np.save(tmp_path / "arrays" / "c.npy", bad)
        with pytest.raises(KoopsimError, match=r"c\.npy is .*; expected numbers \(T,\) or \(T, C\)"):
            read_sequences(tmp_path / "arrays", OwnColumns())
    (tmp_path / "tagged").mkdir()
    (tmp_path / "tagged" / "a.csv").write_text("v,state\n1,up\n2,down\n")
    (tmp_path / "tagged" / "b.csv").write_text("v,state\n3,flat\n4,up\n5,flat\n")
    found = read_sequences(tmp_path / "tagged", OwnColumns(target=("state",), goal="tag"))
    assert found.classes == ("down", "flat", "up")
    assert [own.tolist() for own in found.tags] == [[2, 0], [1, 2, 1]]
