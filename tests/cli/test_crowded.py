"""Machines as they are: no home, no UTF-8, forty columns, little memory, a reader that goes away, an impatient user.

Each in a process of its own, for every verb that writes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RUN = "train copy/sim-single --scale smoke --device cpu --recipe.epochs 1 --task.horizon 3".split()
RUN += "--model.lift.levels 2 --task.train 40 --task.valid 10 --task.test 10".split()
FIT = "--steps 4 --features 4 --hidden 4 --no-animation --device cpu".split()
VERBS = {
    "train": [*RUN, "--out", "o"],
    "tune": ["tune", *RUN[1:], "--trials", "1", "--max-t", "1", "--retrain", "0", "--out", "o"],
    "fit": ["fit", "p.png", *FIT, "--out", "o"],
    "spectrum": ["spectrum", "a.npy", "--out", "o"],
    "report": ["report", "run", "--out", "o"],
    "eval": ["eval", "run", "--device", "cpu"],
    "forecast": ["forecast", "t.csv", "--steps", "5", "--out", "o"],
    "export": ["export", "run", "--format", "pt2", "--no-check", "--out", "m.pt2"],
    "render": ["render", "fits/p", "--out", "r.png", "--device", "cpu"],
    "predict": ["predict", "named", "p.png", "--out", "a.csv", "--device", "cpu"],
    "bench": ["bench", "fuse", "--quick", "--device", "cpu", "--out", "o"],
    "reproduce": ["reproduce", "figure1", "--scale", "smoke", "--out", "o"],
    "data": ["data", "get", "digits", "--root", "o"],
}
WRITTEN = {"o", "m.pt2", "r.png", "a.csv"}  # by --out or --root


def koopsim(argv, where: Path, environment: dict[str, str] | None = None, **more) -> subprocess.CompletedProcess:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "XDG_", "HOME"))}
    plain |= {"HOME": "/root", "OMP_NUM_THREADS": "1"} | (environment or {})
    command = [sys.executable, "-m", "koopsim", *argv]
    return subprocess.run(command, cwd=where, env=plain, capture_output=True, timeout=300, check=False, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with something for every verb to read."""
    folder = tmp_path_factory.mktemp("crowded")
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(folder / "p.png")
    np.save(folder / "a.npy", 0.5 * np.eye(3))
    np.savetxt(folder / "t.csv", np.cos(0.3 * np.arange(60))[:, None])
    assert koopsim([*RUN, "--out", "run"], folder).returncode == 0
    assert koopsim(["fit", "p.png", *FIT, "--out", "fits"], folder).returncode == 0
    rng = np.random.default_rng(0)
    np.savez(folder / "x.npz", x=rng.integers(0, 255, (40, 8, 8), np.uint8), y=np.arange(40) % 2)
    named = ["train", "--data", "x.npz", "--device", "cpu", "--recipe.epochs", "1", "--out", "named"]
    assert koopsim(named, folder).returncode == 0
    return folder


@pytest.fixture
def here(made, tmp_path):
    import shutil

    return Path(shutil.copytree(made, tmp_path / "w"))


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_no_home_no_utf8_forty_columns(verb, here):
    odd = {"HOME": "/nonexistent/home", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "40"}
    done = koopsim(VERBS[verb], here, odd)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_that_goes_away_makes_no_noise(verb, here):
    """As in `koopsim ... | head -1`, with a reader that reads nothing at all; and with no standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "koopsim", *VERBS[verb]]
    done = subprocess.run(command, cwd=here, stdout=writer, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(writer)
    assert b"BrokenPipe" not in done.stderr
    assert b"Traceback" not in done.stderr
    closed = koopsim(["--version"], here, preexec_fn=lambda: os.close(1))
    assert b"Traceback" not in closed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", [verb for verb, argv in VERBS.items() if WRITTEN & set(argv) and verb != "data"])
def test_a_path_that_is_not_utf8_is_refused_before_the_work(verb, here):
    argv = [os.fsencode(a) for a in VERBS[verb]]
    place = next(i for i, a in enumerate(VERBS[verb]) if a in WRITTEN)
    argv[place] = b"\xff\xfe" + os.fsencode(Path(VERBS[verb][place]).suffix)
    done = koopsim(argv, here)
    assert b"Traceback" not in done.stderr
    if verb in ("export", "render", "predict"):  # one file, which may be called anything
        assert done.returncode == 0, done.stderr[-2000:]
        assert (here / os.fsdecode(argv[place])).stat().st_size
        return
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.count(b"\n") == 1
    assert b"is not UTF-8" in done.stderr
    assert not (here / os.fsdecode(argv[place])).exists()


LARGE = {
    "train": ["--model.hidden", "200000"],
    "tune": ["--model.hidden", "200000"],
    "fit": ["--features", "200000000"],
    "spectrum": ["--as", "matrix"],
    "forecast": [],
    "predict": [],
}  # what asks for too much; the other verbs have nothing that could


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_little_memory(verb, here):
    """6 GiB of addresses let Python, PyTorch and ordinary work in, and not what is too large: that is one line."""
    import resource

    argv = [*VERBS[verb], *LARGE.get(verb, [])]
    if verb in ("spectrum", "forecast", "predict"):
        with (here / "large.npy").open("wb") as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": (30_000, 30_000)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 30_000 * 30_000 * 8)
        argv = ["large.npy" if a in ("a.npy", "t.csv") else a for a in argv]
    if verb == "predict":
        Image.new("1", (13_000, 13_000)).save(here / "p.png")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    done = koopsim(argv, here, preexec_fn=limited)
    assert b"Traceback" not in done.stderr
    assert done.returncode == (2 if verb in LARGE else 0), done.stderr[-2000:]
    if verb in LARGE:
        assert b"memory" in done.stderr or b"pixels" in done.stderr


IMPATIENT = """
import atexit, os, signal, sys
import torch, matplotlib.pyplot, koopsim.cli.{module}
from koopsim.cli.leaving import run_and_leave
signal.signal(signal.SIGVTALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
atexit.register(signal.setitimer, signal.ITIMER_VIRTUAL, 0)  # Python is over then, and the signal would end it
signal.setitimer(signal.ITIMER_VIRTUAL, {after}, 0.01)  # seconds of its own, which no other process uses up
run_and_leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.05, 0.4])
@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_again_and_again(verb, after, here):
    """An impatient user, whatever the verb is doing: no traceback, and no file that is half there."""
    module = {"eval": "evaluate"}.get(verb, verb)
    command = [sys.executable, "-c", IMPATIENT.format(module=module, after=after), *VERBS[verb]]
    env = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, timeout=300, check=False)
    assert done.returncode in (0, 130), done.stderr[-2000:]
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert not list(here.rglob("*.koopsim-part"))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "tune"])
def test_ctrl_c_twice(verb, here):
    """Once: saved, and how to go on. Twice: at once. Neither is a traceback."""
    long = [*VERBS[verb], "--recipe.epochs", "100000"]
    if verb == "tune":
        long += ["--max-t", "100000"]
    for presses in (1, 2):
        process = subprocess.Popen(
            [sys.executable, "-m", "koopsim", *long, "--overwrite"], cwd=here, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        known = here / "o" / ("config.json" if verb == "train" else "search.json")
        known.unlink(missing_ok=True)
        until = time.monotonic() + 100
        while not known.exists() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(2)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, err = process.communicate(timeout=100)
        assert process.returncode == 130, err
        assert b"Traceback" not in err
