"""Sequences in memory, in tables, and as a model sees them: by hand, at the ends of what they may be."""

import json
from dataclasses import replace

import numpy as np
import pytest

from koopsim.datasets import sequence_tables
from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.sequence_arrays import read_sequence_arrays
from koopsim.datasets.sequence_files import read_sequences
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequence_tables import FEW, long_table, rows_of_text
from koopsim.datasets.sequences import Sequences, carried_forward, filled_up
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns, SequenceShape

F32 = np.float32


def test_which_values_are_bytes_and_how_long_they_are():
    def kind(value):
        return Sequences("f", [value], ("a",), ("s",)).bytes

    assert kind(np.zeros(3, np.uint8))
    assert not kind(np.zeros((3, 1), np.uint8))
    assert not kind(np.zeros(3, F32))
    own = Sequences("f", [np.zeros((3, 1)), np.zeros((1, 1))], ("a",), ("s", "t"))
    assert (own.lengths.tolist(), len(own)) == ([3, 1], 2)
    with pytest.raises(KoopsimError, match="f has the sequence 't' without a single step"):
        Sequences("f", [np.zeros((3, 1)), np.zeros((0, 1))], ("a",), ("s", "t"))
    with pytest.raises(KoopsimError, match="f has no sequences; expected some"):
        Sequences("f", [], ("a",), ())


def test_what_has_no_gap_stays_what_it_is():
    whole, text = np.array([[1.0], [2.0]], F32), np.array([1, 2], np.uint8)
    found = carried_forward([whole, text], np.array([9.0], F32))
    assert found[0] is whole
    assert found[1] is text
    (gap,) = carried_forward([np.array([[np.nan, 4.0], [np.nan, np.nan], [3.0, np.nan]])], np.array([9.0, 8.0]))
    assert gap.tolist() == [[9.0, 4.0], [9.0, 4.0], [3.0, 4.0]]
    assert gap.dtype == np.float64  # cut short only once it is centred


def test_filled_up_on_the_right():
    values = [np.array([1, 2], np.uint8), np.array([3], np.uint8)]
    assert filled_up(values).tolist() == [[1, 2], [3, 0]]
    assert filled_up(values, 4).tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert filled_up(values).dtype == np.uint8
    assert filled_up([np.ones((2, 3)), np.ones((1, 3))]).shape == (2, 2, 3)


# ---------------------------------------------------------------- what a model sees

PLAIN = SequenceInputs("classify", ("a", "b"), (2.0, 0.5), (1.0, -2.0), ("x", "y", "z"), length=7)


def test_values_are_scaled_channel_by_channel():
    values = [np.array([[1.0, 0.0], [3.0, 2.0]], F32), np.array([[np.nan, 4.0]], F32)]
    found = PLAIN.scaled(values, "f")
    assert [v.tolist() for v in found] == [[[0.0, 1.0], [4.0, 2.0]], [[0.0, 3.0]]]
    assert found[0].dtype == F32
    with pytest.raises(KoopsimError, match="f has 1 channels; the model takes 2: a, b"):
        PLAIN.scaled([values[0][:, :1]], "f")
    text = replace(PLAIN, scale=(), shift=())
    assert text.bytes
    assert text.scaled([np.array([65, 66])], "f")[0].tolist() == [65, 66]
    assert text.scaled([np.array([65, 66])], "f")[0].dtype == np.uint8


def test_what_a_model_has_to_have():
    assert (PLAIN.outputs, PLAIN.shape, PLAIN.bytes) == (3, SequenceShape(2, 7), False)
    assert replace(PLAIN, scale=(), shift=()).shape == SequenceShape(0, 7)
    ahead = replace(PLAIN, goal="forecast", ahead=4, targets=("b", "a"))
    assert (ahead.outputs, ahead.target_places) == (8, [1, 0])
    assert ahead.columns == OwnColumns((), "forecast", None, None, None, 4, ())
    assert PLAIN.columns == OwnColumns((), None, None, None, None, None, ())
    named = replace(PLAIN, target=("y",), id="who", time="when", drop=("z",))
    assert named.columns == OwnColumns(("y",), "classify", "who", "when", None, None, ("z",))
    assert SequenceInputs.from_dict(json.loads(json.dumps(named.as_dict())), "f") == named


@pytest.mark.parametrize("changed", [{"scale": (1.0,)}, {"shift": (1.0,)}, {"scale": (1.0,) * 3, "shift": (1.0,) * 3},
                                     {"length": 0}, {"scale": ()}])  # fmt: skip
def test_inputs_that_cannot_be(changed):
    with pytest.raises(KoopsimError, match="expected one of each for every channel"):
        replace(PLAIN, **changed)
    assert replace(PLAIN, length=1).length == 1


def test_channels_are_put_into_the_models_order():
    own = Sequences("f", [np.array([[1.0, 2.0, 3.0]], F32)], ("c", "b", "a"), ("s",))
    found = PLAIN.arranged(own)
    assert (found.channels, found.values[0].tolist()) == (("a", "b"), [[3.0, 2.0]])
    with pytest.raises(KoopsimError, match="f has no column 'a', which the model takes"):
        PLAIN.arranged(replace(own, channels=("c", "b", "d")))
    text = Sequences("f", [np.array([65], np.uint8)], ("byte",), ("s",))
    reader = replace(PLAIN, scale=(), shift=())
    assert reader.arranged(text) is text
    for model, given, what in ((PLAIN, text, "text"), (reader, own, "numbers")):
        with pytest.raises(KoopsimError, match=f"f is {what}; the model takes the other"):
            model.arranged(given)


# ---------------------------------------------------------------- tables


def table(**columns):
    def column(name, values):
        if isinstance(values[0], str):
            words = tuple(dict.fromkeys(v for v in values if v))
            return Column(name, np.array([words.index(v) if v else -1 for v in values], np.int32), words)
        return Column(name, np.array(values, float))

    return DataTable("t.csv", [column(name, values) for name, values in columns.items()])


def test_a_label_a_sequence_though_it_has_one_step():
    own = table(who=["b", "a", "b"], when=[2, 1, 1], v=[5.0, 6.0, 7.0], y=["up", "down", "up"])
    found = long_table(own, OwnColumns(("y",), "classify", "who", "when"))
    assert (found.names, found.classes, found.labels.tolist()) == (("a", "b"), ("down", "up"), [0, 1])
    assert [v.ravel().tolist() for v in found.values] == [[6.0], [7.0, 5.0]]
    assert [t.tolist() for t in found.times] == [[1.0], [1.0, 2.0]]
    told = long_table(own, OwnColumns(("y",), None, "who", "when"))  # it never changes within one
    assert told.labels.tolist() == [0, 1]
    assert told.tags is None
    tagged = long_table(own, OwnColumns(("y",), "tag", "who", "when"))
    assert [t.tolist() for t in tagged.tags] == [[0], [1, 1]]


def test_one_sequence_is_tagged_step_by_step():
    own = table(v=[1.0, 2.0], y=["up", "up"])
    found = long_table(own, OwnColumns(("y",)))
    assert (found.names, found.times, [t.tolist() for t in found.tags]) == (("t",), None, [[0, 0]])
    assert long_table(own, OwnColumns(("y",), "classify")).labels.tolist() == [0]


@pytest.mark.parametrize(
    ("values", "horizon", "labels"),
    [
        ([0.0, 1.0] * 20, None, True), ([0.0, 0.5] * 20, None, False), ([0.0, 1.0] * 20, 3, False),
        ([*map(float, range(FEW))] * 2, None, True), ([*map(float, range(FEW + 1))] * 2, None, False),
        ([0.0, float("nan"), 1.0, 1.0], None, True), (["a", "b"] * 2, None, True),
    ],
)  # fmt: skip
def test_few_whole_numbers_are_labels(values, horizon, labels):
    own = table(v=[0.5] * len(values), y=values)
    assert sequence_tables._are_labels(own, OwnColumns(("y",), horizon=horizon)) is labels
    assert sequence_tables._are_labels(own, OwnColumns()) is False
    assert sequence_tables._are_labels(own, OwnColumns(("v", "y"))) is False


def test_labels_are_there_and_not_too_many(monkeypatch):
    own = table(v=[1.0, 2.0, 3.0], y=["a", "b", "c"])
    monkeypatch.setattr(sequence_tables, "MOST_CLASSES", 3)
    assert long_table(own, OwnColumns(("y",))).classes == ("a", "b", "c")
    monkeypatch.setattr(sequence_tables, "MOST_CLASSES", 2)
    with pytest.raises(KoopsimError, match="'y' has 3 different values; are these labels"):
        long_table(own, OwnColumns(("y",)))
    with pytest.raises(KoopsimError, match="1 rows have no label in column 'y', the first is row 2; every"):
        long_table(table(v=[1.0, 2.0, 3.0], y=["a", "", "a"]), OwnColumns(("y",)))
    with pytest.raises(KoopsimError, match="2 rows have no name of a sequence in column 'who', the first is row 2"):
        long_table(table(v=[1.0, 2.0, 3.0], who=["a", "", ""]), OwnColumns(id="who"))


def test_no_two_rows_of_one_sequence_at_one_time():
    own = table(who=["a", "b", "a", "b"], when=[1, 1, 2, 2], v=[1.0, 2.0, 3.0, 4.0])
    assert [v.ravel().tolist() for v in long_table(own, OwnColumns(id="who", time="when")).values] == [[1, 3], [2, 4]]
    twice = table(who=["a", "b", "a", "b"], when=[1, 2, 3, 2], v=[1.0, 2.0, 3.0, 4.0])
    with pytest.raises(KoopsimError, match=r"two rows of 'b' have the same time 2; give"):
        long_table(twice, OwnColumns(id="who", time="when"))
    with pytest.raises(KoopsimError, match=r"two rows have the same time 1; give"):
        long_table(own.without(["who"]), OwnColumns(time="when"))


def test_a_text_a_row():
    own = table(say=["né", "b"], y=["q", "p"])
    found = rows_of_text(own, OwnColumns(("y",), text="say"))
    assert [bytes(v) for v in found.values] == ["né".encode(), b"b"]
    assert (found.names, found.classes, found.labels.tolist(), found.channels) == (
        ("0", "1"), ("p", "q"), [1, 0], ("say",))  # fmt: skip
    assert rows_of_text(own, OwnColumns(text="say")).labels is None
    with pytest.raises(KoopsimError, match="1 rows have no text in column 'say'"):
        rows_of_text(table(say=["a", ""], y=["q", "p"]), OwnColumns(text="say"))


# ---------------------------------------------------------------- arrays and folders


def read(tmp_path, **arrays):
    np.savez(tmp_path / "s.npz", **arrays)
    return read_sequence_arrays(tmp_path / "s.npz")


@pytest.mark.parametrize(
    ("x", "more", "shapes"),
    [
        (np.ones(4), {}, [(4, 1)]), (np.ones((4, 2)), {}, [(4, 2)]),
        (np.ones((3, 4)), {"y": np.array([0, 1, 0])}, [(4, 1)] * 3),
        (np.ones((2, 4)), {"lengths": np.array([4, 1])}, [(4, 1), (1, 1)]), (np.ones((2, 4, 3)), {}, [(4, 3)] * 2),
    ],
)  # fmt: skip
def test_arrays_of_one_two_and_three_dimensions(tmp_path, x, more, shapes):
    found = read(tmp_path, x=x, **more)
    assert [v.shape for v in found.values] == shapes
    assert found.channels == tuple(f"x{j}" for j in range(shapes[0][1]))
    assert found.names == tuple(map(str, range(len(shapes))))
    assert not found.plain


def test_labels_of_sequences_and_of_their_steps(tmp_path):
    x = np.arange(6).reshape(2, 3)
    found = read(tmp_path, x=x, y=np.array([[5, 7, 7], [7, 5, 5]]), lengths=np.array([3, 2]))
    assert ([t.tolist() for t in found.tags], found.classes, found.labels) == ([[0, 1, 1], [1, 0]], ("5", "7"), None)
    assert found.plain
    found = read(tmp_path, x=x, y=np.array([True, False]))
    assert (found.labels.tolist(), found.classes, found.tags) == ([1, 0], ("False", "True"), None)
    for lengths in ([0, 3], [1, 4], [1.0, 2.0], [3]):
        with pytest.raises(KoopsimError, match=r"expected \(2,\) from 1 to 3"):
            read(tmp_path, x=x, lengths=np.array(lengths))
    assert read(tmp_path, x=x, lengths=np.array([1, 3])).lengths.tolist() == [1, 3]
    with pytest.raises(KoopsimError, match=r"split is \(1, 2\); expected train, valid or test for each of 2"):
        read(tmp_path, x=x, y=np.array([0, 1]), split=np.array([["train", "test"]]))


def test_folders_of_folders(tmp_path):
    for name, text in (("b/2.txt", "two"), ("b/1.txt", "one"), ("a/x/3.txt", "three"), (".c/4.txt", "no"),
                       ("a/.5.txt", "no")):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_sequences(tmp_path, OwnColumns())
    assert (found.names, found.classes, found.labels.tolist()) == (("a/x/3", "b/1", "b/2"), ("a", "b"), [0, 1, 1])
    assert [bytes(v) for v in found.values] == [b"three", b"one", b"two"]
    (tmp_path / "b" / "3.txt").write_text("")
    with pytest.raises(KoopsimError, match=r"3\.txt is empty"):
        read_sequences(tmp_path, OwnColumns())
    np.save(tmp_path / "b" / "3.npy", np.ones((2, 1)))
    (tmp_path / "b" / "3.txt").unlink()
    with pytest.warns(UserWarning, match=r"3 files are \.txt and 1 are not, such as b/3\.npy; these are left out"):
        assert read_sequences(tmp_path, OwnColumns()).names == ("a/x/3", "b/1", "b/2")


def test_times_of_a_folders_files(tmp_path):
    (tmp_path / "a.csv").write_text("t,v\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("t,v\n7,5\n")
    found = read_sequences(tmp_path, OwnColumns(time="t"))
    assert [t.tolist() for t in found.times] == [[1.0, 2.0], [7.0]]
    assert (found.labels, found.path) == (None, str(tmp_path))
    (tmp_path / "c.csv").write_text("t,v\n7,inf\n")
    with pytest.raises(KoopsimError, match="the sequence 'c' has infinite values"):
        read_sequences(tmp_path, OwnColumns(time="t"))
    (tmp_path / "one.txt").write_text("so")
    found = read_sequences(tmp_path / "one.txt", OwnColumns())
    assert (found.names, found.channels, bytes(found.values[0])) == (("one",), ("byte",), b"so")
