"""Tables from files: what is a number, what a word, what is missing, and one sentence for what is neither."""

import os
import tracemalloc
import warnings

import numpy as np
import pytest

from koopsim.datasets import delimited, table
from koopsim.datasets.columns import Column, DataTable, number_text, row_or_line
from koopsim.datasets.row_splits import TEST, TRAIN, VALID, split_by_column, split_rows
from koopsim.datasets.table import read_table
from koopsim.errors import KoopsimError
from koopsim.files import waiting

TEXT = "age,town,income,ok\n30,Bonn,1.5,yes\n,Kiel,2e3,no\n41,,nan,yes\n7,Bonn,-1,NA\n"


def same(found: DataTable) -> None:
    assert found.names == ("age", "town", "income", "ok")
    np.testing.assert_array_equal(found["age"].values, [30, np.nan, 41, 7])
    assert found["town"].texts() == ["Bonn", "Kiel", None, "Bonn"]
    np.testing.assert_array_equal(found["income"].values, [1.5, 2000, np.nan, -1])
    assert found["ok"].texts() == ["yes", "no", "yes", None]
    assert not found["age"].is_text
    assert found["ok"].is_text


def test_numbers_words_and_what_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "b.csv").write_text(TEXT.replace(",", ";"))
    (tmp_path / "c.tsv").write_text("\ufeff" + TEXT.replace(",", "\t").replace("\n", "\r\n"))
    for name in ("a.csv", "b.csv", "c.tsv"):
        same(read_table(tmp_path / name))


def test_parquet_and_arrow_say_the_same(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    columns = {
        "age": [30, None, 41, 7],
        "town": ["Bonn", "Kiel", None, "Bonn"],
        "income": [1.5, 2e3, float("nan"), -1.0],
        "ok": pyarrow.array(["yes", "no", "yes", None]).dictionary_encode(),
    }
    given = pyarrow.table(columns)
    parquet.write_table(given, tmp_path / "a.parquet")
    feather.write_feather(given, tmp_path / "a.feather")
    feather.write_feather(given, tmp_path / "a.arrow", compression="uncompressed")
    for name in ("a.parquet", "a.feather", "a.arrow"):
        same(read_table(tmp_path / name))
    days = pyarrow.table({"day": np.array(["2024-01-02", "2024-01-01"], "datetime64[s]"), "b": [True, False]})
    parquet.write_table(days, tmp_path / "days.parquet")
    found = read_table(tmp_path / "days.parquet")
    np.testing.assert_array_equal(found["day"].times("days"), [86400, 0])
    np.testing.assert_array_equal(found["b"].values, [1, 0])
    parquet.write_table(pyarrow.table({"x": [[1, 2], [3]]}), tmp_path / "lists.parquet")
    with pytest.raises(KoopsimError, match=r"'x' holds list.*expected numbers"):
        read_table(tmp_path / "lists.parquet")


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(6.0).reshape(3, 2), y=np.array(["a", "b", "a"]))
    found = read_table(tmp_path / "a.npz")
    assert found.names == ("x0", "x1", "y")
    np.testing.assert_array_equal(found["x1"].values, [1, 3, 5])
    assert found["y"].texts() == ["a", "b", "a"]


def test_a_number_with_an_underscore_is_a_word(tmp_path):
    """Python reads 1_2 and 12 as one number; in a table they are two names."""
    for delimiter in ",;":
        text = "\n".join(delimiter.join(row) for row in (("code", "y"), ("1_2", "3"), ("12", "4"), ("", "5")))
        (tmp_path / "t.csv").write_text(text)
        column = read_table(tmp_path / "t.csv")["code"]
        assert column.texts() == ["1_2", "12", None]
        assert column.is_text


def test_a_word_late_in_a_column_makes_all_of_it_words(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "ROWS", 10)
    (tmp_path / "a.csv").write_text("n,code\n" + "".join(f"{i},0{i}\n" for i in range(50)) + "50,x\n")
    with pytest.warns(UserWarning, match="line 52: 'x' is no number, as 50 of the 51 cells of column 'code' are"):
        found = read_table(tmp_path / "a.csv")
    assert found["code"].texts() == [f"0{i}" for i in range(50)] + ["x"]
    np.testing.assert_array_equal(found["n"].values, np.arange(51))


def odd(folder, *cells, among=100):
    """A column of numbers with some other cells after the fourth of them."""
    numbers = [f"{i}.5" for i in range(among)]
    (folder / "o.csv").write_text("n\n" + "".join(f"{cell}\n" for cell in [*numbers[:4], *cells, *numbers[4:]]))
    return folder / "o.csv"


def test_a_slip_among_many_numbers_is_said(tmp_path):
    for cell, seen in (("abc", "abc"), ('"12,5"', "12,5"), ("1.234.5", "1.234.5")):
        with pytest.warns(UserWarning, match=f"o.csv, line 6: '{seen}' is no number, as 100 of the 101 cells") as said:
            assert read_table(odd(tmp_path, cell))["n"].is_text
        assert len(said) == 1
        assert "column 'n' are, so that all of it is taken as words; correct it, or leave" in str(said[0].message)
    with pytest.warns(UserWarning, match="line 7: 'y' is no number, as 100 of the 105 cells"):
        read_table(odd(tmp_path, "NA", *["y"] * 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(odd(tmp_path, *["y"] * 6))["n"].is_text  # too many to be slips
        assert read_table(odd(tmp_path, "y", among=19))["n"].is_text  # too few numbers to say so
        assert not read_table(odd(tmp_path, "NA", '""'))["n"].is_text
    with pytest.warns(UserWarning, match="as 20 of the 21 cells"):
        read_table(odd(tmp_path, "y", among=20))


def test_decimal_commas_between_semicolons(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "ROWS", 2)
    (tmp_path / "a.csv").write_text("a;b;c;d\n1;1,5;1,5;x\n2;;2.5;1,5\n3,25;-2e3;3;2\n")
    with pytest.warns(UserWarning, match="column 'c' has numbers with a point and some with a comma, so that") as said:
        found = read_table(tmp_path / "a.csv")
    assert len(said) == 1
    np.testing.assert_array_equal(found["a"].values, [1, 2, 3.25])
    np.testing.assert_array_equal(found["b"].values, [1.5, np.nan, -2000])
    assert found["c"].texts() == ["1,5", "2.5", "3"]  # a point in one, a comma in another
    assert found["d"].is_text
    (tmp_path / "b.csv").write_text('a,b\n1,"1,5"\n2,"2,5"\n')
    assert read_table(tmp_path / "b.csv")["b"].texts() == ["1,5", "2,5"]  # between commas they are words


def test_a_refusal_shows_a_word_and_not_a_number():
    assert Column("c", np.zeros(1, np.int32), ("1.5", "2", "high")).example == "high"
    assert Column("c", np.zeros(1, np.int32), ("1.5", "2")).example == "1.5"


def test_where_a_row_is(tmp_path):
    (tmp_path / "a.csv").write_text("t,n\n1,2\n\n,3\n,4\n")
    assert [row_or_line(tmp_path / "a.csv", row) for row in range(3)] == ["line 2", "line 4", "line 5"]
    assert row_or_line("breast-cancer", 4) == row_or_line(tmp_path / "none.csv", 4) == "row 5"
    with pytest.raises(KoopsimError, match="2 rows have no time in column 't', the first is line 4; every row"):
        read_table(tmp_path / "a.csv")["t"].times(tmp_path / "a.csv")


def test_codes_are_those_that_occur_in_order():
    column = Column("c", np.array([2, 0, -1, 2], np.int32), ("z", "never", "a"))
    codes, words = column.codes()
    assert words == ("a", "z")
    np.testing.assert_array_equal(codes, [0, 1, -1, 0])
    codes, words = Column("n", np.array([3.0, np.nan, 0.5, 3.0])).codes()
    assert words == ("0.5", "3")
    np.testing.assert_array_equal(codes, [1, -1, 0, 1])


def test_a_file_larger_than_memory_is_refused_after_its_first_rows(tmp_path):
    file = tmp_path / "large.csv"
    file.write_text("a,b\n" + "1.5,2.5\n" * 20_000)
    os.truncate(file, 10 * 2**40)  # ten tebibytes, none of them on the disk
    tracemalloc.start()
    with pytest.raises(KoopsimError, match=r"GiB to be in memory.*make it smaller"):
        read_table(file)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_a_long_reading_says_how_far_it_is_and_a_missing_column_is_known_before(tmp_path, monkeypatch, caplog):
    file = tmp_path / "long.csv"
    file.write_text("a,b\n" + "1.5,2.5\n" * 20_000)
    with pytest.raises(KoopsimError, match=r"has no column 'bb'.*'b'"):
        read_table(file, ["bb"])
    assert len(read_table(file, ["b"])) == 20_000
    assert not caplog.messages  # seconds have not passed
    monkeypatch.setattr(waiting, "SECONDS", 0.0)
    monkeypatch.setattr(delimited, "ROWS", 5_000)
    read_table(file)
    said = caplog.messages
    assert [int(line.split(": ")[1].split("%")[0]) // 10 for line in said] == [2, 5, 7]
    assert "to go" in said[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n3\n", "line 3 has 1 values"),
        ("a.csv", "", "empty"),
        ("a.csv", "x,y\n", "2 columns and 0 rows"),
        ("a.csv", "x,x\n1,2\n", "two columns called 'x'"),
        ("a.csv", "x,\xff\n1,2\n", r"line 1 is no UTF-8 \(byte 0xff\); save it as UTF-8"),
        ("a.csv", 'x,y\n1,"' + "z" * 200_000, "cannot be read as CSV"),
        ("a.parquet", "PAR1junkPAR1", "Parquet"),
        ("a.arrow", "ARROW1junk", "Arrow"),
        ("a.npz", "no zip", "npz"),
        ("a.txt", "1", "is no table"),
    ],
)
def test_refusals(tmp_path, name, text, message):
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(KoopsimError, match=message) as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value)


def test_pipes_folders_other_names_and_other_lengths(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    np.savez(tmp_path / "a.npz", x=np.ones(3), y=np.ones(4))
    np.savez(tmp_path / "b.npz", x=np.ones((2, 2)), x1=np.ones(2))
    np.savez(tmp_path / "c.npz", x=np.ones((2, 2, 2)))
    for name, message in [
        ("pipe.csv", "a pipe"), ("folder.csv", "a folder"), ("none.csv", "There is no file"),
        ("a.npz", "different lengths"), ("b.npz", "of one name"), ("c.npz", r"shape \(2, 2, 2\)"),
    ]:  # fmt: skip
        with pytest.raises(KoopsimError, match=message):
            read_table(tmp_path / name)
    (tmp_path / "d.csv").write_text(TEXT)
    with pytest.raises(KoopsimError, match=r"no column .agee.\. Did you mean 'age'"):
        _ = read_table(tmp_path / "d.csv")["agee"]


def test_times_are_numbers_or_dates():
    dates = Column("t", np.array([1, 0], np.int32), ("2024-01-01", "2024-01-01T00:01:00"))
    np.testing.assert_array_equal(dates.times("f"), [60, 0])
    assert dates.looks_like_dates
    assert not Column("t", np.zeros(1, np.int32), ("12-inch",)).looks_like_dates
    with pytest.raises(KoopsimError, match="'soon', which is no time"):
        Column("t", np.zeros(1, np.int32), ("soon",)).times("f")
    with pytest.raises(KoopsimError, match="1 rows have no time"):
        Column("t", np.array([np.nan])).times("f")


# ---------------------------------------------------------------- splits


def test_shares_of_every_class():
    strata = np.repeat([0, 1, 2], [700, 250, 50])
    marks = split_rows(1000, 0.1, 0.2, 3, strata)
    for mark, share in ((TEST, 0.2), (VALID, 0.1), (TRAIN, 0.7)):
        counts = np.bincount(strata[marks == mark])
        np.testing.assert_allclose(counts, np.array([700, 250, 50]) * share, atol=1.01)
    assert (split_rows(1000, 0.1, 0.2, 3, strata) == marks).all()
    assert (split_rows(1000, 0.1, 0.2, 4, strata) != marks).any()
    for n in range(4, 40):
        assert set(split_rows(n, 0.1, 0.2, 0)) == {TRAIN, VALID, TEST}


def test_groups_stay_whole():
    groups = np.random.default_rng(0).integers(0, 40, 2000)
    marks = split_rows(2000, 0.1, 0.2, 1, groups=groups)
    for group in range(40):
        assert len(set(marks[groups == group])) == 1
    assert abs((marks == TEST).mean() - 0.2) < 0.03
    assert abs((marks == VALID).mean() - 0.1) < 0.03
    assert set(split_rows(6, 0.3, 0.3, 0, groups=np.array([0, 0, 1, 1, 2, 2]))) == {TRAIN, VALID, TEST}
    with pytest.raises(KoopsimError, match="2 groups"):
        split_rows(4, 0.1, 0.2, 0, groups=np.array([0, 0, 1, 1]))


def test_a_column_says_it():
    column = Column("part", np.array([0, 1, 2, 0, 0, 0], np.int32), ("Train", "validation", "test"))
    np.testing.assert_array_equal(split_by_column(column, "f", 0.1, 0.2, 0), [0, 1, 2, 0, 0, 0])
    partly = Column("part", np.array([0, 1] * 10, np.int32), ("train", "test"))
    marks = split_by_column(partly, "f", 0.2, 0.2, 0)
    assert ((marks == TEST) == (partly.values == 1)).all()
    assert (marks == VALID).sum() == 2
    with pytest.raises(KoopsimError, match="'part' says 'dev'"):
        split_by_column(Column("part", np.zeros(3, np.int32), ("dev",)), "f", 0.1, 0.1, 0)
    with pytest.raises(KoopsimError, match="nothing at all"):
        split_by_column(Column("part", np.array([0, -1], np.int32), ("train",)), "f", 0.1, 0.1, 0)


def test_all_readers_have_a_name():
    assert set(table.ENDINGS) == {".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz"}


def test_numbers_as_words_of_a_category():
    assert [number_text(v) for v in (3.0, -0.0, 2.5, 1e15, float("inf"))] == [
        "3",
        "0",
        "2.5",
        "1000000000000000.0",
        "inf",
    ]
