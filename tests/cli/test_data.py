import json
import sys

import pytest

from koopsim.cli import main
from koopsim.cli.data import DownloadProgress


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    return tmp_path / "data"


def test_help_teaches(capsys):
    for argv in (["data"], ["data", "--help"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in ("list", "get NAME", "path", "KOOPSIM_DATA", "npm", "class/name.png"))


@pytest.mark.parametrize("verb", ["list", "get", "path"])
def test_each_part_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["data", verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "--root" in out


def test_path(root, tmp_path, capsys):
    assert main(["data", "path"]) == 0
    assert capsys.readouterr().out == f"{root}\n"
    assert main(["data", "path", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path)}


def test_list(root, capsys):
    (root / "mnist").mkdir(parents=True)
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(bytes(10_008))
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["cifar10", "svhn", "mnist", "digits"]  # as in Table 2
    assert rows["digits"]["present"]
    assert rows["svhn"] == {
        "name": "svhn", "title": "SVHN, cropped digits", "train": 73_257, "test": 26_032, "shape": [3, 32, 32],
        "present": False, "missing": ["train_32x32.mat", "test_32x32.mat"], "bytes": 0,
        "download_bytes": 182_040_794 + 64_275_384, "folder": str(root / "svhn"),
    }  # fmt: skip
    assert rows["mnist"]["bytes"] == 10_008
    assert len(rows["mnist"]["missing"]) == 3
    assert rows["mnist"]["download_bytes"] == 9_912_422 + 28_881 + 1_648_877
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "not here: koopsim data get svhn (246.3 MB)" in out
    assert "3 files missing: koopsim data get mnist" in out
    assert str(root) in out


def test_get_what_needs_no_download(capsys):
    assert main(["data", "get", "digits", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == [{"name": "digits", "how": "built in", "folder": None, "train": 1437, "test": 360}]
    assert main(["data", "get", "digits"]) == 0
    assert "1,437 training and 360 test pictures" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["get"], "Name what to fetch"),
        (["get", "digits", "cifr10"], "Did you mean 'cifar10'?"),
        (["lits"], "Did you mean 'list'?"),
    ],
)
def test_mistakes_are_one_line(argv, why, root, capsys):
    assert main(["data", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert why in err
    assert not root.exists()


def test_a_broken_file_is_one_line_and_named(root, capsys):
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (root / "mnist").mkdir(parents=True, exist_ok=True)
        (root / "mnist" / f"{name}-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    assert main(["data", "get", "mnist", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "train-images-idx3-ubyte is truncated" in err


def test_progress_goes_to_standard_error(capsys):
    with DownloadProgress() as listen:
        listen.last_line = -1e9
        listen({"event": "download", "file": "a.gz", "from": "host", "done": 5_000_000, "total": 10_000_000})
        listen({"event": "download", "file": "a.gz", "from": "host", "done": 6_000_000, "total": 10_000_000})
        listen({"event": "problem", "file": "a.gz", "from": "host", "why": "answered 500"})
        listen({"event": "npm", "package": "p@1", "why": ""})
        listen({"event": "waiting", "folder": "f"})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "a.gz: 5.0 MB of 10.0 MB",
        "a.gz: host answered 500",
        "No mirror worked; trying the npm package p@1",
        "Another process is fetching into f; waiting for it",
    ]


def test_the_bar_is_drawn_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with DownloadProgress() as listen:
        listen({"event": "download", "file": "a.gz", "from": "host", "done": 5_000_000, "total": 10_000_000})
        listen({"event": "problem", "file": "a.gz", "from": "host", "why": "answered 500"})
    out, err = capsys.readouterr()
    assert out == ""
    assert "5.0/10.0 MB" in err
    assert "answered 500" in err
