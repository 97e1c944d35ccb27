"""koopsim report from the command line."""

import json

import pytest
from made_runs import made, made_search

from koopsim.cli import main
from koopsim.cli.report import ON_TERMINAL, show
from koopsim.report import Findings, classification_table, collect, copy_memory_table
from koopsim.report.build import compose
from koopsim.report.curves import MOST_POINTS, curve_charts, thinned


@pytest.fixture
def folder(tmp_path):
    for i, loss in enumerate((1e-9, 3e-9)):
        (tmp_path / f"single-{i}.json").write_text(json.dumps(made(loss=loss, seed=i)))
    run = tmp_path / "deq"
    run.mkdir()
    (run / "result.json").write_text(json.dumps(made("copy/deq", loss=2e-9)))
    (run / "config.json").write_text("{}")
    (tmp_path / "search.kept.json").write_text(json.dumps(made_search(0.1, 0.2)))
    return tmp_path


def test_published_stands_beside_ours_with_the_difference(folder):
    results, skipped = collect([folder])
    table = copy_memory_table(results)
    assert skipped == []
    assert table is not None
    assert list(table.head[3:6]) == ["test loss", "paper", "diff"]
    rows = {row[0]: row for row in table.rows}
    assert rows["SIM (single)"][3:6] == ["2.00e-09 ± 1.41e-09 (n=2)", "7.03e-09", "−5.0e-09"]
    assert rows["DEQ"][3:6] == ["2.00e-09", "2.24e-09", "−2.4e-10"]
    assert "0.0400 at T = 500" in table.note
    assert table.markdown().count("\n") == 5


def test_only_the_papers_recipe_and_size_stand_beside_the_paper():
    runs = [made("cifar10/sim-single", seed=s, accuracy=0.79 + 0.01 * s) for s in range(2)]
    small = made("svhn/sim-single")
    small["run"]["task"]["train"] = 100
    table = classification_table([*runs, made("cifar10/sim-single:best", accuracy=0.87), small])
    assert table is not None
    shown = {(row[0], row[1]): row[3:6] for row in table.rows}
    assert shown["CIFAR-10", "SIM (single)"] == ["79.50 ± 0.71 (n=2)", "79.4 ± 0.2", "+0.10"]
    assert shown["CIFAR-10", "SIM (single) best"] == ["87.00", "-", "-"]
    assert shown["SVHN", "SIM (single)"] == ["75.00", "-", "-"]
    assert copy_memory_table([made(horizon=500), made("copy/deq", scale="smoke")]).rows[0][4] == "-"  # pyright: ignore


def test_rows_of_our_own_are_rows_of_their_own():
    """Another map, or the same one trained for longer, is never averaged with the paper's row."""
    own = [made("cifar10/sim-single", accuracy=0.8), made("cifar10/mondeq-multi", accuracy=0.7)]
    own[0]["run"]["model"]["projector"] = True
    own[1]["run"]["recipe"]["epochs"] = 40
    own.append(made("cifar10/mdeq", accuracy=0.6))
    own[2]["run"]["model"]["gradient"] = "phantom"
    own.append(made("cifar10/mondeq-multi", accuracy=0.5))
    own[3]["run"]["model"]["scale"] = "free"
    usual = [made(f"cifar10/{kind}") for kind in ("sim-single", "mondeq-multi", "mdeq")]
    table = classification_table([*own, *usual])
    assert table is not None
    shown = {row[1]: (row[3], row[4]) for row in table.rows}
    assert shown == {
        "SIM (single)": ("75.00", "79.4 ± 0.2"), "SIM (single), V U = I": ("80.00", "-"),
        "monDEQ (multi)": ("75.00", "72.0 ± 0.3"), "monDEQ (multi), 40 epochs": ("70.00", "72.0 ± 0.3"),
        "monDEQ (multi), free scale": ("50.00", "-"),
        "multiscale DEQ": ("75.00", "-"), "multiscale DEQ, phantom gradient": ("60.00", "-"),
    }  # fmt: skip


def test_table_1_says_how_many_solves_did_not_converge():
    deq = made("copy/deq", unconverged=0.02)
    for line, share in zip(deq["metrics"], (0.3, 0.0, 0.0), strict=True):
        line["unconverged"] = share
    table = copy_memory_table([deq, made("copy/sim-single")])
    assert table is not None
    assert {row[0]: row[-1] for row in table.rows} == {"DEQ": "10.0% / 2.0%", "SIM (single)": "-"}


def test_a_deq_with_another_solver_has_a_row_of_its_own():
    """Broyden's solves converge where the preset's do not: their losses are never averaged."""
    seeds = [made("copy/deq", seed=seed, loss=3e-7) for seed in range(2)]
    for run in seeds:
        run["run"]["model"]["forward"]["method"] = "broyden"
    table = copy_memory_table([made("copy/deq", loss=1e-7), *seeds])
    assert table is not None
    assert [(row[0], row[3]) for row in table.rows] == [
        ("DEQ", "1.00e-07"),
        ("DEQ, Broyden", "3.00e-07 ± 0.00e+00 (n=2)"),
    ]


def test_times_in_table_1_are_of_one_kind_of_machine():
    """Seeds that were trained on a processor count for the loss; beside a GPU's their seconds say nothing."""
    runs = [made(seed=s, seconds=60.0, loss=1e-9 * (s + 1)) for s in range(2)]
    runs += [made(seed=2, gpu=None, seconds=900.0, loss=3e-9)]
    table = copy_memory_table(runs)
    assert table is not None
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert (row["test loss"], row["time"]) == ("2.00e-09 ± 1.00e-09 (n=3)", "60 s")


def test_the_pace_in_table_2_is_the_fastest_seeds():
    runs = [made("cifar10/mondeq-single", seed=s, seconds=t) for s, t in enumerate((90.0, 24.0, 60.0))]  # 12 epochs
    table = classification_table(runs)
    assert table is not None
    assert table.rows[0][table.head.index("s/epoch")] == "2.00"


def test_broken_and_unfinished_runs_are_listed_not_fatal(folder, capsys):
    (folder / "bad.json").write_text("{")
    (folder / "other.json").write_text("[1]")
    (folder / "going").mkdir()
    (folder / "going" / "config.json").write_text("{}")
    out = folder / "out"
    assert main(["report", str(folder), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["searches"]) == (3, 1)
    assert len(said["skipped"]) == 3
    assert said["page"] == str(out / "index.html")
    names = {file.split("/")[-1] for file in said["files"]}
    assert names == {path.name for path in out.iterdir()} - {".koopsim"}
    assert {f"table1.{form}" for form in ("md", "csv", "tex")} <= names
    assert {"index.html", "figure4.svg", "figure4.png", "speed.svg", "searches.tex", "runs.md"} <= names
    for file in out.iterdir():
        assert file.stat().st_size > 100
    assert (out / "table1.md").read_text().startswith("| model |")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_terminal_tables_fit(capsys, monkeypatch, width):
    runs = [made(loss=loss, seed=i) for i, loss in enumerate((1e-9, 3e-9))]
    runs += [made("copy/deq"), *(made("cifar10/mondeq-multi", seed=s, accuracy=0.7 + s / 50) for s in range(3))]
    content = compose(Findings([run | {"path": "result.json"} for run in runs]))
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ON_TERMINAL:
        if name in content.tables:
            show(content.tables[name])
    said = capsys.readouterr().out
    assert max(map(len, said.split("\n"))) <= width
    assert "…" not in said
    assert "2.00e-09 ± 1.41e-09 (n=2)" in said
    assert "72.00 ± 2.00 (n=3)  72.0 ± 0.3  +0.00" in said
    assert ("Not shown here" in said) == (width < 200)


def test_it_says_what_it_wrote(folder, capsys):
    (folder / "bad.json").write_text("{")
    assert main(["report", str(folder), "--out", str(folder / "out")]) == 0
    said = capsys.readouterr()
    assert f"3 runs, 1 search, on one page: {folder / 'out' / 'index.html'}" in said.out
    assert "table1.md/csv/tex" in said.out
    assert "figure4.png/svg" in said.out
    assert f"skipped {folder / 'bad.json'}: cannot be read: Expecting" in said.err


def test_nothing_to_report_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "No finished runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_said(folder, capsys):
    (folder / "file").write_text("")
    assert main(["report", str(folder / "deq"), "--out", str(folder / "file" / "out")]) == 2
    assert "Cannot make the folder" in capsys.readouterr().err


def test_curves_keep_their_ends_and_their_order():
    lines = list(range(5 * MOST_POINTS + 3))
    kept = thinned(lines)
    assert len(kept) == MOST_POINTS
    assert (kept[0], kept[-1]) == (lines[0], lines[-1])
    assert list(kept) == sorted(set(kept))
    assert thinned([1, 2]) == [1, 2]


def test_a_curve_is_what_the_run_wrote():
    (chart,) = curve_charts([made(), made("copy/deq")])
    assert chart.title == "Copy memory, T = 500"
    assert chart.rule == (0.04, "without memory")
    assert [s.name for s in chart.series] == ["SIM (single)", "DEQ"]
    assert chart.series[0].points == [[1, 2.0, 0.1], [2, 4.0, 0.01], [3, 6.0, 0.001]]
