"""bfloat16 on processors that multiply it: who trains in it, that convolutions do, and what comes of it."""

from dataclasses import replace

import pytest
import torch
from small_search import tiny_run
from torch import nn

from koopsim.config import resolve_precision
from koopsim.engine import stacked
from koopsim.engine.stacked import on_device
from koopsim.nn import products
from koopsim.presets import run_of
from koopsim.tasks import build_task
from koopsim.training import Session, start_run

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("bf16", "amx", "mkldnn", "capability", "expected"),
    [
        (True, False, True, "AVX512", True),
        (False, True, True, "AVX512", True),
        (False, False, True, "AVX512", False),
        (True, True, False, "AVX512", False),
        (True, True, True, "AVX2", False),  # ATEN_CPU_CAPABILITY, or an old processor
    ],
)
def test_on_which_processors(monkeypatch, bf16, amx, mkldnn, capability, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: mkldnn)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.multiplies_bf16.__wrapped__() is expected


@pytest.mark.parametrize("there", [True, False])
def test_pictures_to_be_classified_are_trained_in_it_where_there_is_such_a_processor(monkeypatch, there):
    monkeypatch.setattr(stacked, "multiplies_bf16", lambda: there)

    def used(name, precision, device="cpu"):
        return on_device(replace(run_of(name), precision=precision), torch.device(device)).precision

    assert used("cifar10/sim-single", "bf16") == ("bf16" if there else "float32")
    assert used("image/sim-rff", "bf16") == used("image/sim-single", "bf16") == used("cifar10/sim-single", "bf16")
    assert used("copy/sim-single", "bf16") == used("image/sim-rff", "fp16") == "float32"
    assert used("cifar10/sim-single", "bf16", "mps") == "float32"
    assert used("cifar10/sim-single", "tf32") == "float32"
    assert used("cifar10/sim-single", "float64") == "float64"
    for precision in ("bf16", "tf32"):
        assert used("copy/sim-single", precision, "cuda") == precision
    assert resolve_precision("fp16", "cpu", True) == "float32"


def trained(precision, folder, monkeypatch):
    """(what a tiny training told, the types that its convolutions gave)."""
    run, seen = replace(tiny_run("digits/sim-single"), precision=precision), set()
    convolved = nn.functional.conv2d

    def conv2d(*given, **named):
        y = convolved(*given, **named)
        seen.add((y.dtype, torch.is_grad_enabled()))
        return y

    monkeypatch.setattr(nn.functional, "conv2d", conv2d)
    return start_run(run, folder, "digits", Session(CPU)), {dtype for dtype, training in seen if training}


def test_a_training_in_it_learns_what_one_in_float32_does(monkeypatch, tmp_path):
    monkeypatch.setattr(stacked, "multiplies_bf16", lambda: True)  # where it is emulated it is only slow
    short, kinds = trained("bf16", tmp_path / "short", monkeypatch)
    assert kinds == {torch.bfloat16}
    assert short["precision"] == "bf16"
    full, kinds = trained("float32", tmp_path / "full", monkeypatch)
    assert kinds == {torch.float32}
    assert full["precision"] == "float32"
    losses = [[line["train_loss"] for line in told["metrics"]] for told in (short, full)]
    assert losses[0] != losses[1]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=3e-2, atol=3e-2)


def test_pictures_as_networks_take_their_products_in_it(monkeypatch, tmp_path):
    """Their phases and the weights' own products stay in float32, and so does what they are judged by."""
    seen, plain = set(), nn.functional.linear

    def linear(x, W, b=None):
        seen.add((W.dtype, len(x)))
        return plain(x, W, b)

    monkeypatch.setattr(nn.functional, "linear", linear)
    found = {}
    for there in (True, False):
        monkeypatch.setattr(stacked, "multiplies_bf16", lambda there=there: there)
        seen.clear()
        run = replace(tiny_run("image/sim-rff"), precision="bf16")
        found[there] = start_run(run, tmp_path / str(there), "image", Session(CPU))
        pixels = (run.task.size // 2) ** 2
        assert ((torch.bfloat16, pixels) in seen) == there
        assert found[there]["precision"] == ("bf16" if there else "float32")
    losses = [[line["train_loss"] for line in told["metrics"]] for told in found.values()]
    assert losses[0] != losses[1]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=3e-2, atol=1e-3)


def test_a_lone_networks_gradient_is_float32s_up_to_its_rounding(monkeypatch):
    run = replace(tiny_run("digits/sim-single"), precision="bf16")
    found = []
    for there in (True, False):
        monkeypatch.setattr(stacked, "multiplies_bf16", lambda there=there: there)
        stack = stacked.Stacked([run], build_task(run.task, CPU), CPU, 1)
        stack.begin_epoch()
        part = stack.part
        found.append(part.gradients(part._first_batch())[1].clone())
    short, full = found
    assert 1e-4 < float((short - full).norm() / full.norm()) < 5e-2
