"""Delimited text, cell by cell: names or none, chunks with the lines they end at, and how much a row takes."""

import math
import os

import pytest

from koopsim.datasets import delimited
from koopsim.datasets.delimited import Chunk, Delimited, comma_number, is_missing, is_number
from koopsim.errors import KoopsimError


def written(folder, text, name="a.csv"):
    (folder / name).write_text(text)
    return Delimited(folder / name)


def test_a_row_takes_its_letters_and_what_is_between_them():
    assert Chunk([["ab", "c"], ["", "defg"]], [1, 2]).bytes_a_row == (2 + 1 + 1 + 1 + 0 + 1 + 4 + 1) / 2


@pytest.mark.parametrize(
    ("cell", "missing", "number"),
    [("1.5", False, True), (" 2 ", False, True), ("x", False, False), ("", True, False), ("  ", True, False),
     (" NA ", True, True), ("nan", True, True), ("None", True, True), ("1,5", False, False)],
)  # fmt: skip
def test_what_a_cell_is(cell, missing, number):
    assert (is_missing(cell), is_number(cell)) == (missing, number)


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("a, b\n1,2\n", ("a", "b"), [["1", "2"]]),
        ("1,2\n3,4\n", None, [["1", "2"], ["3", "4"]]),
        ("a,2019\n3,4\n", ("a", "2019"), [["3", "4"]]),  # below the word a number: a year is a name too
        ("a,2019\n,4\n3,4\n", ("a", "2019"), [["", "4"], ["3", "4"]]),
        ("town,size,2019\nBonn,3,4\n", ("town", "size", "2019"), [["Bonn", "3", "4"]]),
        ("a,2\nb,4\n", None, [["a", "2"], ["b", "4"]]),  # words with words below them: it is a row
        ("Na,K,null\n1,2,3\n", ("Na", "K", "null"), [["1", "2", "3"]]),
        ("none,kind\n1,x\n", ("none", "kind"), [["1", "x"]]),
        ("nan,nan\n1,2\n", None, [["nan", "nan"], ["1", "2"]]),  # of numbers alone, some of them missing
        ("nan,1\n1,2\n", None, [["nan", "1"], ["1", "2"]]),
        ("a,b,\n1,2,\n3,,\n", ("a", "b"), [["1", "2"], ["3", ""]]),  # every line ends in a comma
        ("1,2,,\n3,4, ,\n", None, [["1", "2"], ["3", "4"]]),
        ("1,2\n3,\n", None, [["1", "2"], ["3", ""]]),
        ("1,5;2,25\n-3;4,0\n", None, [["1,5", "2,25"], ["-3", "4,0"]]),  # commas of numbers decide nothing
        ("a,\n1,2\n", ("a", ""), [["1", "2"]]),
        ("a;b\n1;2\n", ("a", "b"), [["1", "2"]]),
        ("a;b,c\n1;2,3\n", ("a;b", "c"), [["1;2", "3"]]),  # a comma anywhere in the first line decides
        ("a;b\n1;2,3\n", ("a", "b"), [["1", "2,3"]]),
        ("Bonn;1,5;2\nKoeln;2,5;3\n", None, [["Bonn", "1,5", "2"], ["Koeln", "2,5", "3"]]),
        ("2024-01-01;1,5\n", None, [["2024-01-01", "1,5"]]),
        ('"temp, C";"x"\n1,5;2\n', ("temp, C", "x"), [["1,5", "2"]]),  # nor do those between quotes
        ('"a;b",c\n1,2\n', ("a;b", "c"), [["1", "2"]]),
        ("x\n\n \n5\n", ("x",), [["5"]]),
    ],
)
def test_names_and_rows(tmp_path, text, names, rows):
    found = written(tmp_path, text)
    assert found.names == names
    assert found.width == len(rows[0])
    assert found.size == len(text)
    assert [row for chunk in found.chunks() for row in chunk.rows] == rows


def test_chunks_are_as_long_as_they_may_be_and_know_their_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "ROWS", 2)
    found = written(tmp_path, "a\n1\n\n2\n3\n4\n5\n")
    assert [(chunk.rows, chunk.lines) for chunk in found.chunks()] == [
        ([["1"], ["2"]], [2, 4]), ([["3"], ["4"]], [5, 6]), ([["5"]], [7])]  # fmt: skip
    even = written(tmp_path, "1\n2\n")
    assert [chunk.lines for chunk in even.chunks()] == [[1, 2]]


def test_lines_that_do_not_fit(tmp_path):
    with pytest.raises(KoopsimError, match=r"line 3 has 3 values; the lines before have 2"):
        list(written(tmp_path, "a,b\n1,2\n1,2,3\n").chunks())
    with pytest.raises(KoopsimError, match=r"two columns called 'b'"):
        written(tmp_path, "a,b,b\n1,2,3\n")
    with pytest.raises(KoopsimError, match="is empty: there are no numbers or words"):
        written(tmp_path, " \n\n")
    assert written(tmp_path, "1,1\n").names is None  # numbers may be the same
    assert written(tmp_path, "a,b\tc\n1,2\t3\n", "a.TSV").names == ("a,b", "c")


def test_an_empty_column_at_the_end_is_none_only_where_all_of_it_is(tmp_path):
    text = "a,\n" + "1,\n" * 30 + "2,x\n"
    found = written(tmp_path, text)  # beyond the rows that are looked at first
    assert (found.width, found.names) == (2, ("a", ""))
    with pytest.raises(KoopsimError, match="line 3 has 2 values; the lines before have 3"):
        list(written(tmp_path, "a,b,\n1,2,\n3,4\n").chunks())


def test_a_row_is_found_again_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "ROWS", 2)
    found = written(tmp_path, "a\n1\n\n2\n3\n4\n5\n")
    assert [found.line_of(row) for row in range(5)] == [2, 4, 5, 6, 7]
    with pytest.raises(IndexError):
        found.line_of(5)


def test_what_is_no_plain_file_is_closed_again(tmp_path, monkeypatch):
    opened, closed, own = [], [], (os.open, os.close)
    monkeypatch.setattr(os, "open", lambda *given: opened.append(own[0](*given)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda handle: closed.append(handle) or own[1](handle))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(KoopsimError, match="a pipe"):
        Delimited(tmp_path / "pipe.csv")
    assert len(opened) == 1
    assert closed == opened


def test_text_that_is_no_utf8_names_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 7)
    rows = "".join(f"{i},Müße\n" for i in range(3000)).encode()
    for before in (0, 5, 2999):
        at = rows.index(f"{before},".encode())
        (tmp_path / "l.csv").write_bytes(b"a,town\n" + rows[:at] + "7,Köln\n".encode("latin-1") + rows[at:])
        with pytest.raises(KoopsimError, match=rf"line {before + 2} is no UTF-8 \(byte 0xf6\); save it as UTF-8"):
            list(Delimited(tmp_path / "l.csv").chunks())
    for kind in ("utf-16", "utf-16-le", "utf-32"):
        (tmp_path / "u.csv").write_bytes("a,b\n1,2\n".encode(kind))
        with pytest.raises(KoopsimError, match="line 1 is no UTF-8: the file is UTF-16, or no text"):
            Delimited(tmp_path / "u.csv")


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1,5", 1.5), ("-0,25", -0.25), (" +3 ", 3.0), (",5", 0.5), ("2,", 2.0), ("1,5e-3", 0.0015), ("1.5", None),
     ("1.234,5", None), ("1,234,5", None), (",", None), ("x", None), ("1_2", None),
     ("inf", math.inf)],
)  # fmt: skip
def test_a_decimal_comma(cell, value):
    if value is None:
        with pytest.raises(ValueError, match=r"has a point|could not convert|is a word"):
            comma_number(cell)
    else:
        assert comma_number(cell) == value
    assert math.isnan(comma_number("NA"))
