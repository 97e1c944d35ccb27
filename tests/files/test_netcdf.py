"""NetCDF and HDF5 in a process of their own: the same arrays, and an end whatever the library does."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from koopsim.errors import KoopsimError
from koopsim.files import netcdf
from koopsim.files.netcdf import read_netcdf

LOOPING = Path(__file__).parent / "looping.h5"  # two variables of 30 numbers, some of its bits flipped
xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")


def test_arrays_come_through_the_pipe_as_they_are(tmp_path):
    own = {
        "time": np.array(["2024-01-01", "2024-01-03"], "M8[ns]"),
        "a": np.array([1.5, np.nan]),
        "b": np.array([True, False]),
        "c": np.array([[1, -2], [3, 2**40]]),
        "none": np.empty((2, 0), np.float32),
        "field": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
    }
    axes = ("time", "y", "x", "z", "none")
    shaped = {n: (("time", *(f"{n}{k}" for k in axes[1 : a.ndim])), a) for n, a in own.items() if n != "time"}
    xarray.Dataset(shaped, {"time": own["time"]}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    found = read_netcdf(tmp_path / "a.nc")
    assert found.keys() == own.keys()
    for name, wanted in own.items():
        wanted = wanted.reshape(2, -1) if wanted.ndim > 2 else wanted
        assert found[name].dtype.kind == wanted.dtype.kind
        np.testing.assert_array_equal(found[name], wanted)


def test_a_file_that_the_library_never_ends_with_is_given_up(monkeypatch):
    monkeypatch.setattr(netcdf, "SECONDS", 2)
    with pytest.raises(KoopsimError, match=r"looping\.h5 cannot be read: the library was not done .* after 2 s"):
        read_netcdf(LOOPING)


def test_the_clock_ends_what_takes_no_processor_time(monkeypatch, tmp_path):
    monkeypatch.setattr(netcdf, "CHILD", "import time; time.sleep(600)")
    monkeypatch.setattr(netcdf, "SECONDS", 1)
    (tmp_path / "a.h5").write_bytes(b"x")
    with pytest.raises(KoopsimError, match="not done with its 1 bytes after 1 s"):
        read_netcdf(tmp_path / "a.h5")


def test_a_crash_of_the_library_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(netcdf, "CHILD", "import os; os.abort()")
    (tmp_path / "a.h5").write_bytes(b"x")
    with pytest.raises(KoopsimError, match="the library crashed on it"):
        read_netcdf(tmp_path / "a.h5")


def test_nobody_left_to_end_the_child_the_system_does():
    if sys.platform == "win32":
        pytest.skip("the system counts no processor time")
    done = subprocess.run([sys.executable, "-P", "-c", netcdf.CHILD, str(LOOPING), "2"], capture_output=True)
    assert (done.returncode, done.stdout) == (netcdf.OVER, b"")


def test_a_module_that_lies_beside_the_file_is_not_run(tmp_path, monkeypatch):
    xarray.Dataset({"a": ("time", [1.0, 2.0])}).to_netcdf(tmp_path / "a.nc", engine="scipy")
    (tmp_path / "xarray.py").write_text("import pathlib; pathlib.Path('run').write_text('')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert read_netcdf(Path("a.nc"))["a"].tolist() == [1, 2]
    assert not os.path.exists("run")


def test_more_memory_than_there_is_is_not_asked_for(tmp_path, monkeypatch):
    xarray.Dataset({"a": ("time", np.zeros(50)), "time": np.arange(50.0)}).to_netcdf(tmp_path / "a.nc")
    asked = []
    monkeypatch.setattr(netcdf, "require_memory", lambda size, what: asked.append((size, what)))
    assert netcdf._arrays_of(tmp_path / "a.nc").keys() == {"a", "time"}
    assert asked == [(3 * 2 * 50 * 8, f"{tmp_path / 'a.nc'} asks for")]
