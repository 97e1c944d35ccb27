"""Delimited text, cell by cell: names or none, chunks with the lines they end at, and how much a row takes."""

import pytest

from koopsim.datasets import delimited
from koopsim.datasets.delimited import Chunk, Delimited, is_missing, is_number
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
        ("a,2\n3,4\n", None, [["a", "2"], ["3", "4"]]),  # a number in the first line: it is a row
        ("a,\n1,2\n", ("a", ""), [["1", "2"]]),
        ("a;b\n1;2\n", ("a", "b"), [["1", "2"]]),
        ("a;b,c\n1;2,3\n", ("a;b", "c"), [["1;2", "3"]]),  # a comma anywhere in the first line decides
        ("a;b\n1;2,3\n", ("a", "b"), [["1", "2,3"]]),
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
