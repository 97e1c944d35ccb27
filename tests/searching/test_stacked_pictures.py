"""Trials of image regression in a stack against the same trials alone, and a search for every picture."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from small_search import CPU, epoch, tiny_run, tiny_search, trained_alone

from koopsim.cli import main
from koopsim.engine import memory
from koopsim.engine.memory import fitting
from koopsim.engine.part import Way
from koopsim.engine.slots import Diverged
from koopsim.engine.stacked import Stacked
from koopsim.report.collect import find
from koopsim.searching import packing
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.searching.space import with_values
from koopsim.tasks import build_task
from koopsim.training import Session

NAMES = ["image/sim-single", "image/sim-two", "image/sim-rff", "image/tancik"]
OWN = [
    {"recipe.learning_rate": 1e-3, "recipe.epochs": 3},
    {"recipe.learning_rate": 1e-2, "recipe.schedule": "step", "recipe.step_size": 1, "recipe.epochs": 2},
    {"recipe.learning_rate": 4e-3, "recipe.schedule": "cosine", "recipe.epochs": 3},
]


def runs_of(name, average=0.0):
    base = with_values(tiny_run(name), {"recipe.average": average})
    runs = [replace(with_values(base, own), seed=seed) for seed, own in enumerate(OWN)]
    if "two" in name or "rff" in name:
        runs = [with_values(r, {"model.fourier.bandwidth": b}) for r, b in zip(runs, (0.1, 0.2, 0.4), strict=True)]
    return runs, build_task(base.task, CPU)


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_in_a_stack_gives_the_numbers_it_gives_alone(name):
    runs, task = runs_of(name)
    stack = Stacked(runs, task, CPU, epochs=3)
    curves = [[], [], []]
    for _ in range(2):
        epoch(stack)
        for slot in range(3):
            curves[slot].append(stack.figures(slot))
    for found, run in zip(curves, runs, strict=True):
        assert len({line["psnr"] for line in found}) == 2
        for line, expected in zip(found, trained_alone(run, task, 2)[1], strict=True):
            assert line == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("name", ["image/sim-rff", "image/sim-two"])
def test_a_slot_goes_to_a_new_trial_and_ranks_are_closed(name, average):
    runs, task = runs_of(name, average)
    stack = Stacked(runs[:2], task, CPU, epochs=3)
    epoch(stack)
    stack.stop(0)
    assert stack.sparse
    stack.start(0, runs[2])
    epoch(stack)
    assert stack.figures(0) == pytest.approx(trained_alone(runs[2], task, 1)[1][-1], rel=1e-6)
    assert stack.figures(1) == pytest.approx(trained_alone(runs[1], task, 2)[1][-1], rel=1e-6)
    stack.stop(1)
    stack.compact([0])
    epoch(stack)
    assert stack.figures(0) == pytest.approx(trained_alone(runs[2], task, 2)[1][-1], rel=1e-6)


def test_a_saved_stack_goes_on_where_it_was():
    runs, task = runs_of("image/sim-rff")
    stack, other = (Stacked(runs, task, CPU, epochs=3) for _ in range(2))
    epoch(stack)
    other.load({name: tensor.clone() for name, tensor in stack.state().items()}, stack.ages)
    epoch(stack)
    epoch(other)
    for slot in range(3):
        assert other.figures(slot) == stack.figures(slot)


def test_a_trial_that_diverges_spoils_nobody():
    runs, task = runs_of("image/sim-rff")
    wild = with_values(runs[1], {"recipe.learning_rate": 1e30})
    stack = Stacked([runs[0], wild], task, CPU, epochs=3)
    epoch(stack)
    assert stack.figures(0) == pytest.approx(trained_alone(runs[0], task, 1)[1][-1], rel=1e-6)
    with pytest.raises(Diverged):
        stack.figures(1)


def test_a_stack_is_no_larger_than_memory(monkeypatch):
    (run, *_), task = runs_of("image/sim-rff")
    each = task.bytes_of(run) * len(task.names)
    monkeypatch.setattr(memory, "device_memory", lambda device: 10**11)
    many = fitting(each, CPU)
    monkeypatch.setattr(memory, "device_memory", lambda device: 10**10)
    assert 1 < fitting(each, CPU) < many
    monkeypatch.setattr(memory, "device_memory", lambda device: 10)
    assert fitting(each, CPU) == 1


def test_stacked_and_side_by_side_come_to_the_same_verdicts(tmp_path):
    found = []
    for engine in ("stacked", "separate"):
        search = tiny_search("image/sim-two", trials=5, batches=(256,), engine=engine)
        search = replace(search, space=replace(search.space, metric="psnr", mode="max"))
        found.append(LocalSearch(search, SearchDirectory.create(tmp_path / engine, search), Session(CPU)).run())
    stacked, beside = found
    assert [(t.status, t.t) for t in stacked] == [(t.status, t.t) for t in beside]
    for a, b in zip(stacked, beside, strict=True):
        assert a.last("psnr") == pytest.approx(b.last("psnr"), rel=1e-5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_captured_stack_is_the_eager_one(name):
    cuda = torch.device("cuda")
    runs, _ = runs_of(name)
    runs = [replace(run, precision="float32") for run in runs]
    task = build_task(runs[0].task, cuda)
    found = []
    for capture in (True, False):
        stack = Stacked(runs[:2], task, cuda, epochs=3, way=Way(capture=capture))
        stack.warm_up()
        epoch(stack)
        stack.stop(0)
        stack.start(0, runs[2])  # new weights and features under the same graph
        epoch(stack)
        found.append([stack.figures(slot) for slot in range(2)])
    for captured, eager in zip(*found, strict=True):
        assert captured == pytest.approx(eager, rel=1e-3)


def test_no_more_train_at_a_time_than_fit(tmp_path, monkeypatch):
    most = 0

    def watch(event):
        nonlocal most
        most = max(most, sum(t.status == "running" for t in event["trials"]))

    monkeypatch.setattr(packing, "fitting", lambda each, device: 2)
    search = tiny_search("image/sim-two", trials=5, batches=(256,))
    search = replace(search, space=replace(search.space, metric="psnr", mode="max"))
    trials = LocalSearch(search, SearchDirectory.create(tmp_path / "few", search), Session(CPU, listen=watch)).run()
    assert most == 2
    assert all(t.over and t.curve for t in trials)


# ---------------------------------------------------------------- a search for every picture

TINY = "--per-picture --scale smoke --device cpu --trials 3 --recipe.epochs 1 --task.size 16".split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    pytest.importorskip("tyro")  # a bare machine with a GPU
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("searches") / "each"
    assert main(["tune", "image/sim-rff", *TINY, "--out", str(path)]) == 0
    return path


def test_each_picture_has_its_own_search_and_the_set_one_result(finished):
    result = json.loads((finished / "result.json").read_text())
    assert result["pictures"] == ["china", "flower"]
    for name in result["pictures"]:
        own = json.loads((finished / name / "result.json").read_text())
        best = json.loads((finished / name / "best" / "result.json").read_text())
        assert best["pictures"] == [name]
        assert best["run"]["task"]["only"] == name
        assert result["settings"][name] == own["best"]["values"]
        assert result["test"][f"psnr/{name}"] == best["test"]["psnr"]
    both = [result["test"][f"psnr/{name}"] for name in result["pictures"]]
    assert result["test"]["psnr"] == pytest.approx(sum(both) / 2)


@pytest.mark.parametrize("cut", ["before it", "within it"])
def test_what_is_done_is_not_done_again(finished, tmp_path, capsys, cut):
    path = tmp_path / "cut"
    shutil.copytree(finished, path)
    whole = json.loads((path / "result.json").read_text())
    (path / "result.json").unlink()
    if cut == "before it":
        shutil.rmtree(path / "flower")
    else:
        (path / "flower" / "result.json").unlink()
    before = (path / "china" / "result.json").stat().st_mtime_ns
    assert main(["tune", "--resume", str(path), "--device", "cpu"]) == 0
    assert "flower" in capsys.readouterr().out
    assert (path / "china" / "result.json").stat().st_mtime_ns == before
    again = json.loads((path / "result.json").read_text())
    assert again["test"] == whole["test"]
    assert again["settings"] == whole["settings"]


def test_the_report_shows_the_set_and_not_its_parts(finished):
    found = find([finished])
    assert [(run["name"], run["pictures"]) for run in found.runs] == [("image/sim-rff", ["china", "flower"])]
    assert not found.searches
    assert not found.skipped
    assert len(find([finished / "china"]).searches) == 1  # asked for by name it is shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["copy/sim-single", "--per-picture"], "image regression"),
        (["image/sim-rff", *TINY, "--task.only", "chine"], "Did you mean 'china'?"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, says, tmp_path, capsys):
    pytest.importorskip("tyro")
    assert main(["tune", *arguments, "--out", str(tmp_path / "new")]) != 0
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("options", [TINY, TINY[1:]])
def test_a_folder_with_such_a_search_is_left_alone(finished, capsys, options):
    before = (finished / "result.json").read_bytes()
    assert main(["tune", "image/sim-rff", *options, "--out", str(finished)]) != 0
    assert "already holds a search" in capsys.readouterr().err
    assert (finished / "result.json").read_bytes() == before


def test_a_setting_may_be_a_word(tmp_path, capsys):
    pytest.importorskip("tyro")
    words = ["--search", "schedule=step", "--task.count", "1", "--retrain", "0"]
    assert main(["tune", "image/sim-rff", *TINY, *words, "--out", str(tmp_path / "words")]) == 0
    assert "schedule step" in capsys.readouterr().out
