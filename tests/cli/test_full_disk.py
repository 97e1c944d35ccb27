"""A disk that is full in the midst of work: one line, a file named, and the work goes on once there is room."""

import errno
import json
import os

import pytest

from koopsim import runs
from koopsim.cli import main

WORK = {
    "a run": ["train", "copy/sim-single", "--recipe.epochs", "2"],
    "pictures": ["train", "image/sim-rff", "--recipe.epochs", "2", "--task.size", "16"],
    "a search": ["tune", "digits/sim-single", "--trials", "2"],
    "a search a picture": ["tune", "image/sim-rff", "--per-picture", "--trials", "2", "--task.size", "16"],
}


FILES = ["checkpoint.safetensors", "metrics.jsonl", "result.json", "trials.csv"]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The figures of each work with room enough, made once."""
    found = {}

    def of(work: str) -> dict:
        if work not in found:
            out = tmp_path_factory.mktemp("uncut") / "run"
            assert main([*arguments_of(work), "--out", str(out)]) == 0
            found[work] = json.loads((out / "result.json").read_text())["test"]
        return found[work]

    return of


def arguments_of(work: str) -> list[str]:
    return [*WORK[work], "--scale", "smoke", "--device", "cpu"]


@pytest.mark.parametrize(
    ("work", "file"), [(work, file) for work in WORK for file in FILES if "search" in work or file != "trials.csv"]
)
def test_a_full_disk_is_one_line_and_the_work_goes_on(work, file, tmp_path, monkeypatch, capsys, uncut):
    synced, full = os.fsync, True

    def fsync(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        if full and f"{file}" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(handle)

    monkeypatch.setattr(runs.os, "fsync", fsync)
    cut = tmp_path / "cut"
    ended = main([*arguments_of(work), "--out", str(cut)])
    said = capsys.readouterr().err.strip().splitlines()
    full = False
    assert ended == 2
    assert file in said[-1]
    assert "No space left on device" in said[-1]
    assert said[-1].startswith("koopsim: ")
    assert not list(cut.rglob(".*koopsim-part"))  # nothing half-written
    assert main([WORK[work][0], "--resume", str(cut), "--device", "cpu"]) == 0
    assert json.loads((cut / "result.json").read_text())["test"] == uncut(work)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["reproduce", "figure2", "--out", "OUT"], "figure2.png"),
        (["export", "zoo:mnist/sim-single", "--format", "pt2", "--out", "OUT/m.pt2"], "m.pt2"),
    ],
)
def test_pictures_and_exports_are_whole_or_not_there(words, file, tmp_path, monkeypatch, capsys):
    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs.os, "fsync", fsync)
    assert main([word.replace("OUT", str(tmp_path)) for word in words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert file in said[-1]
    assert "No space left on device" in said[-1]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
