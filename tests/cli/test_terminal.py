"""Tables on a terminal: a table where it fits, row by row where it does not, and nothing cut off either way."""

import pytest

from koopsim.cli.terminal import records, show_table

HEAD = ["work", "ours", "against", "faster", "ms"]
ROWS = [
    ["train step, copy memory T=500, batch 20", "copy/sim-single", "copy/deq\n14 solver steps", "32.50x", "0.47"],
    ["", "copy/sim-two", "copy/deq\n14 solver steps", "30.10x", "0.51"],
]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    show_table("Side by side: times faster = the other's median / ours", HEAD, ROWS, words=3, note="A note.")
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    flat = " ".join(said.split())
    for cell in ("copy/sim-single", "copy/sim-two", "32.50x", "30.10x", "0.47", "A note."):
        assert cell in flat


def test_a_work_is_said_once():
    lines = records("Speed", HEAD, ROWS, 3, 60)
    assert sum("train step" in line for line in lines) == 1
    assert "    faster 32.50x · ms 0.47" in lines


def test_brackets_are_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_table("Title", ["a", "b"], [["[bold]x", "1"]])
    assert "[bold]x" in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80])
def test_bench_reads_on_a_narrow_terminal(width, capsys, monkeypatch):
    from koopsim.cli import main

    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["bench", "edmd", "--quick"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
