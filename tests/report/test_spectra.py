"""The spectra that a report shows are those of the weights in the run directory."""

import json

import numpy as np
import pytest
from made_runs import made

from koopsim.cli import main
from koopsim.report import find
from koopsim.report import spectra as room
from koopsim.report.spectra import spectra, spectrum_charts, spectrum_figure, spectrum_table
from koopsim.training import load_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A free SIM, and one whose U V is a projector by construction."""
    place = tmp_path_factory.mktemp("runs")
    for name, options in (("free", []), ("projector", ["--model.projector", "--seed", "1"])):
        asked = ["train", "digits/sim-single", "--scale", "smoke", "--recipe.epochs", "1", "--device", "cpu"]
        assert main([*asked, "--out", str(place / name), *options]) == 0
    return place


def test_a_projector_has_its_eigenvalues_at_one(folder):
    (found,), left_out = spectra(find([folder / "projector"]).runs)
    assert left_out == []
    assert len(found.eigenvalues) == found.rank == found.dim // 2
    assert np.allclose(found.eigenvalues, 1, atol=1e-4)
    assert found.defect < 1e-4
    assert found.case == "fixed-point"
    table = spectrum_table([found])
    assert table is not None
    assert table.rows[0][6] == "100%"


def test_a_free_one_has_the_eigenvalues_of_its_weights(folder):
    (found,), _ = spectra(find([folder / "free"]).runs)
    U, V = (factor.detach().double().numpy() for factor in load_run(folder / "free").limit.factors())  # pyright: ignore
    expected = np.linalg.eigvals(V @ U)  # the same as those of U V that need not vanish
    nearest = np.abs(found.eigenvalues[:, None] - expected[None, :])  # sorting would part equal real parts at random
    assert nearest.min(0).max() < 1e-5
    assert nearest.min(1).max() < 1e-5
    (chart,) = spectrum_charts([found])
    assert chart.plane
    assert len(chart.series[0].points) == found.rank


def test_one_seed_of_each_is_shown(folder):
    found, _ = spectra(find([folder]).runs)
    assert len(found) == 1


def test_figures_are_drawn(folder, tmp_path):
    found, _ = spectra(find([folder]).runs)
    assert [file.stat().st_size > 1000 for file in spectrum_figure(found, tmp_path)] == [True, True]


def test_broken_weights_and_large_ones_are_left_out_with_a_reason(folder, tmp_path, monkeypatch):
    for name in ("result.json", "config.json"):
        (tmp_path / name).write_bytes((folder / "free" / name).read_bytes())
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing of the kind")
    found, (why,) = spectra(find([tmp_path]).runs)
    assert found == []
    assert str(tmp_path) in why
    monkeypatch.setattr(room, "LARGEST", 4)
    found, (why,) = spectra(find([folder / "free"]).runs)
    assert found == []
    assert "32 rows, more than 4" in why
    monkeypatch.setattr(room, "SECONDS", -1.0)
    _, (why,) = spectra(find([folder / "free"]).runs)
    assert "koopsim spectrum" in why


def test_a_run_without_weights_is_no_fault(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(made()))
    assert spectra(find([tmp_path]).runs) == ([], [])
