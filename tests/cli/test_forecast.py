"""koopsim forecast, and what spectrum makes of files that are not bare arrays."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from koopsim.cli import main


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def answered(capsys, *arguments) -> dict:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments) -> str:
    assert main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


T = 5.0 + 0.25 * np.arange(160)


def wave(t):
    return np.c_[np.cos(0.8 * t), np.sin(0.8 * t)] * np.exp(-0.02 * t)[:, None]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "z.csv"
    np.savetxt(path, np.c_[T, wave(T)], delimiter=",", header="time,x,y", comments="")
    return path


def test_forecast_goes_on_with_the_wave(table, tmp_path, capsys):
    found = answered(capsys, "forecast", table, "--steps", 30, "--out", tmp_path / "out")
    assert found["names"] == ["x", "y"]
    ahead = T[-1] + 0.25 * np.arange(1, 31)
    np.testing.assert_allclose(found["times"], ahead)
    np.testing.assert_allclose(found["values"], wave(ahead), atol=1e-6)
    assert np.max(found["errors"]) < 1e-6
    files = {p.name for p in (tmp_path / "out").iterdir() if not p.name.startswith(".")}
    assert {"forecast.csv", "forecast.json", "forecast.png"} <= files
    rows = list(csv.reader((tmp_path / "out" / "forecast.csv").read_text().splitlines()))
    assert rows[0] == ["time", "x", "x_low", "x_high", "y", "y_low", "y_high"]
    assert len(rows) == 31
    assert main(["forecast", str(table)]) == 0
    assert "held back" in capsys.readouterr().out


def test_bands_hold_what_happens(tmp_path, capsys):
    """Noisy observations of a turning state: the truth is in the band of two errors about as often as it should be."""
    rng = np.random.default_rng(0)
    t = np.arange(500)
    Z = np.c_[np.cos(0.1 * t), np.sin(0.1 * t)] + 0.05 * rng.standard_normal((500, 2))
    np.save(tmp_path / "z.npy", Z[:400])
    for options in ((), ("--method", "optimised")):
        found = answered(capsys, "forecast", tmp_path / "z.npy", "--steps", 60, "--degree", 1, *options)
        inside = np.abs(np.array(found["values"]) - Z[400:460]) <= 2 * np.array(found["errors"])
        assert inside.mean() > 0.85


def test_one_series_gets_delays_and_a_control_is_no_state(tmp_path, capsys):
    np.savetxt(tmp_path / "x.csv", np.c_[T, wave(T)[:, 0]], delimiter=",", header="t,x", comments="")
    modes = answered(capsys, "spectrum", tmp_path / "x.csv")["modes"]
    assert modes[0]["frequency"] == pytest.approx(0.8 / (2 * np.pi), rel=1e-6)
    assert modes[0]["lifetime"] == pytest.approx(50, rel=1e-4)
    rng = np.random.default_rng(0)
    u, z = rng.standard_normal(199), np.zeros((200, 1))
    for l in range(199):
        z[l + 1] = 0.9 * z[l] + 0.5 * u[l]
    np.savez(tmp_path / "c.npz", z=z, u=u[:, None])
    found = answered(capsys, "spectrum", tmp_path / "c.npz", "--control", "u", "--delays", 0, "--dt", 0.1)
    assert found["modes"][0]["growth"] == pytest.approx(np.log(0.9) / 0.1, rel=1e-9)
    assert "no column 'q'" in refused(capsys, "spectrum", tmp_path / "c.npz", "--control", "q")
    held = answered(capsys, "forecast", tmp_path / "c.npz", "--control", "u", "--delays", 0, "--steps", 3)
    assert any("last value" in note for note in held["said"])


def test_four_hundred_columns(tmp_path, capsys):
    x, t = np.linspace(0, 1, 400), np.arange(150)[:, None]
    Z = np.cos(2 * np.pi * (3 * x - 0.05 * t)) + 0.05 * np.random.default_rng(0).standard_normal((150, 400))
    np.savetxt(tmp_path / "w.csv", Z, delimiter=",")
    assert main(["spectrum", str(tmp_path / "w.csv"), "--dt", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "frequency" in line)
    assert lines[at].split() == ["frequency", "growth", "lifetime", "amplitude", "residual"]
    assert float(lines[at + 1].split()[0]) == pytest.approx(0.5, abs=2e-3)
    assert at < 4  # before the verdict


def test_gaps_and_uneven_times_are_said(tmp_path, capsys):
    keep = np.r_[0:50, 53:160]
    np.savetxt(tmp_path / "g.csv", np.c_[T, wave(T)][keep], delimiter=",", header="t,x,y", comments="")
    found = answered(capsys, "spectrum", tmp_path / "g.csv", "--degree", 1)
    assert found["pairs"] == 155
    assert any("1 gaps" in note for note in found["said"])
    t = np.sort(np.random.default_rng(0).uniform(0, 40, 400))
    np.savetxt(tmp_path / "u.csv", np.c_[t, wave(t)], delimiter=",", header="t,x,y", comments="")
    found = answered(capsys, "spectrum", tmp_path / "u.csv", "--degree", 1, "--dt", 0.1)
    assert any("spline" in note for note in found["said"])
    assert max(m["frequency"] for m in found["modes"]) == pytest.approx(0.8 / (2 * np.pi), rel=1e-3)


def test_refusals(table, tmp_path, capsys):
    assert "at least one sample" in refused(capsys, "forecast", table, "--steps", 0)
    assert "is a folder" in refused(capsys, "forecast", tmp_path)
    assert "dt" in refused(capsys, "forecast", table, "--dt", -1)
    assert "delays need" in refused(capsys, "forecast", table, "--delays", 400)
    (tmp_path / "nan.csv").write_text("x\n1\nnan\n2\nnan\n")
    assert "missing values" in refused(capsys, "forecast", tmp_path / "nan.csv")
    (tmp_path / "two.csv").write_text("x\n1\n2\n")
    assert refused(capsys, "forecast", tmp_path / "two.csv", "--method", "optimised", "--modes", 4)


def test_a_matrix_needs_no_torch(tmp_path):
    np.save(tmp_path / "a.npy", np.diag([1.0, 0.5]))
    verb = f"main(['spectrum', r'{tmp_path / 'a.npy'}'])"
    code = f"import sys; from koopsim.cli import main; {verb}; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "False"
