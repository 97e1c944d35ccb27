"""Columns and what is learnt of them, at the ends of what they may be."""

import warnings

import numpy as np
import pytest

from koopsim.datasets import columns, table_learning
from koopsim.datasets.columns import Column, DataTable, number_text
from koopsim.datasets.named_tables import load_table
from koopsim.datasets.table import read_table
from koopsim.datasets.table_inputs import CategoryInput, NumberInput, TableInputs, Target
from koopsim.datasets.table_learning import deviation_of, learn_inputs, learn_targets, meaning_of
from koopsim.errors import KoopsimError


def words(name, *said):
    known = tuple(dict.fromkeys(w for w in said if w is not None))
    return Column(name, np.array([-1 if w is None else known.index(w) for w in said], np.int32), known)


def test_a_column_of_words_and_one_of_numbers():
    a, b = words("a", "x", None, "x", "y"), Column("b", np.array([1.0, np.nan, 2.5, 1.0]))
    assert (len(a), a.is_text, b.is_text) == (4, True, False)
    assert a.missing.tolist() == b.missing.tolist() == [False, True, False, False]
    assert (a.texts(), b.texts()) == (["x", None, "x", "y"], ["1", None, "2.5", "1"])
    assert (a.take([3, 0]).texts(), b.take([2]).values.tolist()) == (["y", "x"], [2.5])
    assert a.codes()[0].dtype == np.int32
    assert a.take([3, 3]).codes()[1] == ("y",)  # only those that occur
    with pytest.raises(KoopsimError, match="t: 1 rows have no time in column 'b'"):
        b.times("t")
    assert b.take([0, 2]).times("t").tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("said", "dates"),
    [(("2024-01-02", " 3/4/99 ", "1.2.2024"), True), (("2024-01-02", "x"), False), (("2024-1-2 12:30",), True),
     (("2024-01-02T1:00:05.5",), True), (("2024-01",), False), (("12345-01-02",), False)],
)  # fmt: skip
def test_words_that_are_dates(said, dates):
    assert words("t", *said).looks_like_dates is dates


def test_no_words_are_no_dates_and_of_many_some_are_looked_at(monkeypatch):
    assert not Column("t", np.full(2, -1, np.int32), ()).looks_like_dates
    assert not Column("t", np.zeros(2)).looks_like_dates
    monkeypatch.setattr(columns, "WORDS", 2)
    assert words("t", "2024-01-02", "2024-01-03", "soon").looks_like_dates
    assert not words("t", "2024-01-02", "soon").looks_like_dates


def test_dates_are_seconds_from_the_earliest():
    column = words("t", "2024-01-01T00:01:00", "2024-01-01T00:00:00", "2024-01-01T00:01:00")
    assert column.times("f").tolist() == [60.0, 0.0, 60.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-3.0, "-3"), (0.1, "0.1"), (999999999999999.0, "999999999999999"), (-1e15, "-1000000000000000.0")],
)
def test_numbers_as_short_as_they_can_be(value, text):
    assert number_text(value) == text


def test_tables_are_columns_by_name():
    own = DataTable("t", [Column("a", np.arange(3.0)), words("b", "x", "y", "x"), Column("c", np.ones(3))])
    assert (len(own), own.names, len(DataTable("t", []))) == (3, ("a", "b", "c"), 0)
    assert own.take([2, 0])["a"].values.tolist() == [2.0, 0.0]
    assert own.without(["b", "a"]).names == ("c",)
    own.require(["a", "c"])
    for call in (lambda: own["d"], lambda: own.without(["d"]), lambda: own.require(["a", "d"])):
        with pytest.raises(KoopsimError, match="t has no column 'd'"):
            call()


def test_cells_that_are_missing_among_numbers_and_words(tmp_path):
    (tmp_path / "a.csv").write_text("n,w\n1, x\nNA,null\n 2,x \n")
    found = read_table(tmp_path / "a.csv")
    np.testing.assert_array_equal(found["n"].values, [1, np.nan, 2])
    assert found["w"].texts() == ["x", None, "x"]
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    assert read_table(tmp_path / "b.csv").names == ("x0", "x1")


def test_typed_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather

    own = pyarrow.table({
        "coded": pyarrow.array([3, None, 3]).dictionary_encode(), "yes": pyarrow.array([True, None, False]),
        "never": pyarrow.nulls(3), "long": pyarrow.array(["b", "a", None], pyarrow.large_string()),
        "wide": pyarrow.array([2**60, 1, None]),
        "split": pyarrow.chunked_array([["q"], ["p", "q"]]),
    })  # fmt: skip
    feather.write_feather(own, str(tmp_path / "a.feather"))
    found = read_table(tmp_path / "a.feather")
    np.testing.assert_array_equal(found["coded"].values, [3, np.nan, 3])
    np.testing.assert_array_equal(found["yes"].values, [1, np.nan, 0])
    assert np.isnan(found["never"].values).all()
    assert found["long"].texts() == ["b", "a", None]
    assert found["wide"].values[0] == float(2**60)
    assert found["split"].texts() == ["q", "p", "q"]
    twice = pyarrow.Table.from_arrays([pyarrow.array([1.0]), pyarrow.array([2.0])], names=["a", "a"])
    feather.write_feather(twice, str(tmp_path / "b.feather"))
    with pytest.raises(KoopsimError, match="two columns of one name; give each its own"):
        read_table(tmp_path / "b.feather")


def test_arrays_of_one_row_and_of_no_column(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((1, 2)), y=np.array([True]))
    found = read_table(tmp_path / "a.npz")
    assert (found.names, len(found), found["y"].values.tolist()) == (("x0", "x1", "y"), 1, [1.0])
    for arrays, why in (({"x": np.ones((0, 2))}, "2 columns and 0 rows"), ({"x": np.ones((2, 0))}, "0 columns and 0"),
                        ({"x": np.ones(2) * 1j}, r"complex128 of shape \(2,\)")):  # fmt: skip
        np.savez(tmp_path / "b.npz", **arrays)
        with pytest.raises(KoopsimError, match=why):
            read_table(tmp_path / "b.npz")


@pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer", "diabetes"])
def test_tables_that_are_always_there(name):
    from sklearn import datasets

    from koopsim.datasets.named_tables import NAMED

    theirs = getattr(datasets, NAMED[name])()
    found = load_table(name)
    assert found.names == (*theirs.feature_names, "target")
    np.testing.assert_array_equal(np.stack([found[n].values for n in theirs.feature_names], axis=1), theirs.data)
    if name == "diabetes":
        np.testing.assert_array_equal(found["target"].values, theirs.target)
    else:
        assert found["target"].texts() == [str(theirs.target_names[i]) for i in theirs.target]


# ---------------------------------------------------------------- what is learnt of them


@pytest.mark.parametrize(
    ("values", "meaning"),
    [
        (np.arange(200) % 20, "classification"), (np.arange(210) % 21, "regression"),
        (np.arange(30) % 3, "classification"), (np.arange(29) % 3, "regression"), (np.arange(9) % 2, "classification"),
        (np.arange(30) % 3 + 0.25, "regression"),
    ],
)  # fmt: skip
def test_few_whole_numbers_are_classes(values, meaning):
    assert meaning_of(Column("y", values.astype(float))) == meaning
    assert meaning_of(words("y", "a", "b")) == "classification"


def test_what_never_changes_has_a_deviation_of_one():
    assert deviation_of(np.array([1.0, 3.0])) == 1.0
    assert deviation_of(np.array([1.0, 5.0])) == 2.0
    assert deviation_of(np.zeros(3)) == 1.0
    assert deviation_of(np.array([0.0, 4e-12])) == 2e-12
    assert deviation_of(np.array([0.0, 2e-15])) == 1e-15  # small units: judged beside the largest value alone
    assert deviation_of(1e9 + np.array([0.0, 1e-4])) == 1.0  # less than 1e-12 of the largest


def learnt(column, rows=None):
    own = DataTable("t", [column, Column("y", np.zeros(len(column)))])
    return learn_inputs(own, (Target("y"),), np.arange(len(column)) if rows is None else rows).columns[0]


def test_a_number_is_learnt_from_the_training_rows_alone():
    column = Column("a", np.array([1.0, np.nan, 2.0, 6.0, np.nan, 100.0]))
    assert learnt(column, np.arange(4)) == NumberInput("a", 2.0, 2.75, np.array([1, 2, 2, 6.0]).std(), True)
    assert learnt(column, np.array([0, 2])) == NumberInput("a", 1.5, 1.5, 0.5, False)
    with pytest.raises(KoopsimError, match="'a' is empty in all training rows"):
        learnt(column, np.array([1, 4]))
    with pytest.raises(KoopsimError, match="'a' is infinite in row 2"):
        learnt(Column("a", np.array([1.0, np.inf])))


def test_how_many_words_a_category_may_have(monkeypatch):
    def category(different, rows):
        return learnt(words("c", *(f"w{i % different:04d}" for i in range(rows))))

    assert len(category(20, 20).words) == 20  # few: whatever the rows
    assert len(category(21, 42).words) == 21
    with pytest.raises(KoopsimError, match="21 different words in 41 rows, such as 'w0000'"):
        category(21, 41)
    monkeypatch.setattr(table_learning, "MOST_WORDS", 30)
    assert len(category(30, 300).words) == 30
    with pytest.raises(KoopsimError, match="31 different words"):
        category(31, 300)
    assert learnt(words("c", "b", None, "a")) == CategoryInput("c", ("a", "b"), True)


def classes(*said):
    own = DataTable("t", [words("y", *said)])
    return learn_targets(own, ["y"], None, np.arange(len(said)))[0].classes


def test_how_many_classes_a_target_may_have(monkeypatch):
    assert classes("b", "a", "b", "a") == ("a", "b")
    with pytest.raises(KoopsimError, match="has 2 classes in 3 rows; expected at least two rows of each"):
        classes("b", "a", "b")
    monkeypatch.setattr(table_learning, "MOST_WORDS", 2)
    assert classes("b", "a", "b", "a") == ("a", "b")
    with pytest.raises(KoopsimError, match="has 3 classes in 6 rows"):
        classes("a", "b", "c", "a", "b", "c")


def test_targets_that_are_numbers():
    own = DataTable("t", [Column("y", np.array([1.0, 3.0, 9.0])), words("w", "a", "b", "a"), Column("z", np.ones(3))])
    found = learn_targets(own, ["y", "z"], "regression", np.array([0, 1]))
    assert found == (Target("y", None, 2.0, 1.0), Target("z", None, 1.0, 1.0))
    assert found[0].encode(own["y"], "t").tolist() == [-1.0, 1.0, 7.0]
    for names, why in ((["w"], "the target 'w' holds words; regression foretells numbers"), (["q"], "no column 'q'")):
        with pytest.raises(KoopsimError, match=why):
            learn_targets(own, names, "regression", np.arange(3))
    with pytest.raises(KoopsimError, match="holds words; the model foretells a number"):
        found[0].encode(own["w"], "t")
    with pytest.raises(KoopsimError, match="2 of 3 rows have no 'y', the target; the first is row 2"):
        found[0].encode(Column("y", np.array([1.0, np.nan, np.nan])), "t")
    with pytest.raises(KoopsimError, match="infinite in row 3"):
        found[0].encode(Column("y", np.array([1.0, 2.0, -np.inf])), "t")


def test_widths_and_places():
    inputs = TableInputs((NumberInput("a", 0.0, 0.0, 1.0, False), CategoryInput("c", ("u", "v"), False),
                          NumberInput("b", 0.0, 0.0, 1.0, True)), (Target("y", ("p", "q", "r")),))  # fmt: skip
    assert (inputs.width, inputs.outputs, inputs.meaning) == (5, 3, "classification")
    assert inputs.blocks == {"a": slice(0, 1), "c": slice(1, 3), "b": slice(3, 5)}
    assert inputs.missing() == {"b": "median 0, and a flag"}
    b = Column("b", np.array([1, np.nan, 2]))
    own = DataTable("t", [words("c", "v", None, "u"), Column("a", np.arange(3.0)), b])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inputs.encode(own).tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1], [2, 1, 0, 2, 0]]
    with pytest.raises(KoopsimError, match=r"has no column 'a' and 1 more, which .* it has: c\."):
        inputs.encode(own.without(["a", "b"]))
    many = DataTable("m", [Column(f"x{i}", np.zeros(1)) for i in range(9)])
    with pytest.raises(KoopsimError, match=r"x6, x7, \.\.\.\.$"):
        inputs.encode(many)
    eight = DataTable("m", [Column(f"x{i}", np.zeros(1)) for i in range(8)])
    with pytest.raises(KoopsimError, match=r"x6, x7\.$"):
        inputs.encode(eight)


@pytest.mark.parametrize("deviation", [0.0, -1.0])
def test_a_description_that_cannot_be(deviation):
    good = TableInputs((NumberInput("a", 0.0, 0.0, 1.0, False),), (Target("y", None, 0.0, 0.5),))
    assert TableInputs.from_dict(good.as_dict(), "f") == good
    bad = TableInputs(good.columns, (Target("y", None, 0.0, deviation),))
    for wrong, why in ((bad.as_dict(), "'deviation of y' is"), (good.as_dict() | {"columns": []}, "names no columns")):
        with pytest.raises(KoopsimError, match=f"^f: .*{why}"):
            TableInputs.from_dict(wrong, "f")
