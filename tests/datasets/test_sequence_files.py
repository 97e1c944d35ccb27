"""Sequences from arrays, folders and tables: what is read is what was written, and what cannot be is one sentence."""

import numpy as np
import pytest

from koopsim.datasets.row_splits import TEST, TRAIN, VALID
from koopsim.datasets.sequence_files import read_sequences
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequences import carried_forward, filled_up
from koopsim.datasets.systems import SYSTEMS
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns
from koopsim.tasks.sequence_data import SequenceData, statistics_of

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


def test_rows_left_out_of_a_forecast_are_said(tmp_path):
    """A forecast takes each row as one step; labels are asked of what is there."""
    uneven, even = [1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 5.4, 6]
    for name, times in (("b", uneven), ("a", even), ("c", uneven)):
        (tmp_path / f"{name}.csv").write_text("t,v,y\n" + "".join(f"{t},{i},up\n" for i, t in enumerate(times)))
    ahead, tags = OwnColumns(("v",), "forecast", time="t", drop=("y",)), OwnColumns(("y",), "tag", time="t")
    with pytest.warns(UserWarning, match="times of 'b' are uneven: 1 of 5 steps .* usual 1, such as 2") as said:
        read_sequences(tmp_path, ahead)
    assert len(said) == 1
    read_sequences(tmp_path / "a.csv", ahead)  # a warning would be an error
    read_sequences(tmp_path / "b.csv", tags)


def test_each_file_of_a_folder_has_its_own_first_date(tmp_path):
    ahead = OwnColumns(("v",), "forecast", time="t")
    for name, times in (("a", ("2024-03-02", "2024-03-03")), ("b", ("2023-01-01T06:00", "2023-01-01T07:00"))):
        (tmp_path / f"{name}.csv").write_text("t,v\n" + "".join(f"{t},{i}\n" for i, t in enumerate(times)))
    found = read_sequences(tmp_path, ahead)
    assert [str(date)[:16] for date in found.since or []] == ["2024-03-02T00:00", "2023-01-01T06:00"]
    assert [own.tolist() for own in found.times or []] == [[0, 86400], [0, 3600]]
    (tmp_path / "c.csv").write_text("t,v\n1,0\n2,0\n")
    assert read_sequences(tmp_path, ahead).since is None  # of some no date is known


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
    for name in ("cat", "dog"):  # numbers that nobody would take for tags, and folders whose names are none
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "a.csv").write_text("v,state\n" + "".join(f"{i},{i}.5\n" for i in range(30)))
    found = read_sequences(tmp_path / "both", OwnColumns(target=("state",), goal="tag"))
    assert (found.channels, len(found.classes), found.labels) == (("v",), 30, None)
    with pytest.raises(KoopsimError, match="1 rows have no label in column 'state', the first is line 3"):
        (tmp_path / "tagged" / "a.csv").write_text("v,state\n1,up\n2,\n")
        read_sequences(tmp_path / "tagged", OwnColumns(target=("state",), goal="tag"))


def test_a_series_far_from_zero_keeps_its_digits_until_it_is_centred(tmp_path):
    """1e8 + sin t in float32 is 1e8: whatever file it comes from, what changes is still there."""
    wave = np.sin(np.arange(60.0))
    far = 1e8 + wave
    np.savez(tmp_path / "a.npz", x=far)
    (tmp_path / "b.csv").write_text("t,u\n" + "".join(f"{t},{u!r}\n" for t, u in enumerate(far.tolist())))
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "c" / "one.npy", far)
    for name in ("a.npz", "b.csv", "c"):
        found = read_sequences(tmp_path / name, OwnColumns(time="t"))
        assert found.values[0].dtype == np.float64
        scale, shift = statistics_of(found.values, plain=False)
        inputs = SequenceInputs("forecast", found.channels, scale, shift, targets=found.channels, ahead=1)
        (x,) = inputs.scaled(found.values, "f")
        assert x.dtype == np.float32
        np.testing.assert_allclose(x[:, 0], (wave - wave.mean()) / wave.std(), atol=1e-5)


def test_what_float32_holds_is_float32(tmp_path):
    """As it was before: a run on such data knows it by its bits."""
    for number, x in enumerate((np.linspace(100, 101, 9), np.full(9, 0.1), np.array([np.nan, 1e4, 1e4 + 1]))):
        np.savez(tmp_path / f"{number}.npz", x=x)
        (own,) = read_sequences(tmp_path / f"{number}.npz", OwnColumns()).values
        np.testing.assert_array_equal(own[:, 0], x.astype(np.float32))
        assert own.dtype == np.float32
    np.savez(tmp_path / "large.npz", x=np.array([1.0, 1e39]))
    with pytest.raises(KoopsimError, match=r"'0' has infinite values, or some above 3.4e\+38"):
        read_sequences(tmp_path / "large.npz", OwnColumns())


def classes(folder, count=3, names=("down", "up"), ending=".csv"):
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (folder / name / f"{i}{ending}").write_text(f"v\n{k}\n{i}\n")
    return folder


def test_what_lies_beside_the_sequences_is_none(tmp_path):
    classes(tmp_path)
    (tmp_path / "up" / "notes.txt").write_text("remember to charge the sensor")
    (tmp_path / "down" / "README.md").write_text("#")
    (tmp_path / "down" / ".DS_Store").write_bytes(b"\0")
    with pytest.warns(UserWarning, match=r"6 files are \.csv and 1 are not, such as up/notes\.txt; these") as said:
        found = read_sequences(tmp_path, OwnColumns())
    assert len(said) == 1
    assert (found.channels, found.labels.tolist()) == (("v",), [0, 0, 0, 1, 1, 1])
    classes(tmp_path / "texts", 4, ending=".txt")
    (tmp_path / "texts" / "up" / "index.tsv").write_text("v\n1\n")
    with pytest.warns(UserWarning, match=r"8 files are \.txt and 1 are not, such as up/index\.tsv"):
        assert read_sequences(tmp_path / "texts", OwnColumns()).bytes
    (tmp_path / "one").mkdir()
    for name in ("a.csv", "b.tsv", "c.csv"):
        (tmp_path / "one" / name).write_text("v\n1\n2\n")
    assert len(read_sequences(tmp_path / "one", OwnColumns())) == 3  # tables both
    classes(tmp_path / "odd")
    (tmp_path / "odd" / "left").mkdir()
    (tmp_path / "odd" / "left" / "a.txt").write_text("no")
    no_csv = r"left has no \.csv files, which the other"
    with pytest.warns(UserWarning, match="left/a"), pytest.raises(KoopsimError, match=no_csv):
        read_sequences(tmp_path / "odd", OwnColumns())


def test_folders_for_training_and_testing_are_no_classes(tmp_path):
    classes(tmp_path / "Train", 4)
    classes(tmp_path / "TEST", 2)
    found = read_sequences(tmp_path, OwnColumns())
    assert found.classes == ("down", "up")
    assert [found.classes[label] for label in found.labels] == [name.split("/")[1] for name in found.names]
    marks = {(name.split("/")[0], mark) for name, mark in zip(found.names, found.splits.tolist(), strict=True)}
    assert marks == {("Train", TRAIN), ("TEST", TEST)}
    classes(tmp_path / "valid", 1)
    assert sorted(set(read_sequences(tmp_path, OwnColumns()).splits.tolist())) == [TRAIN, VALID, TEST]
    classes(tmp_path / "TEST", 1, names=("sideways",))
    with pytest.raises(KoopsimError, match="has the class 'sideways', but none in train/; training needs it too"):
        read_sequences(tmp_path, OwnColumns())


def test_parts_without_a_test_and_without_classes(tmp_path):
    classes(tmp_path / "a" / "train")
    classes(tmp_path / "a" / "val")
    with pytest.warns(UserWarning, match="has no test/: val/ is what is tested on"):
        found = read_sequences(tmp_path / "a", OwnColumns())
    assert found.splits.tolist() == [TRAIN] * 6 + [TEST] * 6
    classes(tmp_path / "b" / "train")
    alone = read_sequences(tmp_path / "b", OwnColumns())  # to be split as classes are
    assert (alone.splits, alone.classes, alone.names[0]) == (None, ("down", "up"), "train/down/0")
    classes(tmp_path / "c", 2, names=("train", "test"))
    found = read_sequences(tmp_path / "c", OwnColumns())
    assert (found.labels, found.classes, found.splits.tolist()) == (None, (), [TEST, TEST, TRAIN, TRAIN])
    classes(tmp_path / "c" / "test", 1)
    with pytest.raises(KoopsimError, match="classes in one of its parts and none in another; make them one"):
        read_sequences(tmp_path / "c", OwnColumns())


def test_a_part_that_nobody_made_is_drawn(tmp_path):
    classes(tmp_path / "train", 10)
    classes(tmp_path / "test", 3)
    found = SequenceData(str(tmp_path), valid=0.2).read("classify")
    given = read_sequences(tmp_path, OwnColumns(goal="classify"))
    assert found.names == given.names
    assert ((found.splits == TEST) == (given.splits == TEST)).all()
    assert sorted(found.labels[found.splits == VALID].tolist()) == [0, 0, 1, 1]  # of each class its share
    classes(tmp_path / "series" / "train", 2, names=(".",))
    classes(tmp_path / "series" / "test", 2, names=(".",))
    with pytest.warns(UserWarning, match="which a forecast does not ask: of every series the beginning is learnt"):
        SequenceData(str(tmp_path / "series")).read("forecast", 1)


def test_a_gap_is_told_with_its_line(tmp_path):
    (tmp_path / "l.csv").write_text("who,when,v\na,1,1\n\na,,2\n,3,1\n")
    for columns, what in [
        (OwnColumns(time="when", drop=("who",)), "time in column 'when', the first is line 4"),
        (OwnColumns(id="who", drop=("when",)), "in column 'who', the first is line 5"),
        (OwnColumns(("who",), "classify", drop=("when",)), "label in column 'who', the first is line 5"),
    ]:
        with pytest.raises(KoopsimError, match=f"1 rows have no .*{what}; every row needs one"):
            read_sequences(tmp_path / "l.csv", columns)
