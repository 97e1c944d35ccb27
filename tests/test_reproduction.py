"""Which runs make which table, and that what is done is never done again."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

import koopsim
from koopsim import reproduction
from koopsim.cli import main
from koopsim.config import ClassificationConfig
from koopsim.errors import KoopsimError
from koopsim.reproduction import Wanted, carry_out, plan
from koopsim.runs import RunDirectory
from koopsim.training import Session

HERE = Session(torch.device("cpu"))


def names(jobs):
    return [job.folder.name for job in jobs]


def test_table_two_is_twelve_rows_of_three_seeds(tmp_path):
    jobs = plan(Wanted(("table2",), tmp_path))
    assert len(jobs) == 36
    assert len({job.name for job in jobs}) == 12
    assert {job.run.seed for job in jobs} == {0, 1, 2}


def test_a_figure_needs_the_runs_of_its_table_once(tmp_path):
    assert names(plan(Wanted(("table1", "figure4"), tmp_path, only=("copy",)))) == names(
        plan(Wanted(("table1",), tmp_path))
    )
    assert names(plan(Wanted(("figure4",), tmp_path))) == names(plan(Wanted(("table1",), tmp_path)))
    assert names(plan(Wanted(("figure5",), tmp_path))) == names(plan(Wanted(("table3",), tmp_path)))
    assert plan(Wanted(("figure1", "figure2", "figure3"), tmp_path)) == []


def test_a_name_that_meant_another_figure_says_so(tmp_path, capsys):
    """Before 0.2 figure3 was copy memory's curves, figure4 the pictures."""
    dry = ["--dry-run", "--json", "--device", "cpu", "--out", str(tmp_path / "o")]
    assert main(["reproduce", "figure3", *dry]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"runs": [], "files": []}
    assert "copy memory's curves, figure3 before 0.2, are figure4" in said.err
    assert main(["reproduce", "figure4", *dry]) == 0
    said = capsys.readouterr()
    assert {run["name"].split("/")[0] for run in json.loads(said.out)["runs"]} == {"copy"}
    assert "the pictures, figure4 before 0.2, are figure5" in said.err
    assert main(["reproduce", "figure5", *dry]) == 0
    assert "before 0.2" not in capsys.readouterr().err


def test_all_of_it_at_the_smoke_scale(tmp_path):
    jobs = plan(Wanted(("all",), tmp_path, "smoke"))
    assert {job.name.split("/")[0] for job in jobs} == {"copy", "digits", "image"}
    assert len(set(names(jobs))) == len(jobs) == 15
    assert sum(job.left for job in jobs) < 240


def test_the_time_is_known_only_where_it_was_measured(tmp_path):
    assert all(job.seconds is None for job in plan(Wanted(tuple(["table1"]), tmp_path), cuda=False))
    assert all(job.seconds for job in plan(Wanted(tuple(["table1"]), tmp_path), cuda=True))


def test_only_keeps_what_it_names(tmp_path):
    assert names(plan(Wanted(("all",), tmp_path, "smoke", only=("mondeq",)))) == [
        "digits-mondeq-single-seed0",
        "digits-mondeq-multi-seed0",
    ]
    with pytest.raises(KoopsimError, match="None of these has"):
        plan(Wanted(("table1",), tmp_path, only=("vgg",)))
    with pytest.raises(KoopsimError, match="Did you mean 'table1'"):
        plan(Wanted(("tabel1",), tmp_path))


@pytest.fixture
def tiny(monkeypatch):
    """Every digits run cut to seconds."""
    whole = reproduction.run_of

    def cut(name, scale="paper"):
        run = whole(name, scale)
        return replace(
            run, task=ClassificationConfig("digits", train=80, test=20), recipe=replace(run.recipe, epochs=2)
        )

    monkeypatch.setattr(reproduction, "run_of", cut)


def test_what_is_done_is_kept_and_what_was_cut_off_goes_on(tiny, tmp_path):
    first, second = plan(Wanted(("table2",), tmp_path, "smoke", only=("digits/sim",)))
    assert first.state == "new"
    carry_out(first, HERE)
    before = first.folder.joinpath("result.json").stat().st_mtime_ns
    RunDirectory.create(second.folder, second.run, second.name)  # begun, and killed before its first checkpoint
    jobs = plan(Wanted(("table2",), tmp_path, "smoke", only=("digits/sim",)))
    assert [job.state for job in jobs] == ["done", "begun"]
    for job in jobs:
        carry_out(job, HERE)
    assert first.folder.joinpath("result.json").stat().st_mtime_ns == before
    assert (second.folder / "result.json").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tiny, tmp_path):
    job = plan(Wanted(("table2",), tmp_path, "smoke", only=("sim-single",)))[0]
    RunDirectory.create(job.folder, replace(job.run, seed=9), job.name)
    begun = plan(Wanted(("table2",), tmp_path, "smoke", only=("sim-single",)))[0]
    with pytest.raises(KoopsimError, match="holds another run"):
        carry_out(begun, HERE)


def test_the_command_trains_reports_and_says_so_as_json(tiny, tmp_path, capsys):
    arguments = ["reproduce", "table2", "figure2", "--scale", "smoke", "--only", "sim-single", "--device", "cpu"]
    assert main([*arguments, "--out", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in said["runs"]] == ["digits/sim-single"]
    assert "SIM (single)" in (tmp_path / "report" / "table2.md").read_text()
    with Image.open(tmp_path / "report" / "figure2.png") as figure:
        assert figure.width > 1000


def test_data_that_is_not_here_is_said_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path / "none"))
    assert main(["reproduce", "table2", "--only", "mnist/sim", "--device", "cpu", "--out", str(tmp_path / "o")]) == 2
    assert "koopsim data get mnist" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    assert main(["reproduce", "all", "--scale", "smoke", "--dry-run", "--out", str(tmp_path / "o")]) == 0
    assert "15 of 15 runs" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_search_comes_first_when_asked_for(tiny, tmp_path, capsys, monkeypatch):
    whole = reproduction.space_of
    monkeypatch.setattr(reproduction, "space_of", lambda run, scale: replace(whole(run, scale), trials=2, max_t=2))
    arguments = ["reproduce", "table2", "--scale", "smoke", "--only", "sim-single", "--device", "cpu", "--search"]
    assert main([*arguments, "--out", str(tmp_path), "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["digits/sim-single"]
    found = json.loads((tmp_path / "searches" / "digits-sim-single" / "result.json").read_text())
    assert found["trials"] == 2
    kept = json.loads((tmp_path / "runs" / "digits-sim-single-seed0" / "config.json").read_text())["run"]
    assert kept["recipe"] == found["best"]["run"]["recipe"]


def test_what_the_verbs_do_is_a_function_for_a_notebook(tiny, tmp_path, capsys):
    files = koopsim.reproduce("figure2", out=tmp_path / "paper", scale="smoke", device="cpu")
    assert {file.name for file in files} >= {"figure2.png"}
    run = reproduction.run_of("digits/sim-single")
    result = koopsim.train(run, tmp_path / "run", device="cpu", progress=False)
    again = koopsim.train(run, tmp_path / "run", device="cpu", progress=False)  # it is there
    assert again == result
    with pytest.raises(KoopsimError, match="another run"):
        koopsim.train(replace(run, seed=5), tmp_path / "run", device="cpu", progress=False)
    found = koopsim.search(run, tmp_path / "search", trials=2, scale="smoke", device="cpu", progress=False)
    assert found["trials"] == 2
    assert koopsim.search(run, tmp_path / "search", trials=2, scale="smoke", device="cpu", progress=False) == found
    assert capsys.readouterr().out == ""
