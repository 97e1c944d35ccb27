"""A run directory kept at a URL: by a file system of files, an S3 server of this machine, and one of memory."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.files.mirror import Mirror
from koopsim.presets import run_of
from koopsim.training import Session, mirror_of, resume_run, start_run

CPU = torch.device("cpu")


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def url(request, tmp_path, monkeypatch):
    if request.param == "file":
        yield f"file://{tmp_path}/far/away/run"
    elif request.param == "memory":
        yield f"memory://{tmp_path.name}/run"
    else:
        yield from s3_server(tmp_path, monkeypatch)


def s3_server(tmp_path, monkeypatch):
    """moto's server, in a process of its own."""
    pytest.importorskip("moto.server", exc_type=ImportError)
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    at = f"http://127.0.0.1:{port}"
    known = {"AWS_ENDPOINT_URL": at, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    for name, value in (known | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket/runs/one"
    finally:
        server.kill()
        server.wait()


def small():
    run = run_of("copy/sim-single", "smoke")
    task = replace(run.task, horizon=3, train=30, valid=5, test=5)
    lift = replace(run.model.lift, levels=2)
    return replace(run, task=task, model=replace(run.model, lift=lift), recipe=replace(run.recipe, epochs=3))


@pytest.mark.filterwarnings("ignore")  # moto's and botocore's own
def test_a_run_stopped_on_one_machine_goes_on_on_another(url, tmp_path):
    wanted = start_run(small(), tmp_path / "whole", "x", Session(CPU))

    def stops(event):
        if event["event"] == "epoch" and event["epoch"] == 2:
            os.kill(os.getpid(), 15)

    with pytest.raises(Stopped):
        start_run(small(), tmp_path / "first", "x", Session(CPU, listen=stops, mirror=mirror_of(url)))
    result = resume_run(tmp_path / "second", Session(CPU, mirror=mirror_of(url)))  # nothing of the first is here
    assert result["test"] == wanted["test"]
    strip = [{k: v for k, v in line.items() if k != "seconds"} for line in result["metrics"]]
    assert strip == [{k: v for k, v in line.items() if k != "seconds"} for line in wanted["metrics"]]
    third = mirror_of(url)
    (tmp_path / "third").mkdir()
    assert third.fetch(tmp_path / "third")
    assert json.loads((tmp_path / "third" / "result.json").read_text())["test"] == wanted["test"]
    with pytest.raises(KoopsimError, match="already holds a run: go on with"):
        start_run(small(), tmp_path / "fourth", "x", Session(CPU, mirror=mirror_of(url)))


def test_the_url_is_the_truth_and_only_what_changed_is_sent(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    mirror = Mirror(f"file://{there}", ("a", "b", "c"))
    for name in "abc":
        (here / name).write_text(name)
    mirror.push(here)
    (there / "a").write_text("changed there")
    (here / "b").write_text("changed here")
    mirror.push(here)
    assert [(there / n).read_text() for n in "abc"] == ["changed there", "changed here", "c"]
    (there / "c").unlink()
    assert Mirror(f"file://{there}", ("a", "b", "c")).fetch(here)
    assert sorted(p.name for p in here.iterdir()) == ["a", "b"]
    assert (here / "a").read_text() == "changed there"
    assert not Mirror(f"file://{tmp_path}/nowhere", ("a",)).fetch(here)
    assert (here / "a").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [("/a/path", "is no URL; expected s3://BUCKET/RUN"), ("nonsense://x", "cannot be used: Protocol not known"),
     ("dropbox://x", "cannot be used:")],
)  # fmt: skip
def test_what_is_no_storage_is_refused(url, why):
    with pytest.raises(KoopsimError, match=why):
        Mirror(url, ("a",))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(KoopsimError, match=r"Cannot keep a at file://.*What was saved before is whole"):
        Mirror(f"file://{tmp_path}/file/run", ("a",)).push(Path(tmp_path))


def test_a_strangers_files_are_replaced_neither_there_nor_here(tmp_path):
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    start_run(small(), mine, "x", Session(CPU))
    theirs.mkdir()
    (theirs / "result.json").write_text("a thesis")
    here = {file.name: file.read_bytes() for file in mine.iterdir()}
    mirror = mirror_of(f"file://{theirs}")
    with pytest.raises(KoopsimError, match=r"has a result\.json but no config\.json"):
        start_run(small(), tmp_path / "other", "x", Session(CPU, mirror=mirror))
    with pytest.raises(KoopsimError, match=r"has a result\.json but no config\.json"):
        resume_run(mine, Session(CPU, mirror=mirror))
    (theirs / "config.json").write_text('{"theirs": 1}')
    with pytest.raises(KoopsimError):
        resume_run(mine, Session(CPU, mirror=mirror))
    assert {file.name: file.read_bytes() for file in mine.iterdir()} == here
    assert (theirs / "result.json").read_text() == "a thesis"
    assert len(list(theirs.iterdir())) == 2


@pytest.fixture
def kept(tmp_path):
    """(a folder with a finished run, the folder in which it is kept besides, that one's URL)"""
    url = f"file://{tmp_path}/there"
    start_run(small(), tmp_path / "here", "x", Session(CPU, mirror=mirror_of(url)))
    return tmp_path / "here", tmp_path / "there", url


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_what_is_damaged_there_replaces_nothing_here(kept):
    here, there, url = kept
    before = content(here)
    for name, data in (("checkpoint.safetensors", b"\0" * 99), ("result.json", b"{"), ("config.json", b"[]")):
        good = (there / name).read_bytes()
        (there / name).write_bytes(data)
        with pytest.raises(KoopsimError, match=f"{url}/{name}"):
            resume_run(here, Session(CPU, mirror=mirror_of(url)))
        assert content(here) == before
        (there / name).write_bytes(good)
    resume_run(here, Session(CPU, mirror=mirror_of(url)))


def test_another_run_replaces_nothing_here(kept, tmp_path):
    _, _, url = kept
    start_run(replace(small(), seed=7), tmp_path / "mine", "x", Session(CPU))
    before = content(tmp_path / "mine")
    with pytest.raises(KoopsimError, match=f"holds another run than {url}"):
        resume_run(tmp_path / "mine", Session(CPU, mirror=mirror_of(url)))
    assert content(tmp_path / "mine") == before


def test_overwrite_leaves_no_older_result_at_the_url(kept, tmp_path):
    _, there, url = kept

    def killed(event):
        raise SystemExit  # before the first epoch was saved

    with pytest.raises(SystemExit):
        start_run(
            replace(small(), seed=7), tmp_path / "new", "x", Session(CPU, listen=killed, mirror=mirror_of(url)), True
        )
    assert json.loads((there / "config.json").read_text())["run"]["seed"] == 7
    assert not (there / "result.json").exists()
    assert not (there / "checkpoint.safetensors").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_links_and_pipes_at_the_url_are_left_alone(kept, tmp_path):
    here, there, url = kept
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (there / "metrics.jsonl").unlink()
    (there / "metrics.jsonl").symlink_to(secret)
    for again in (lambda: resume_run(here, Session(CPU, mirror=mirror_of(url))),
                  lambda: start_run(small(), here, "x", Session(CPU, mirror=mirror_of(url)), True)):  # fmt: skip
        with pytest.raises(KoopsimError, match="is a link to somewhere else"):
            again()
    assert secret.read_text() == "mine"
    (there / "metrics.jsonl").unlink()
    os.mkfifo(there / "metrics.jsonl")
    with pytest.raises(KoopsimError, match="is a pipe, a socket or a device"):
        resume_run(here, Session(CPU, mirror=mirror_of(url)))


def test_what_a_killed_process_left_at_the_url_is_swept(kept):
    here, there, url = kept
    (there / ".result.json.abcdefgh.koopsim-part").write_bytes(b"half")
    resume_run(here, Session(CPU, mirror=mirror_of(url)))
    assert not list(there.glob(".*koopsim-part"))


def test_rays_notes_beside_a_run_are_removed_only_where_they_are_ours(tmp_path):
    from koopsim.ray_training import _Storage

    theirs = tmp_path / ".run.ray"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine")
    with pytest.raises(KoopsimError, match="koopsim did not make it"):
        _Storage(tmp_path / "run", None)
    with pytest.raises(KoopsimError, match="koopsim did not make it"):
        (tmp_path / "url.ray").mkdir()
        _Storage(tmp_path / "run", mirror_of(f"file://{tmp_path}/url"))
    assert (theirs / "thesis.txt").exists()
    for _ in range(2):  # of one that was killed
        ours = _Storage(tmp_path / "other", None)
    ours.remove()
    assert not (tmp_path / ".other.ray").exists()
