"""What is going to be kept is asked for first, in bytes, before anything is made of it."""

import numpy as np
import pytest

from koopsim.datasets import folder, sequence_tables, series, table, table_inputs
from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.folder import PictureList
from koopsim.datasets.table_inputs import CategoryInput, NumberInput, TableInputs, Target
from koopsim.errors import KoopsimError
from koopsim.files import arrow
from koopsim.kinds import OwnColumns


@pytest.fixture
def asked(monkeypatch):
    found = []
    for module in (table, table_inputs, series, sequence_tables, arrow):
        monkeypatch.setattr(module, "require_memory", lambda size, what: found.append((size, what.split("/")[-1])))
    return found


def test_of_a_table_as_text(tmp_path, asked):
    """By its first rows: 8 bytes for each copy of a number, 60 and its letters for each new word."""
    text = "1,ab\n2,ab\n3,c\n4,c\n"
    (tmp_path / "t.csv").write_text(text)
    table.read_table(tmp_path / "t.csv")
    rows = len(text) / 4.5  # bytes of a row: a cell's letters and one more
    words = (2 * 60 + 3) / 4
    assert asked == [(int(rows * (8 * 3 * 2 + words)), "t.csv asks for")]


def test_of_a_series_as_text(tmp_path, asked):
    (tmp_path / "s.csv").write_text("x,y,z\n1,2,3\n4,5,6\n")
    series.read_series(tmp_path / "s.csv")
    assert asked == [(8 * 3 * 2, "s.csv asks for")]


def test_of_typed_files(tmp_path, asked):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    own = pyarrow.table({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]})
    parquet.write_table(own, tmp_path / "p.parquet")
    feather.write_feather(own, str(tmp_path / "f.feather"))
    for file in ("p.parquet", "f.feather"):
        table.read_table(tmp_path / file)
    series.read_series(tmp_path / "p.parquet")
    assert asked == [
        (8 * 3 * 3 * 2, "p.parquet asks for"),
        (3 * (tmp_path / "f.feather").stat().st_size, "f.feather asks for"),
        (16 * 3 * 2, "p.parquet asks for"),
    ]


def test_of_what_a_model_sees(asked):
    inputs = TableInputs((NumberInput("a", 0.0, 0.0, 1.0, True), CategoryInput("c", ("u", "v"), True)), (Target("y"),))
    own = DataTable("t", [Column("a", np.zeros(7)), Column("c", np.zeros(7, np.int32), ("u",))])
    inputs.encode(own)
    assert asked == [(8 * 7 * 5, "t asks for")]


def test_of_a_long_table(asked):
    own = DataTable("t", [Column("t", np.arange(6.0)), Column("a", np.zeros(6)), Column("b", np.zeros(6))])
    sequence_tables.long_table(own, OwnColumns(time="t"))
    assert asked == [(16 * 6 * 2, "t asks for")]


def test_of_pictures(tmp_path, monkeypatch):
    listed = PictureList([tmp_path] * 2, [0, 1], ("a", "b"), (3, 4, 5), None)
    monkeypatch.setattr(folder, "decode", lambda file, channels, size: np.zeros((channels, size[1], size[0])))
    monkeypatch.setattr(folder, "_MOST", 2 * 3 * 4 * 5)
    assert folder._decode_all(listed, tmp_path).shape == (2, 3, 4, 5)
    monkeypatch.setattr(folder, "_MOST", 2 * 3 * 4 * 5 - 1)
    with pytest.raises(KoopsimError, match="2 pictures of 5 x 4 need 0 GiB of memory"):
        folder._decode_all(listed, tmp_path)
