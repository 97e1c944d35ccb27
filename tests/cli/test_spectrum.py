"""koopsim spectrum on a matrix, trajectories and runs; every error one line, nothing half-written."""

import json
import warnings

import numpy as np
import pytest
import torch

from koopsim.cli import main
from koopsim.config import CopyMemoryConfig, DEQConfig, Recipe, Run, SIMConfig, SolverConfig, TCNConfig
from koopsim.implicit import UnconvergedWarning
from koopsim.runs import RunDirectory
from koopsim.training import Session, train_run

TASK = CopyMemoryConfig(horizon=2, train=40, valid=10, test=10)


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A SIM and a DEQ, trained for a moment."""
    folder = tmp_path_factory.mktemp("runs")
    solver = SolverConfig("anderson", 60, 1e-3)
    models = {"sim": SIMConfig(TCNConfig(2), lift_dim=12, hidden=8), "deq": DEQConfig(forward=solver, backward=solver)}
    for name, model in models.items():
        run = Run(model, TASK, Recipe(batch_size=20, epochs=2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnconvergedWarning)
            train_run(run, RunDirectory.create(folder / name, run, name), name, Session(torch.device("cpu")))
    return folder


def spectrum(capsys, *arguments) -> dict:
    assert main(["spectrum", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments) -> str:
    assert main(["spectrum", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def turning(steps: int = 60, angle: float = 0.3, growth: float = 1.0) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    R = growth * np.array([[c, -s], [s, c]])
    z = [np.array([1.0, 0.2])]
    for _ in range(steps):
        z.append(R @ z[-1])
    return np.array(z)


def test_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["spectrum", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--json", "--noise", "--dictionary", "--as", "--out"))


@pytest.mark.parametrize(
    ("matrix", "case"),
    [
        (np.diag([0.5, 0.2]), "origin"),
        (np.diag([1.0, 0.2]), "fixed-point"),
        (np.diag([-1.0, 0.2]), "invariant-set"),
        (np.array([[1.0, 1.0], [0.0, 1.0]]), "divergent"),
    ],
)
def test_matrix(tmp_path, capsys, matrix, case):
    np.save(tmp_path / "a.npy", matrix)
    found = spectrum(capsys, tmp_path / "a.npy")
    assert found["kind"] == "matrix"
    assert found["case"] == case
    assert found["files"] == []


def test_matrix_in_words_and_files(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.diag([1.0, 0.2]))
    assert main(["spectrum", str(tmp_path / "a.npy"), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "2 x 2 matrix" in out
    assert "fixed-point: every start settles" in out
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == ["verdict.json", "verdict.png"]
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["case"] == "fixed-point"
    assert (tmp_path / "out" / "verdict.png").read_bytes().startswith(b"\x89PNG")


def test_noise_is_passed_on(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.diag([1 - 1e-6, 0.3]))
    assert spectrum(capsys, tmp_path / "a.npy")["case"] == "origin"
    assert spectrum(capsys, tmp_path / "a.npy", "--noise", "1e-4")["case"] == "fixed-point"


@pytest.mark.parametrize("options", [[], ["--degree", "1"], ["--dictionary", "nystrom", "--features", "20"]])
def test_trajectory(tmp_path, capsys, options):
    np.save(tmp_path / "z.npy", turning())
    found = spectrum(capsys, tmp_path / "z.npy", *options)
    assert found["kind"] == "trajectory"
    if "nystrom" not in options:
        assert found["case"] == "invariant-set"
    assert found["pairs"] == 60


def test_rff(tmp_path, capsys):
    np.save(tmp_path / "z.npy", turning(300))
    found = spectrum(capsys, tmp_path / "z.npy", *"--dictionary rff --features 40 --bandwidth 2".split())
    assert found["observables"] == 40


def test_several_trajectories_are_not_joined(tmp_path, capsys):
    np.save(tmp_path / "z.npy", np.stack([turning(20, growth=0.9), 3 * turning(20, growth=0.9)]))
    assert spectrum(capsys, tmp_path / "z.npy")["pairs"] == 40


def test_csv_with_and_without_names(tmp_path, capsys):
    np.savetxt(tmp_path / "z.csv", turning(growth=0.9), delimiter=",")
    np.savetxt(tmp_path / "named.csv", turning(growth=0.9), delimiter=",", header="a,b", comments="")
    first, second = (spectrum(capsys, tmp_path / name) for name in ("z.csv", "named.csv"))
    assert first["case"] == second["case"] == "origin"
    assert first["eigenvalues"] == second["eigenvalues"]


def test_square_is_a_matrix_unless_told(tmp_path, capsys):
    np.save(tmp_path / "z.npy", turning(59) @ np.random.default_rng(0).normal(size=(2, 60)))
    assert spectrum(capsys, tmp_path / "z.npy")["kind"] == "matrix"
    assert spectrum(capsys, tmp_path / "z.npy", "--as", "trajectory", "--degree", "1")["kind"] == "trajectory"
    np.savetxt(tmp_path / "a.csv", np.diag([1.0, 0.5, 0.2]), delimiter=",")
    assert spectrum(capsys, tmp_path / "a.csv", "--as", "matrix")["case"] == "fixed-point"


def test_sim_run(runs, tmp_path, capsys):
    found = spectrum(capsys, runs / "sim", "--out", tmp_path / "out")
    assert found["kind"] == "sim"
    assert found["dim"] == 12
    assert found["rank"] == len(found["singular_values"]) == 6
    assert found["invariance_defect"] > 0
    assert 0 < found["readout"]["share"] <= 1
    assert found["verdict"]["case"] in ("origin", "divergent")
    assert len(found["files"]) == 2
    assert main(["spectrum", str(runs / "sim")]) == 0
    assert "invariance defect" in capsys.readouterr().out


def test_deq_run(runs, tmp_path, capsys):
    found = spectrum(capsys, runs / "deq", "--inputs", "3", "--steps", "60", "--out", tmp_path / "out")
    assert found["kind"] == "deq"
    assert len(found["cases"]) == len(found["settled"]) == found["inputs"] == 3
    assert sum(found["agreement"].values()) == pytest.approx(1)
    assert found["agreement"]["disagree"] == 0
    assert found["jacobian_agrees"] == found["jacobian_found"]
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"verdict.json", "verdict.png", "inputs.png", "sets.png"}
    assert main(["spectrum", str(runs / "deq"), "--inputs", "2", "--steps", "40"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("agreement", "df/dz at z*", "plain iteration", "Over all inputs"))


def test_one_input_of_a_deq(runs, capsys, monkeypatch):
    """The input's only direction is then zero; and progress goes to standard error, not between the figures."""
    monkeypatch.setattr("koopsim.cli.spectrum.SECONDS_A_LINE", -1)
    assert main(["spectrum", str(runs / "deq"), "--inputs", "1", "--steps", "40", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["inputs"] == 1
    assert err.splitlines() == ["observing  1 of 1 inputs", "linearising  1 of 1 inputs"]


def test_refusals(tmp_path, capsys, runs):
    def file(name, array):
        np.save(tmp_path / name, array)
        return tmp_path / name

    nan = np.eye(3)
    nan[0, 0] = np.nan
    assert "no file" in refused(capsys, tmp_path / "none.npy")
    assert "neither a run directory" in refused(capsys, tmp_path / "none")
    assert "neither a run directory" in refused(capsys, tmp_path / "a.txt")
    assert "1 NaN or infinite values among 9" in refused(capsys, file("nan.npy", nan))
    assert "empty" in refused(capsys, file("empty.npy", np.empty((0, 2))))
    assert "a matrix is square" in refused(capsys, file("long.npy", np.ones((3, 2))), "--as", "matrix")
    assert "expected a square matrix" in refused(capsys, file("four.npy", np.ones((2, 2, 2, 2))))
    assert "at least two points" in refused(capsys, file("one.npy", np.ones((1, 3))))
    assert "expected numbers" in refused(capsys, file("text.npy", np.array(["a", "b"])))
    assert "nothing ever changes" in refused(capsys, file("c.npy", np.ones((5, 2)) * 1j))
    assert "not a whole .npy" in refused(capsys, file("obj.npy", np.array([{}, 1], dtype=object)))
    assert "--noise" in refused(capsys, file("eye.npy", np.eye(2)), "--noise", "2")
    assert "--dictionary rff" in refused(
        capsys, file("wide.npy", np.random.default_rng(0).normal(size=(9, 90))), "--degree", "2"
    )
    assert "even number" in refused(capsys, file("z.npy", turning()), *"--dictionary rff --features 3".split())
    whole = (tmp_path / "eye.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-9])
    assert "not a whole .npy" in refused(capsys, tmp_path / "cut.npy")
    (tmp_path / "none.npy").write_bytes(b"")
    assert "not a whole .npy" in refused(capsys, tmp_path / "none.npy")
    for text, words in (("1,2\n3\n", "line 2 has 1 values"), ("1,2\n3,x\n", "line 2: 'x'"), ("a,b\n", "no numbers")):
        (tmp_path / "bad.csv").write_text(text)
        assert words in refused(capsys, tmp_path / "bad.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert "line 1 is no UTF-8" in refused(capsys, tmp_path / "bytes.csv")
    assert "--inputs is 0" in refused(capsys, runs / "deq", "--inputs", "0")
    (tmp_path / "run").mkdir()
    assert "not a run directory" in refused(capsys, tmp_path / "run")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    assert "Cannot make" in refused(capsys, file("eye.npy", np.eye(2)), "--out", blocked / "out")
    assert blocked.read_text() == "a file"


def test_nothing_is_written_when_refused(tmp_path, capsys):
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    refused(capsys, tmp_path / "nan.npy", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_broken_checkpoint(runs, tmp_path, capsys):
    import shutil

    shutil.copytree(runs / "sim", tmp_path / "broken")
    whole = (tmp_path / "broken" / "checkpoint.safetensors").read_bytes()
    (tmp_path / "broken" / "checkpoint.safetensors").write_bytes(whole[:100])
    assert "not a whole koopsim checkpoint" in refused(capsys, tmp_path / "broken")


@pytest.mark.parametrize("heading", ["t [s]", "time (s)", "Time", "T"])
def test_a_heading_with_a_unit_is_time(tmp_path, capsys, heading):
    rows = [f"{0.1 * k:.1f},{np.cos(0.3 * k):.17g},5" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join([f"{heading},x,level", *rows]) + "\n")
    found = spectrum(capsys, tmp_path / "a.csv")
    assert found["dt"] == pytest.approx(0.1)
    assert "level never changes" in found["said"]
    assert found["case"] == "invariant-set"  # delays, as for a series alone: the constant column is none


def test_a_matrix_of_one_row(tmp_path, capsys):
    for number, case in ((0.5, "origin"), (2.0, "divergent")):
        np.save(tmp_path / "a.npy", np.array([[number]]))
        assert spectrum(capsys, tmp_path / "a.npy")["case"] == case
    np.save(tmp_path / "a.npy", np.array([0.5]))
    assert "at least two points in time" in refused(capsys, tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([[0.5]]))
    assert main(["forecast", str(tmp_path / "a.npy")]) == 2
    assert "needs two samples; got 1." in capsys.readouterr().err


def test_what_explodes_is_told_without_numpy(tmp_path, capsys):
    """RuntimeWarnings are errors here: none is on the way to an answer, or to a sentence."""
    k = np.arange(60)
    for name, x in (("a", 10.0 ** (2 * k)), ("b", np.exp(np.exp(0.09 * k))), ("c", 10.0 ** np.arange(0, 149, 3))):
        np.save(tmp_path / f"{name}.npy", x)
        found = spectrum(capsys, tmp_path / f"{name}.npy")
        assert found["case"] in ("divergent", "undecided")
        assert max(real for real, _ in found["eigenvalues"]) > 90
        assert "too large to be squared" in refused(capsys, tmp_path / f"{name}.npy", "--degree", 3)
    rows = [f"{np.cos(0.3 * j):.6g},{1e200 * np.sin(0.3 * j):.6g}" for j in k]
    (tmp_path / "u.csv").write_text("\n".join(["speed,load", *rows]) + "\n")
    assert "the numbers of load reach 1.0e+200" in refused(capsys, tmp_path / "u.csv")
