"""What travels with a call of a lease, what is made of it there, and what is recorded of what came back."""

import importlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MIB = 1 << 20


def shell(*words, cwd, **variables):
    own = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.run([*map(str, words)], cwd=cwd, env=own, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path):
    """A small checkout with a file that does not run on the other machine, and data of two and a half MiB."""
    here, pack = tmp_path / "checkout", tmp_path / "pack"
    for file in ("src/a.py", "docs/large", "benchmarks/b.sh"):
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).write_bytes(b"x" * 1000)
    shutil.copy(ROOT / "benchmarks" / "lease_load.sh", here / "benchmarks")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        assert shell("git", *words, cwd=here).returncode == 0
    (pack / "first").mkdir(parents=True)
    (pack / "first" / "small.tar.xz").write_bytes(b"s" * 1000)
    (pack / "stream").write_bytes(os.urandom(5 * MIB // 2))
    (pack / "sets").write_text("")
    return here, pack


def test_a_call_carries_as_much_of_the_data_as_there_is_room_for(repository):
    here, pack = repository
    found = b""
    for turn, way in enumerate(("first", "more", "more", "more")):
        done = shell("bash", "benchmarks/lease_load.sh", pack, way, cwd=here, ROOM=1)
        assert done.returncode == 0, done.stderr
        files = [f for f in here.rglob("*") if f.is_file() and ".git" not in f.relative_to(here).parts]
        assert sum(f.stat().st_size for f in files) <= MIB
        assert {(here / "src").exists(), (here / ".gpu/in/small.tar.xz").exists()} == {way == "first"}
        assert (here / "benchmarks/b.sh").exists()
        assert not (here / "docs").exists()
        assert not shell("git", "status", "--porcelain", cwd=here).stdout
        pieces = list((here / ".gpu/in").glob("piece.*"))
        assert [p.name for p in pieces] == [f"piece.{len(found)}"] * (turn < 3)
        found += b"".join(p.read_bytes() for p in pieces)
    assert found == (pack / "stream").read_bytes()
    assert shell("bash", "benchmarks/lease_load.sh", pack, "whole", cwd=here).returncode == 0
    assert (here / "docs/large").exists()
    assert not (here / ".gpu").exists()


def test_a_changed_tree_does_not_travel(repository):
    here, pack = repository
    (here / "src/a.py").write_text("other\n")
    done = shell("bash", "benchmarks/lease_load.sh", pack, "first", cwd=here)
    assert (done.returncode, done.stdout) == (2, "The tree has changes: commit them first.\n")
    assert (here / "docs").exists()


@pytest.mark.parametrize("way", ["first", "more", "whole"])
def test_a_folder_of_somebody_elses_is_left_alone(repository, way):
    here, pack = repository
    (here / ".gpu").mkdir()
    (here / ".gpu/own").write_text("mine")
    done = shell("bash", "benchmarks/lease_load.sh", pack, way, cwd=here)
    assert (done.returncode, done.stdout) == (2, "There is a .gpu that this script did not make: move it away.\n")
    assert (here / ".gpu/own").read_text() == "mine"


def test_pieces_are_joined_in_their_order(tmp_path):
    (tmp_path / "env.sh").touch()
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "stream").touch()

    def part(start, text):
        shutil.rmtree(tmp_path / "in", ignore_errors=True)
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / f"piece.{start}").write_text(text)
        script = ROOT / "benchmarks" / "lease_evidence.sh"
        return shell("bash", script, "part", cwd=tmp_path, ROOT=tmp_path, IN=tmp_path / "in").returncode

    assert [part(0, "one"), part(0, "one"), part(6, "three"), part(3, "two"), part(6, "three")] == [0, 0, 4, 0, 0]
    assert (tmp_path / "packs" / "stream").read_text() == "onetwothree"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("lease_home")
    for name, place in {"TO": "h200", "EARLIER": "earlier"}.items():
        (tmp_path / place).mkdir()
        monkeypatch.setattr(tool, name, tmp_path / place)
    monkeypatch.setattr(tool, "UNFINISHED", tmp_path / "unfinished.tar.gz")
    return tool


def measured(folder, name, commit, **more):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"environment": {"commit": commit}} | more))


def test_files_of_a_call_are_recorded_once(home, tmp_path):
    came = tmp_path / "came"
    measured(came, "variants.json", "1111111aa")
    measured(came, "deploy/bench.json", "1111111aa")
    measured(came, "racecheck.json", "1111111aa", counts={})
    (came / "answers.json").write_text('{"rows": [')
    assert home.keep_kernels(came) == ["bench-deploy.json", "tcn-variants.json"]
    assert home.keep_kernels(came) == []
    measured(came, "variants.json", "2222222bb")
    assert home.keep_kernels(came) == ["tcn-variants.json"]
    assert [f.name for f in home.EARLIER.iterdir()] == ["tcn-variants@1111111.json"]
    measured(came, "variants.json", "1111111aa")  # an earlier call, brought home late
    assert home.keep_kernels(came) == []


def run_at(folder, name, epochs, ended=False):
    (folder / name).mkdir(parents=True)
    (folder / name / "metrics.jsonl").write_text("{}\n" * epochs)
    (folder / name / "checkpoint.safetensors").write_text(str(epochs))
    if ended:
        (folder / name / "result.json").write_text("{}")


def test_what_has_not_ended_goes_on_from_its_newest_state(home, tmp_path):
    for name, epochs in {"old": 7, "other": 3, "ending": 9}.items():
        run_at(tmp_path / "before" / "again", name, epochs)
    with tarfile.open(home.UNFINISHED, "w:gz") as tar:
        tar.add(tmp_path / "before" / "again", "again")
    came = tmp_path / "came"
    for name, epochs in {"old": 5, "other": 4, "new": 1}.items():
        run_at(came, name, epochs)
    run_at(came, "ending", 20, ended=True)
    said = home.keep_unfinished([came], tmp_path / "work")
    assert said == ["new at epoch 1", "old at epoch 7", "other at epoch 4"]
    assert home.keep_unfinished([came], tmp_path / "once more") == said


def test_the_lists_of_a_record_are_shortened(home, tmp_path, monkeypatch):
    from koopsim.nn.kernels.sources import digest

    lists = tmp_path / "lists.py"
    monkeypatch.setattr(home, "LISTS", lists)
    record = home.TO / "cuda-tests.json"
    lists.write_text('A = 1\nSINCE = {\n    "a": ("b", "c"),\n}\nB = 2\n')
    record.write_text(json.dumps({"kernels": {}, "tests": {"a": {"outcome": "failed"}, "b": {"outcome": "not run"}}}))
    assert [line.split(":")[0] for line in home.shorten_lists()] == [
        "failed on the GPU, mend it or say why in KNOWN", "not run on the GPU, NOT_BEGUN stays for them"]  # fmt: skip
    assert "SINCE = {" in lists.read_text(), "kernels that are not those that were tested"
    record.write_text(json.dumps({"kernels": digest(), "tests": {"a": {"outcome": "passed"}}}))
    assert home.shorten_lists() == ["all CUDA tests passed: KNOWN and NOT_BEGUN of test_cuda_record.py can go"]
    assert lists.read_text() == "A = 1\nSINCE: dict[str, tuple[str, str]] = {}\nB = 2\n"


def test_a_study_that_ended_is_recorded_and_one_that_did_not_is_not(home, tmp_path, monkeypatch):
    """again.py's archive has the marks of what has ended."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    again, added = importlib.import_module("again"), []
    monkeypatch.setattr(home.ledger, "add", added.extend)
    for name in ("signals.json", "other.json"):
        measured(tmp_path / "again", name, "1111111", rows=[{"name": "a sound", "test_psnr": 30.0}])
    (tmp_path / "again" / "signals.json.done").touch()
    again.archive(tmp_path / "again", tmp_path / "again.tar.gz")
    with tarfile.open(tmp_path / "again.tar.gz") as tar:
        tar.extractall(tmp_path / "came", filter="data")
    assert home.keep_runs(tmp_path / "came" / "again") == ["signals.json"]
    assert [line.split(" | ")[4] for line in added] == ["30.00 dB"]
    assert home.keep_runs(tmp_path / "came" / "again") == []


def test_every_page_that_is_written_is_committed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    pages = {file.relative_to(ROOT).as_posix() for file in importlib.import_module("readme").tables()}
    assert pages == {"README.md", *importlib.import_module("lease_home").WRITTEN}
