import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from koopsim import training
from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.engine import drive
from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.files.tensors import write_tensors
from koopsim.presets import run_of
from koopsim.runs import RunDirectory
from koopsim.training import Session, load_run, resume_run, start_run, train_run

CPU = torch.device("cpu")


def small(**recipe):
    run = run_of("copy/sim-two")
    model = replace(run.model, lift=TCNConfig(levels=3, channels=4, kernel=3), lift_dim=8, hidden=8)
    task = CopyMemoryConfig(horizon=5, train=40, valid=10, test=10)
    return replace(run, model=model, task=task, recipe=replace(run.recipe, batch_size=10, epochs=4, **recipe))


def run_in(path, run, resume=False, **options):
    directory = RunDirectory(path) if resume else RunDirectory.create(path, run, "copy/sim-two")
    return directory, train_run(run, directory, "copy/sim-two", Session(CPU, **options), resume)


def without_times(lines):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_a_run_leaves_all_its_files(tmp_path):
    directory, result = run_in(tmp_path / "r", small())
    assert {p.name for p in directory.path.iterdir()} == {
        "config.json", "env.json", "data.json", ".koopsim", "metrics.jsonl", "checkpoint.safetensors", "result.json",
        "looks.jsonl",
    }  # fmt: skip
    assert json.loads(directory.result_file.read_text()) == result
    assert [line["epoch"] for line in directory.read_metrics()] == [1, 2, 3, 4]
    assert result["steps"] == 20
    assert result["environment"]["versions"]["torch"]
    assert "test" in result


def test_kernels_are_imported_ahead_of_a_new_run_and_of_one_that_goes_on(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(training, "import_ahead", begun.append)
    start_run(small(), tmp_path / "r", "copy/sim-two", Session(CPU))
    resume_run(tmp_path / "r", Session(CPU))
    assert begun == [CPU]  # a finished run is only read
    (tmp_path / "r" / "result.json").unlink()
    resume_run(tmp_path / "r", Session(CPU))
    assert begun == [CPU, CPU]


def test_validation_is_watched_when_it_is_held_out(tmp_path):
    _, result = run_in(tmp_path / "r", replace(small(), train_on="train"))
    assert "test" not in result
    assert all("valid_loss" in line for line in result["metrics"])


def test_a_stop_inside_an_epoch_resumes_to_the_same_bits(tmp_path, monkeypatch):
    whole, expected = run_in(tmp_path / "whole", small())
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)  # look after every step
    seen = 0

    def stop_at_the_seventh(event):
        nonlocal seen
        seen += event["event"] == "progress"
        if seen == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        run_in(tmp_path / "cut", small(), listen=stop_at_the_seventh)
    assert not (tmp_path / "cut" / "result.json").exists()
    torch.manual_seed(999)  # a new process knows nothing of the old one
    cut, resumed = run_in(tmp_path / "cut", small(), resume=True)
    assert resumed["test"] == expected["test"]
    assert without_times(cut.read_metrics()) == without_times(whole.read_metrics())
    a, b = load_file(whole.checkpoint_file), load_file(cut.checkpoint_file)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a if not k.startswith("random."))


ARGUMENTS = """copy/sim-two --scale smoke --device cpu --recipe.epochs 6 --recipe.batch-size 10 --task.horizon 5
--task.train 300 --task.valid 20 --task.test 20 --model.lift.levels 3""".split()


def koopsim(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "koopsim", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_kill_minus_nine_and_resume_equals_an_uninterrupted_run(tmp_path):
    whole = koopsim("train", *ARGUMENTS, "--out", tmp_path / "whole")
    process = koopsim("train", *ARGUMENTS, "--out", tmp_path / "cut")
    for epoch in (1, 3, 4):  # killed three times, each at whatever it was doing
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            metrics = RunDirectory(tmp_path / "cut").read_metrics()
            if metrics and metrics[-1]["epoch"] >= epoch:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = koopsim("train", "--resume", tmp_path / "cut", "--device", "cpu")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    _, errors = whole.communicate(timeout=120)
    assert whole.returncode == 0, errors
    results = [RunDirectory(tmp_path / name).read_result() for name in ("whole", "cut")]
    assert results[0]["test"] == results[1]["test"]
    assert without_times(results[0]["metrics"]) == without_times(results[1]["metrics"])
    weights = [load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0] if not k.startswith("random."))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    process = koopsim("train", *ARGUMENTS, "--out", tmp_path / "r", "--recipe.epochs", 500)
    deadline = time.monotonic() + 60
    while not (tmp_path / "r" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"koopsim train --resume {tmp_path / 'r'}" in errors


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    with pytest.raises(KoopsimError, match=r"at step \d+ .*learning rate 1e\+30.*Try a smaller"):
        run_in(tmp_path / "r", small(learning_rate=1e30, clip_norm=None))


def test_broken_and_foreign_checkpoints_are_refused(tmp_path):
    directory, _ = run_in(tmp_path / "r", small())
    config = json.loads(directory.config_file.read_text())
    other = json.loads(directory.config_file.read_text())
    other["run"]["model"]["hidden"] = 9
    directory.config_file.write_text(json.dumps(other))
    with pytest.raises(KoopsimError, match="checkpoint of another model"):
        load_run(directory.path)
    directory.config_file.write_text(json.dumps(config))
    whole = directory.checkpoint_file.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        directory.checkpoint_file.write_bytes(whole[:size])
        with pytest.raises(KoopsimError, match="not a whole koopsim checkpoint"):
            load_run(directory.path)
    directory.checkpoint_file.unlink()
    with pytest.raises(KoopsimError, match="no checkpoint"):
        load_run(directory.path)


def test_a_row_of_as_many_numbers_of_another_model_is_refused_on_resume(tmp_path):
    """Two widths exchanged give the same count: names and shapes in the header tell them apart."""
    run = small()
    directory, _ = run_in(tmp_path / "r", run)
    directory.result_file.unlink()
    from koopsim.engine.checkpoint import read_run, refuse_other_layout
    from koopsim.engine.stacked import Stacked
    from koopsim.tasks import build_task

    *_, layout = read_run(directory.checkpoint_file, run)
    members = Stacked([run], build_task(run.task), CPU, 1).part.members
    refuse_other_layout(layout, members, directory.checkpoint_file)
    first, second, *_ = layout
    swapped = layout | {first: layout[second], second: layout[first]}
    with pytest.raises(KoopsimError, match="checkpoint of another model"):
        refuse_other_layout(swapped, members, directory.checkpoint_file)


def test_a_run_is_not_overwritten_by_accident(tmp_path):
    directory, _ = run_in(tmp_path / "r", small())
    with pytest.raises(KoopsimError, match="already holds a run"):
        RunDirectory.create(tmp_path / "r", small(), "copy/sim-two")
    assert directory.result_file.exists()


def test_a_header_whose_step_is_not_the_tensors_is_refused(tmp_path):
    """Edited, and its digest taken away: what was trained would be other than what is reported."""
    run = replace(run_of("copy/sim-single", "smoke"), task=CopyMemoryConfig(3, 20, 5, 5))
    run = replace(run, recipe=replace(run.recipe, epochs=2))
    out = tmp_path / "o"
    start_run(run, out, "x", Session(torch.device("cpu")))
    (out / "result.json").unlink()
    file = out / "checkpoint.safetensors"
    tensors = {"0/steps": torch.tensor([777]), "0/flat": torch.zeros(1, 4)}
    far = {"done": 0, "groups": 1, "epoch": 1, "step": 1, "seconds": 0.1}
    write_tensors(file, tensors, {"run": far, "layout": {}})
    with pytest.raises(KoopsimError, match="differ in their steps"):
        resume_run(out, Session(torch.device("cpu")))
    write_tensors(file, tensors, {"run": far | {"done": 1, "epoch": 0, "step": 0}, "layout": {}})
    with pytest.raises(KoopsimError, match="group 1 is called done before its end"):
        resume_run(out, Session(torch.device("cpu")))
    write_tensors(file, tensors, {"run": far | {"groups": 10**18}, "layout": {}})
    with pytest.raises(KoopsimError, match="of another run"):
        resume_run(out, Session(torch.device("cpu")))
