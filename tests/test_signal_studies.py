"""benchmarks/signals.py, its closed forms, and what benchmarks/claims_tables.py says of them."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study(monkeypatch):
    """A script of benchmarks/ as a module; they import one another by name."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_forms_are_signals_and_the_same_every_time(study):
    forms = study("signal_forms")
    assert len(set(forms.NAMES)) == 12
    seen = []
    for name in forms.NAMES:
        kind, places, values = forms.sampled(name, 4096, 24)
        assert places.shape == ((4096, 1) if kind == "sound" else (24**3, 3)), name
        assert places.min() == 0, name
        assert places.max() < 1, name
        assert 0 <= values.min() < 0.1 < 0.65 < values.max() <= 1, name
        np.testing.assert_array_equal(forms.sampled(name, 4096, 24)[2], values)
        seen.append(values)
    for size in (4096, 24**3):
        own = [values for values in seen if len(values) == size]
        assert len(own) == 6
        assert np.abs(np.corrcoef(own) - np.eye(6)).max() < 0.75  # of different character


def test_the_chord_and_the_torus_are_those_of_before(study):
    """Their first rows, at 259b827, came from these samples."""
    forms = study("signal_forms")
    t = forms.sampled("chord", 4096, 24)[2]
    np.testing.assert_allclose(t[[0, 1000, 4095]], (0.609599233, 0.462333798, 0.405452460), rtol=1e-6)
    inside = forms.sampled("torus", 4096, 24)[2]
    np.testing.assert_allclose([inside.mean(), inside.max()], (0.104026598, 0.973402977), rtol=1e-6)


def test_a_test_sample_is_looked_at_once_a_seed(study, monkeypatch):
    signals = study("signals")
    _, places, values = study("signal_forms").sampled("chord", 512, 8)
    data = signals.cut(torch.tensor(places).float(), torch.tensor(values[:, None]).float())
    assert [len(x) for x, _ in data.values()] == [256, 128, 128]
    assert len(torch.cat([x for x, _ in data.values()]).unique()) == 512
    looks, trained, own = [], [], signals.psnr

    def fitted(name, train, bandwidth, seed, size, device):
        assert train is data["train"]
        trained.append((bandwidth, seed))
        torch.manual_seed(seed)
        return signals.network(name, 1, bandwidth, size)

    def psnr(model, split):
        looks.append(next(name for name, part in data.items() if part is split))
        return own(model, split)

    monkeypatch.setattr(signals, "fitted", fitted)
    monkeypatch.setattr(signals, "psnr", psnr)
    row = signals.judged("tancik", "sound", data, signals.Size(512, 8, 32, 16, 25, 10, 256, seeds=3), "cpu")
    assert looks == ["valid"] * 8 + ["test"] * 3
    assert row["bandwidth"] == max(row["valid_by_bandwidth"], key=row["valid_by_bandwidth"].get)
    assert trained[8:] == [(row["bandwidth"], 1), (row["bandwidth"], 2)]
    assert len(row["test_each"]) == 3


def test_networks_are_as_large_as_they_say(study):
    signals = study("signals")
    count = {name: sum(p.numel() for p in signals.network(name, 3, 0.2, signals.SMALL).parameters())
             for name in signals.MODELS}  # fmt: skip
    assert count["sim-rff"] == count["sim-rff, even start"]
    assert count["tancik, as many parameters"] == pytest.approx(count["sim-rff"], rel=0.01)


def test_differences_are_paired_and_bold_beyond_students_95(study):
    said = study("claims_tables").paired
    assert said([1.0, 2.0, 3.0]) == "+2.00 ± 0.58"  # 3.46 errors from zero, of 4.30
    assert said([-1.9, -2.0, -2.1]) == "**\u22122.00 ± 0.06**"


def test_what_did_not_end_is_left_out(study):
    page = study("claims_tables")
    one = [
        {"signal": s, "kind": "sound", "model": m, "test_psnr": 20.0} for s in ("torus", "chord") for m in page.MODELS
    ]
    assert list(page.finished(one)) == ["chord", "torus"]  # sounds first
    assert list(page.finished(one[:-1])) == ["torus"]
    runs = [{"model": m, "train": n, "seed": s, "test": {"accuracy": 0.5}}
            for s in range(3) for n in (8, 16) for m in (page.SIM, page.MONDEQ)]  # fmt: skip
    assert page.whole_seeds(runs[:-1])[0] == [0, 1]


def test_the_page_has_what_was_measured(study):
    page = study("claims_tables")
    text = page.PAGE.read_text()
    for name, said in page.tables().items():
        assert f"<!-- {name} -->\n{said}<!-- /{name} -->" in text, f"python benchmarks/claims_tables.py ({name})"
