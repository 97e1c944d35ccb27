"""Exported files answer as the model does, for sizes that were not traced; what cannot be exported says so."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from shutil import which

import pytest
import torch
from torch import nn

import koopsim
from koopsim.cli import main
from koopsim.config import DEQConfig, FourierNetworkConfig, MonDEQConfig
from koopsim.errors import KoopsimError
from koopsim.export import FORMATS as ENDINGS
from koopsim.export import example, export, export_model, load_exported, refuse_deadly
from koopsim.presets import PRESETS

FORMATS = [
    "pt2",
    pytest.param("onnx", marks=pytest.mark.skipif(not find_spec("onnxscript"), reason="needs koopsim[export]")),
    pytest.param("aoti", marks=[pytest.mark.slow, pytest.mark.skipif(not which("g++"), reason="needs a compiler")]),
]


def small(name: str):
    """A preset small enough to be traced in a moment, and its model."""
    config = PRESETS[name].model
    if name.startswith("copy"):
        config = replace(config, lift=replace(config.lift, levels=2))
    torch.manual_seed(0)
    return config, koopsim.build(config).eval()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["copy/sim-two", "digits/sim-single", "image/sim-rff"])
def test_a_file_answers_for_other_sizes_than_it_was_traced_with(name, format, tmp_path):
    config, model = small(name)
    x, axes = example(config)
    file = export(model, x, axes, tmp_path / f"model{ENDINGS[format]}", format)
    assert list(tmp_path.iterdir()) == [file]
    found = load_exported(file)
    if found is None:
        pytest.skip("onnxruntime is not installed")
    for batch, length in ((1, 40), (7, 9)):
        other = example(config, batch, length)[0]
        torch.testing.assert_close(found[0](other).detach(), model(other).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_that_is_not_fused_is_the_model(tmp_path):
    config, model = small("digits/sim-two")
    done = export_model(model, config, tmp_path / "model.pt2", "pt2", fuse=False)
    assert not done.fused
    assert done.difference == 0.0
    fused = export_model(model, config, tmp_path / "fused.pt2", "pt2")
    assert fused.fused
    assert fused.bytes < done.bytes


def test_a_file_is_timed_beside_the_model(tmp_path):
    config, model = small("digits/sim-single")
    done = export_model(model, config, tmp_path / "model.pt2", "pt2")
    assert done.milliseconds > 0
    assert done.model_milliseconds > 0
    assert export_model(model, config, tmp_path / "other.pt2", "pt2", check=False).milliseconds is None


def test_machine_code_needs_a_compiler(tmp_path, monkeypatch):
    config, model = small("digits/sim-single")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KoopsimError, match=r"needs a C\+\+ compiler"):
        export(model, *example(config), tmp_path / "model.aoti.pt2", "aoti")


def test_a_tancik_network_exports_too(tmp_path):
    config = FourierNetworkConfig(features=8, width=6)
    done = export_model(koopsim.build(config), config, tmp_path / "model.pt2", "pt2")
    assert not done.fused
    assert done.shape == ("batch", "2")


def test_a_solver_does_not_export():
    for config in (DEQConfig(), MonDEQConfig()):
        with pytest.raises(KoopsimError, match=r"solver runs until it has converged.*distil"):
            example(config)


def test_a_wrong_file_is_found_out_and_removed(tmp_path, monkeypatch):
    config, model = small("digits/sim-single")
    monkeypatch.setattr(
        "koopsim.export.load_exported",
        lambda file: (lambda x: model(x).detach() + 0.01, "a runtime that is a little off"),
    )
    with pytest.raises(KoopsimError, match=r"wrong and is removed: a runtime that is a little off differs by 0\.01"):
        export_model(model, config, tmp_path / "model.pt2", "pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_traced_is_one_line_and_leaves_nothing(tmp_path):
    class Asks(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(KoopsimError, match="does not export to pt2") as error:
        export(Asks(), torch.randn(2, 3), {0: "batch"}, tmp_path / "model.pt2", "pt2")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_verb(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "zoo:mnist/sim-single", "--format", "pt2", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["file"] == "mnist-sim-single.pt2"
    assert written["shape"] == ["batch", "1", "28", "28"]
    assert written["difference"] <= 1e-5 * written["scale"]
    module = torch.export.load(tmp_path / written["file"]).module()
    x = torch.randn(9, 1, 28, 28)
    torch.testing.assert_close(module(x), koopsim.load("mnist/sim-single")(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["zoo:copy/deq"], "A DEQ does not export"),
        (["zoo:mnist/mondeq-multi", "--format", "pt2"], "A monDEQ does not export"),
        (["zoo:mnist/sim-singel"], "Did you mean"),
        (["/nowhere/at/all"], "no folder /nowhere/at/all"),
        (["zoo:mnist/sim-two", "--out", "x.pt2"], "ends in .onnx"),
        (["zoo:mnist/sim-two", "--format", "aoti", "--device", "mps"], "The device 'mps' cannot be used here"),
        (["zoo:mnist/sim-two", "--format", "aoti", "--device", "cuda:77"], "The device 'cuda:77' cannot be used here"),
        (["zoo:mnist/sim-two", "--out", "nowhere/x.onnx"], "There is no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept(capsys, tmp_path):
    file = tmp_path / "model.pt2"
    file.write_text("mine")
    assert main(["export", "zoo:mnist/sim-two", "--format", "pt2", "--out", str(file)]) == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_without_onnx_the_verb_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("koopsim.export.find_spec", lambda name: None)
    assert main(["export", "zoo:mnist/sim-two", "--out", str(tmp_path / "m.onnx")]) == 2
    assert "koopsim[export]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_machine_code_that_kills_its_process_is_refused(tmp_path):
    file = tmp_path / "model.aoti.pt2"
    file.write_bytes(b"no package")
    with pytest.raises(KoopsimError, match=r"is removed: run by itself, AOTInductor's code for cpu ended with 1") as e:
        refuse_deadly(file, torch.zeros(1))
    assert "\n" not in str(e.value)
    assert not file.exists()


PLAIN = """
import sys, torch
from torch import _inductor, nn
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4)).cuda().eval()
x = torch.randn(2, 3, 8, 8).cuda()
with torch.no_grad():
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    file = _inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
    y = _inductor.aoti_load_package(file)(x)
    assert float((y - model(x)).abs().max()) < 1e-3
"""
OURS = """
import json, sys
from pathlib import Path
import koopsim, torch
from koopsim.export import export_model
from koopsim.presets import PRESETS
torch.backends.cudnn.allow_tf32 = False
name = "mnist/sim-single"
done = export_model(koopsim.load(name), PRESETS[name].model, Path(sys.argv[1]), "aoti", device="cuda")
print(done)
"""


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not which("g++"), reason="needs a compiler")
def test_machine_code_for_cuda(tmp_path):
    """In processes of their own; where a plain network's package does not run either, it is not ours that is broken."""
    told = {}
    for name, script in (("plain", PLAIN), ("ours", OURS)):
        command = [sys.executable, "-c", script, str(tmp_path / f"{name}.aoti.pt2")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        told[name] = (done.returncode, done.stdout[-400:] + done.stderr[-1200:])
    if told["plain"][0]:
        pytest.xfail(f"AOTInductor does not run a plain network here either: {told['plain'][1]}")
    assert told["ours"][0] == 0, told["ours"][1]
