"""Other people's folders and files, met from the command line: nothing of theirs is touched, and one line says why.

And nothing wrong is accepted in silence: damaged weights, replaced data, figures that are no numbers.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from koopsim.cli import main
from koopsim.files import folders
from koopsim.files.tensors import digest_of
from koopsim.runs import RunDirectory

RUN = (
    "train copy/sim-single --scale smoke --device cpu --recipe.epochs 1 --task.horizon 3 --model.lift.levels 2".split()
)
RUN += "--task.train 40 --task.valid 10 --task.test 10".split()
TUNE = ["tune", *RUN[1:], "--trials", "2", "--max-t", "1", "--retrain", "0"]
PICTURES = "image/sim-rff --device cpu --task.size 8 --task.steps-an-epoch 2 --recipe.epochs 1 --model.hidden 8".split()
FIT = "--steps 4 --features 4 --hidden 4 --no-animation --device cpu".split()


def snapshot(folder: Path) -> dict[str, str]:
    """Every file's content, every folder and link: what must not change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def refused(arguments: list, capsys, *words: str) -> str:
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    said = [line for line in err.splitlines() if line.startswith("koopsim: ")]
    assert "Traceback" not in err
    assert all(word in said[-1] for word in words), err
    return said[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert main([*RUN, "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    path = tmp_path_factory.mktemp("searches") / "each"
    few = "--per-picture --trials 1 --max-t 1 --retrain 0 --task.count 1".split()
    assert main(["tune", *PICTURES, *few, "--out", str(path)]) == 0
    return path


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def theirs(tmp_path):
    """A stranger's folder with names that we use too."""
    folder = tmp_path / "theirs"
    for name in ("ray/thesis.txt", "best/config.json", "best-2/config.json", "result.json", "metrics.jsonl",
                 "checkpoint.safetensors", "index.html", "config.yaml", "verdict.json", "waves/result.json",
                 "confusion.png", "bench.json", "env.json"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}")
    return folder


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "waves.png")
    return tmp_path / "waves.png"


def test_nothing_of_a_strangers_folder_is_touched(theirs, finished, picture, capsys):
    before = snapshot(theirs)
    np.save(theirs.parent / "a.npy", np.eye(2))
    for arguments in (
        [*RUN, "--out", theirs], [*TUNE, "--out", theirs], ["report", finished, "--out", theirs],
        ["fit", picture, *FIT, "--out", theirs], ["spectrum", theirs.parent / "a.npy", "--out", theirs],
        ["bench", "stack", "--quick", "--device", "cpu", "--out", theirs],
    ):  # fmt: skip
        refused(arguments, capsys, "theirs")
        assert snapshot(theirs) == before, arguments[0]


def test_even_overwrite_never_removes_a_folder_that_is_not_ours(theirs, capsys):
    before = snapshot(theirs)
    refused([*TUNE, "--out", theirs, "--overwrite"], capsys, "best", "not of a search of koopsim")
    assert snapshot(theirs) == before
    for name in ("best", "best-2"):
        (theirs / name / "config.json").unlink()
        (theirs / name).rmdir()
    refused([*TUNE, "--out", theirs, "--overwrite"], capsys, "ray", "was not made by koopsim")
    assert (theirs / "ray" / "thesis.txt").read_text() == "mine: ray/thesis.txt"


def test_overwrite_replaces_the_files_of_our_names_and_no_others(theirs, capsys):
    before = snapshot(theirs)
    assert main([*RUN, "--out", str(theirs), "--overwrite"]) == 0
    after = snapshot(theirs)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"result.json", "metrics.jsonl", "checkpoint.safetensors", "env.json"}


@pytest.mark.parametrize("name", ["../mine", "..", "/tmp/mine", "link", "", 7, "a/b"])
def test_a_received_search_does_not_lead_out_of_its_folder(name, searched, tmp_path, capsys):
    folder = Path(shutil.copytree(searched, tmp_path / "received"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "search.json").write_text("mine")
    (folder / "result.json").unlink()
    if name == "link":
        (folder / "link").symlink_to(tmp_path / "mine")
    said = json.loads((folder / "pictures.json").read_text())
    (folder / "pictures.json").write_text(json.dumps(said | {"pictures": [name]}))
    before = snapshot(tmp_path / "mine")
    refused(["tune", "--resume", folder, "--device", "cpu"], capsys)
    assert snapshot(tmp_path / "mine") == before


def test_a_best_that_is_a_link_is_not_followed(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "best").symlink_to(tmp_path / "mine")
    refused([*TUNE, "--out", tmp_path / "s", "--overwrite"], capsys, "best")
    assert snapshot(tmp_path / "mine") == {}


def test_postscript_never_reaches_ghostscript(tmp_path, capsys, monkeypatch):
    from PIL import EpsImagePlugin

    called = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: called.append(a))
    bad = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "dog").mkdir()
    for name in ("pictures/photo.png", "pictures/cat/photo.png", "pictures/dog/photo.png"):
        (tmp_path / name).write_text(bad)
    refused(["fit", tmp_path / "pictures" / "photo.png", *FIT], capsys, "photo.png")
    refused(["train", "--data", tmp_path / "pictures", "--device", "cpu"], capsys, "photo.png")
    refused(["train", *PICTURES, "--task.pictures", tmp_path / "pictures"], capsys, "photo.png")
    assert called == []


def test_names_that_are_no_names_of_folders(tmp_path, capsys):
    for name in ("...png", "..png"):  # of which ".." and "." are left without their ending
        Image.new("L", (4, 4)).save(tmp_path / name, "PNG")
        refused(["fit", tmp_path / name, *FIT, "--out", tmp_path / "a" / "b"], capsys, "rename it")
    assert not (tmp_path / "a").exists()


def test_render_leaves_devices_and_pipes_alone(picture, tmp_path, capsys):
    assert main(["fit", str(picture), *FIT, "--out", str(tmp_path / "f")]) == 0
    os.mkfifo(tmp_path / "pipe.png")
    refused(["render", tmp_path / "f" / "waves", "--out", tmp_path / "pipe.png", "--overwrite"], capsys, "a pipe")
    refused(["render", tmp_path / "f" / "waves", "--out", "/dev/null", "--overwrite"], capsys, "a device")
    refused(["render", tmp_path / "f" / "waves", "--out", tmp_path, "--overwrite"], capsys, "a folder")
    assert Path("/dev/null").is_char_device()


def test_own_data_is_not_written_into(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    folder = tmp_path / "elsewhere" / "data"
    folder.mkdir(parents=True)
    np.savez(folder / "x.npz", x=rng.integers(0, 255, (20, 8, 8), np.uint8), y=np.arange(20) % 2)
    before = snapshot(folder)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", str(folder / "x.npz"), "--device", "cpu", "--recipe.epochs", "1"]) == 0
    assert snapshot(folder) == before
    assert (tmp_path / "runs" / "x" / "sim-single" / "result.json").exists()


def test_two_resumes_of_one_run_at_once(tmp_path):
    """The second is refused in one line, and the run has each of its lines once."""
    out = tmp_path / "run"
    begun = [sys.executable, "-m", "koopsim", *RUN, "--recipe.epochs", "12", "--out", str(out)]
    first = subprocess.Popen(begun, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (out / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.05)
    again = subprocess.run(
        [sys.executable, "-m", "koopsim", "train", "--resume", str(out), "--device", "cpu"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    first.communicate()
    assert first.returncode == 0
    if again.returncode:  # else the first was over before it
        assert again.stderr.count("\n") == 1
        assert "in use by another koopsim process" in again.stderr
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 12


def test_a_held_folder_is_refused_by_every_verb_that_writes(finished, picture, tmp_path, capsys):
    code = "import sys, time; from koopsim.files import folders as f\n"
    code += "with f.held(sys.argv[1]): print(flush=True); time.sleep(60)"
    for arguments, folder in (
        ([*RUN, "--out"], tmp_path / "a"), ([*TUNE, "--out"], tmp_path / "a"),
        (["report", finished, "--out"], tmp_path / "a"), (["fit", picture, *FIT, "--out"], tmp_path / "a" / "waves"),
    ):  # fmt: skip
        other = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
        assert other.stdout
        other.stdout.readline()
        try:
            refused([*arguments, tmp_path / "a"], capsys, "in use by another koopsim process")
        finally:
            other.kill()
            other.communicate()


def test_overwrite_killed_early_does_not_resume_the_old_run(run, tmp_path, capsys):
    code = (
        "import os, sys, koopsim.tasks\nkoopsim.tasks.build_task = lambda *a: os.kill(os.getpid(), 9)\n"
        "from koopsim.cli import main\nmain(sys.argv[1:])"
    )
    (run / "result.json").unlink()
    again = [*RUN, "--seed", "5", "--out", str(run), "--overwrite"]
    ended = subprocess.run([sys.executable, "-c", code, *again], check=False)
    assert ended.returncode == -9
    refused(["train", "--resume", run, "--device", "cpu"], capsys, "was to be started again with --overwrite")
    assert main(again) == 0
    assert RunDirectory(run).read_config()[1].seed == 5


def test_a_run_from_before_there_were_markers_is_ours(run, capsys):
    (run / folders.MARKER).unlink()
    (run / "data.json").unlink()
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    refused([*RUN, "--out", run], capsys, "already holds a run")
    assert main([*RUN, "--out", str(run), "--overwrite"]) == 0


# ---------------------------------------------------------------- nothing wrong in silence


def changed(run: Path, how, digest: str = "right") -> None:
    """The checkpoint with its tensors or header changed, and the digest it had, a right one or none."""
    file = run / "checkpoint.safetensors"
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        header = dict(opened.metadata())
    old = header.pop("digest")
    how(tensors, header)
    new = {"old": {"digest": old}, "right": {"digest": digest_of(tensors, header)}, "none": {}}[digest]
    save_file(tensors, file, metadata=header | new)


def weights(change):
    def how(tensors, header):
        tensors["0/flat"] = change(tensors["0/flat"])

    return how


def position(**changed):
    def how(tensors, header):
        header["run"] = json.dumps(json.loads(header["run"]) | changed)

    return how


@pytest.mark.parametrize(
    ("how", "digest", "why"),
    [
        (weights(lambda t: t + 1), "old", "digest does not match"),
        (weights(lambda t: t + 1), "none", "has no digest, which every koopsim checkpoint is written with"),
        (lambda t, h: t.update({"0/averagedx": t["0/flat"] + 1}), "right", "'averagedx' is not known"),
        (weights(lambda t: t > 0), "right", "is bool where float32 belongs"),
        (weights(lambda t: t.to(torch.uint8)), "right", "is uint8 where float32 belongs"),
        (weights(lambda t: t * float("nan")), "right", "holds NaN"),
        (weights(lambda t: t[:, :1].clone()), "right", "has shape"),
        (position(step=float("nan")), "right", "NaN is no number"),
        (position(epoch=True), "right", "'epoch'"),
        (position(step=-1), "right", "'step'"),
        (position(epoch=10**6), "right", "'epoch'"),
        (lambda t, h: h.update(run="[" * 5000), "right", "nested more than"),
        (lambda t, h: h.pop("run"), "right", "checkpoint"),
    ],
)
def test_damaged_weights_are_noticed(how, digest, why, run, capsys):
    changed(run, how, digest)
    refused(["eval", run, "--device", "cpu"], capsys, why)


@pytest.mark.parametrize("name", ["0/mean", "0/square", "random.cpu"])
def test_a_damaged_optimiser_is_noticed_on_resume(name, tmp_path, capsys, monkeypatch):
    run, told = tmp_path / "run", []

    def stop(directory, line):
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "append_metrics", stop)
        assert main([*RUN, "--recipe.epochs", "3", "--out", str(run)]) == 130
    changed(run, lambda t, h: t.update({name: t[name].flatten()[:1].clone()}))
    refused(["train", "--resume", run, "--device", "cpu"], capsys, name.removeprefix("0/"))


def test_replaced_data_is_noticed(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y, file = rng.integers(0, 255, (40, 8, 8), np.uint8), np.arange(40) % 2, tmp_path / "x.npz"
    np.savez(file, x=x, y=y)
    out = tmp_path / "run"
    assert main(["train", "--data", str(file), "--device", "cpu", "--recipe.epochs", "1", "--out", str(out)]) == 0
    assert main(["eval", str(out), "--device", "cpu"]) == 0
    for other in ({"x": x ^ 1, "y": y}, {"x": x, "y": np.array(["cat", "dog"])[y]}, {"x": x, "y": 1 - y}):
        np.savez(file, **other)
        refused(["eval", out, "--device", "cpu"], capsys, "The data is not what", "was trained on")
        if other["y"].dtype.kind == "U":  # which of the run's classes a cat is, nobody said
            refused(["eval", out, "--device", "cpu", "--other-data"], capsys, "'cat', which", "was never shown")
        else:
            assert main(["eval", str(out), "--device", "cpu", "--other-data"]) == 0


@pytest.mark.parametrize(
    "setting", [["--recipe.learning-rate", "inf"], ["--recipe.eps", "1e-320"], ["--recipe.learning-rate", "1e30"]]
)
def test_figures_that_are_no_numbers_are_no_success(setting, tmp_path, capsys):
    refused([*RUN, *setting, "--out", tmp_path / "r"], capsys)
    assert not (tmp_path / "r" / "result.json").exists()


def test_the_same_seed_gives_the_same_bits(picture, tmp_path, monkeypatch):
    """Whatever the machine's pace, which decides into how many chunks the steps are cut."""
    found = []
    for pace in (1e-9, 10.0):
        monkeypatch.setattr("koopsim.engine.drive.CHUNK_SECONDS", pace)
        out = tmp_path / str(pace)
        assert main(["fit", str(picture), *FIT, "--steps", "30", "--out", str(out)]) == 0
        found.append(load_file(out / "waves" / "network.safetensors"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.filterwarnings("default")
def test_metrics_that_were_edited_keep_what_is_good(run, capsys):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1e999}\n[[[[\n{"epoch": 1, "step": "x"}\n')
    (run / "result.json").unlink()
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 0
    assert "3 lines were left out" in capsys.readouterr().err
    assert len(RunDirectory(run).read_metrics()) == 1
