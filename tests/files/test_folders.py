"""Nobody else's files are touched, and nobody else works in a folder that is held."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from koopsim.errors import KoopsimError
from koopsim.files import folders, writing
from koopsim.files.writing import PART, append_line, sweep, whole_file, write_atomically, write_json


def taken(folder: Path, names=("a.json",), overwrite=False) -> None:
    with folders.held(folder):
        folders.claim(folder, "test", names, overwrite)
        for name in names:
            write_json(folder / name, "ours")


def test_a_foreign_file_is_replaced_only_when_told(tmp_path):
    (tmp_path / "a.json").write_text("mine")
    with pytest.raises(KoopsimError, match=r"a\.json is there already and koopsim did not write it"):
        taken(tmp_path)
    assert (tmp_path / "a.json").read_text() == "mine"
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]  # and no marker was left
    taken(tmp_path, overwrite=True)
    assert json.loads((tmp_path / "a.json").read_text()) == "ours"


def test_our_own_files_are_replaced_but_not_others_beside_them(tmp_path):
    taken(tmp_path / "d")
    (tmp_path / "d" / "b.json").write_text("mine")
    taken(tmp_path / "d")
    with pytest.raises(KoopsimError, match="did not write it"):
        taken(tmp_path / "d", ("a.json", "b.json"))
    assert (tmp_path / "d" / "b.json").read_text() == "mine"


def test_a_folder_or_a_link_in_the_way_stays_even_with_overwrite(tmp_path):
    (tmp_path / "d" / "a.json").mkdir(parents=True)
    with pytest.raises(KoopsimError, match="stands where a file of koopsim would"):
        taken(tmp_path / "d", overwrite=True)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "a.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KoopsimError, match="stands where a file"):
        taken(tmp_path / "e", overwrite=True)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\\b", "a\0b", "a\nb", "\x1b[31m", 7, None, "x" * 300])
def test_names_that_lead_elsewhere(name, tmp_path):
    with pytest.raises(KoopsimError, match="A picture is called"):
        folders.inside(tmp_path, name, "A picture")


def test_a_link_inside_is_not_followed(tmp_path):
    (tmp_path / "best").symlink_to(tmp_path.parent)
    with pytest.raises(KoopsimError, match="is a link to somewhere else"):
        folders.inside(tmp_path, "best")


def test_only_what_we_made_is_removed_whole(tmp_path):
    theirs = tmp_path / "ray"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine")
    with pytest.raises(KoopsimError, match="was not made by koopsim"):
        folders.remove_inside(tmp_path, "ray")
    assert (theirs / "thesis.txt").read_text() == "mine"
    made = folders.make_inside(tmp_path, "tuned")
    (made / "x").write_text("")
    folders.remove_inside(tmp_path, "tuned")
    assert not made.exists()


HOLD = """
import sys, time
from koopsim.files import folders, writing
with folders.held(sys.argv[1]):
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(KoopsimError, match="in use by another koopsim process"), folders.held(tmp_path / "d"):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    with folders.held(tmp_path / "d"), folders.held(tmp_path / "d"):  # the same thread may, twice
        pass


def test_nothing_is_left_where_nothing_was_written(tmp_path):
    with pytest.raises(RuntimeError), folders.held(tmp_path / "a" / "b") as folder:
        folders.claim(folder, "test", ["x.json"])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [[{}], [["x"]], [3, None], ["a\0b"], "x", {"a": 1}, ["../other"], None])
def test_a_marker_that_somebody_edited(files, tmp_path):
    taken(tmp_path / "d")
    (tmp_path / "other").write_text("mine")
    (tmp_path / "d" / folders.MARKER).write_text(json.dumps({"koopsim": 1, "files": files}))
    with folders.held(tmp_path / "d") as folder:
        assert "../other" not in folders.our_names(folder)
    with pytest.raises(KoopsimError, match="did not write it"):
        taken(tmp_path / "d")
    assert (tmp_path / "other").read_text() == "mine"


def test_what_was_to_be_replaced_is_not_taken_for_the_new(tmp_path):
    taken(tmp_path)
    killed = "import os, sys; from pathlib import Path; from koopsim.files import folders as f; d = Path(sys.argv[1])\n"
    killed += "with f.held(d), f.replacing(d, True): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    with pytest.raises(KoopsimError, match="started again with --overwrite"):
        folders.refuse_replaced(tmp_path, "train")
    with pytest.raises(ValueError, match="broken"), folders.held(tmp_path), folders.replacing(tmp_path, True):
        raise ValueError("broken data")
    folders.refuse_replaced(tmp_path, "train")  # an error leaves the old as it was


def test_temporary_files_of_the_dead_are_swept_and_of_the_living_not(tmp_path):
    dead = tmp_path / f".a.json.12345678{PART}"
    dead.write_text("half")
    theirs = tmp_path / ".a.json.original"
    theirs.write_text("mine")
    with whole_file(tmp_path / "live.bin") as file:
        file.write(b"1")
        sweep(tmp_path)
        file.write(b"2")
    assert (tmp_path / "live.bin").read_bytes() == b"12"
    assert not dead.exists()
    assert theirs.read_text() == "mine"
    dead.write_text("half")
    with folders.held(tmp_path):
        pass
    assert not dead.exists()


def test_a_lone_file_written_again_leaves_nothing_of_the_dead(tmp_path):
    """A library's save or a verb's `--out FILE` has no folder of its own that is swept."""
    dead, others = tmp_path / f".a[1].csv.12345678{PART}", tmp_path / f".b.csv.12345678{PART}"
    for part in (dead, others):
        part.write_text("half")
    with whole_file(tmp_path / "a[1].csv") as first:
        first.write(b"first")
        write_atomically(tmp_path / "a[1].csv", b"second, meanwhile")  # does not take the first one's
    assert (tmp_path / "a[1].csv").read_bytes() == b"first"
    assert {path.name for path in tmp_path.iterdir()} == {"a[1].csv", others.name}


def test_a_temporary_file_that_was_swept_before_its_lock_is_made_again(tmp_path, monkeypatch):
    real, taken = writing.try_lock, []

    def swept_first(handle):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return real(handle)

    monkeypatch.setattr(writing, "try_lock", swept_first)
    write_atomically(tmp_path / "a", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_a_device_a_pipe_and_a_folder_are_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(KoopsimError, match="will not be replaced"):
            write_atomically(tmp_path / name, b"x")
    with pytest.raises(KoopsimError, match="device"):
        write_atomically(Path("/dev/null"), b"x")
    with pytest.raises(KoopsimError, match="pipe"):
        append_line(tmp_path / "pipe", "x")


def test_a_line_is_not_added_through_a_link(tmp_path):
    (tmp_path / "theirs").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="metrics"):
        append_line(tmp_path / "metrics.jsonl", "x")
    assert (tmp_path / "theirs").read_text() == "mine"
