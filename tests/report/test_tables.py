import csv
import io
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koopsim.report.page import Piece, piece_html
from koopsim.report.tables import Table, difference, spread

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12)
TABLES = st.integers(1, 4).flatmap(
    lambda n: st.builds(
        Table,
        TEXT,
        st.lists(TEXT, min_size=n, max_size=n),
        st.lists(st.lists(TEXT, min_size=n, max_size=n), max_size=4),
        words=st.integers(0, n),
    )
)


class Cells(HTMLParser):
    """The text of every cell, row by row."""

    def __init__(self):
        super().__init__()
        self.rows, self.open = [], False

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.open = True

    def handle_endtag(self, tag):
        self.open = self.open and tag not in ("td", "th")

    def handle_data(self, data):
        if self.open:
            self.rows[-1][-1] += data


def test_spread():
    assert spread([1.5], ".1f") == "1.5"
    assert spread([1.0, 3.0], ".1f") == "2.0 ± 1.4 (n=2)"


@pytest.mark.parametrize(
    ("values", "published", "form", "expected"),
    [
        ([79.0, 80.0], "79.4 ± 0.2", ".2f", "+0.10"),
        ([78.0], "79.4 ± 0.2", ".1f", "−1.4"),
        ([1.11e-9], 7.03e-9, ".1e", "−5.9e-09"),
        ([1.0], "-", ".1f", "-"),
        ([1.0], None, ".1f", "-"),
    ],
)
def test_difference_is_ours_less_the_papers(values, published, form, expected):
    assert difference(values, published, form) == expected


@given(TABLES)
def test_no_cell_is_lost_in_any_form(table):
    cells = [list(row) for row in (table.head, *table.rows)]
    assert list(csv.reader(io.StringIO(table.csv(), newline=""))) == cells
    parser = Cells()
    parser.feed(piece_html(Piece("table", table)))
    assert parser.rows == cells
    lines = table.markdown().split("\n")
    assert len(lines) == len(cells) + 1
    assert all(line.replace(r"\|", "").count("|") == len(table.head) + 1 for line in lines)
    rows = [line for line in table.latex().split("\n") if line.endswith(r"\\")]
    assert len(rows) == len(cells)
    assert all(row.replace(r"\&", "").count("&") == len(table.head) - 1 for row in rows)


def test_latex_says_what_the_table_says():
    table = Table("A_b", ["model", "loss & more"], [["50% #1", "−5.90e-09"], ["x", "1.00 ± 0.10"]], "50%", words=1)
    text = table.latex()
    assert r"\begin{tabular}{lr}" in text
    assert r"\caption{A\_b. 50\%}" in text
    assert r"50\% \#1 & $-5.90 \times 10^{-9}$ \\" in text
    assert r"x & 1.00 $\pm$ 0.10 \\" in text
    assert r"model & loss \& more \\" in text
