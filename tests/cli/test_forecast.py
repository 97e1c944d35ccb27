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
    for options in (("--degree", 1), ("--method", "optimised")):
        found = answered(capsys, "forecast", tmp_path / "z.npy", "--steps", 60, *options)
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


def damped(t):
    return 0.95**t * np.cos(0.3 * t)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("options", [(), ("--method", "optimised", "--modes", 2)])
def test_a_gap_is_not_the_end(tmp_path, capsys, timed, options):
    """The forecast goes on from the last sample there is, not from where the longest piece ends."""
    rows = [f"{t},{damped(t):.17g}" if timed else f"{damped(t):.17g}" for t in range(100)]
    rows[60] = "60," if timed else "nan"
    (tmp_path / "g.csv").write_text("\n".join(["t,x" if timed else "x", *rows]) + "\n")
    found = answered(capsys, "forecast", tmp_path / "g.csv", "--steps", 5, *options)
    assert found["times"] == pytest.approx(np.arange(100, 105))
    np.testing.assert_allclose(np.array(found["values"])[:, 0], damped(np.arange(100, 105)), atol=1e-6)
    assert found["from"] == {"trajectory": 1, "trajectories": 1, "samples": 39, "time": 99.0}
    assert main(["forecast", str(tmp_path / "g.csv"), *map(str, options)]) == 0
    out = capsys.readouterr().out
    assert "goes on from the last piece: 39 samples up to time 99" in out
    assert "2 pieces of 39 to 60" in out


def test_a_last_piece_too_short_for_its_delays(tmp_path, capsys):
    x = damped(np.arange(100))
    x[95] = np.nan
    np.save(tmp_path / "g.npy", x)
    assert "--delays 3" in refused(capsys, "forecast", tmp_path / "g.npy", "--steps", 5)
    assert answered(capsys, "forecast", tmp_path / "g.npy", "--steps", 5, "--delays", 3)["times"][0] == 100


def test_the_shortest_file_is_forecast_by_one_step(tmp_path, capsys):
    (tmp_path / "short.csv").write_text("t,x\n0,1\n1,2\n2,4\n")
    assert answered(capsys, "forecast", tmp_path / "short.csv")["times"] == [3.0]


def test_of_several_trajectories_the_one_that_ends_last(tmp_path, capsys):
    lines = ["t,trajectory,x"]
    for k, (start, stop) in enumerate([(0, 50), (30, 60), (10, 40)]):
        lines += [f"{t},{k},{damped(t):.17g}" for t in range(start, stop)]
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    found = answered(capsys, "forecast", tmp_path / "s.csv", "--steps", 2)
    assert found["times"] == [60, 61]
    assert found["from"]["trajectory"] == 2
    assert any("trajectory 2 of 3" in note for note in found["said"])
    np.save(tmp_path / "z.npy", np.stack([wave(T), 2 * wave(T), 3 * wave(T)]))
    found = answered(capsys, "forecast", tmp_path / "z.npy", "--steps", 1)
    assert found["from"]["trajectory"] == 3  # without times the last in the file
    np.testing.assert_allclose(found["values"][0], 3 * wave(np.array([45.0]))[0], atol=1e-6)


@pytest.mark.parametrize("options", [("--delays", 0), ("--method", "optimised", "--modes", 1)])
def test_both_parts_of_complex_numbers(tmp_path, capsys, options):
    z = (0.95 * np.exp(0.3j)) ** np.arange(105)
    np.save(tmp_path / "c.npy", z[:100])
    found = answered(capsys, "forecast", tmp_path / "c.npy", "--steps", 5, "--out", tmp_path / "f", *options)
    assert found["names"] == ["z0.re", "z0.im"]
    np.testing.assert_allclose(found["values"], np.c_[z.real, z.imag][100:], atol=1e-8)
    assert (tmp_path / "f" / "forecast.csv").read_text().startswith("time,z0.re,z0.re_low,z0.re_high,z0.im,")


@pytest.mark.parametrize(
    ("verb", "options", "sentence"),
    [
        ("spectrum", "--degree 0", "--degree is 0"),
        ("spectrum", "--dictionary rff --bandwidth 0", "--bandwidth is 0"),
        ("forecast", "--dictionary nystrom --bandwidth -1", "--bandwidth is -1"),
        ("forecast", "--method optimised --modes 0", "n_modes >= 1"),
        ("forecast", "--modes 3", "--modes: exponentials are counted for --method optimised"),
        ("forecast", "--method optimised --control x", "--control: --method optimised"),
        ("forecast", "--method optimised --degree 2 --delays 3", "--delays, --degree"),
    ],
)
def test_an_option_is_used_or_refused(table, capsys, verb, options, sentence):
    assert sentence in refused(capsys, verb, table, *options.split())


def test_the_head_of_exponentials_names_no_other_fit(table, capsys):
    assert main(["forecast", str(table), "--method", "optimised"]) == 0
    assert "misfit" not in capsys.readouterr().out


def test_a_forecast_that_overflows_says_where(tmp_path, capsys):
    np.save(tmp_path / "up.npy", 1.1 ** np.arange(40))
    for options in (("--delays", 0, "--degree", 1), ("--method", "optimised", "--modes", 1)):
        said = refused(capsys, "forecast", tmp_path / "up.npy", "--steps", 100000, *options)
        first = int(said.split("from step ")[1].split()[0])
        assert first == pytest.approx(np.log(np.finfo(float).max) / np.log(1.1) - 39, abs=2)
        assert "--steps" in said


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
