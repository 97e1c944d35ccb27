"""Where kernels take over: the conditions beside the device, asked on a CPU as if it were a GPU."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from koopsim.nn import SIM, TCN
from koopsim.nn.tcn import residual_of
from koopsim.nn.transforms import on_cpu, usable
from koopsim.nn.vgg import VGG


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    for module in ("sim", "tcn", "vgg", "fuse"):
        monkeypatch.setattr(f"koopsim.nn.{module}.usable", lambda *tensors: True)


def sim(dim=128, rank=64, hidden=64, outputs=32):
    return SIM(nn.Identity(), lift_dim=dim, rank=rank, hidden=hidden, outputs=outputs)


def test_a_tail_is_fused_up_to_its_sizes_in_training(as_on_a_gpu):
    phi = torch.zeros(2, 128)
    assert sim().fused(phi)
    assert sim().fused(phi.bfloat16())
    assert not sim().fused(phi.double())
    assert not sim().double().fused(phi)
    assert not sim().fused(phi[:0])
    assert not sim().eval().fused(phi)
    with torch.no_grad():
        assert not sim().fused(phi)
    for larger in ({"dim": 129}, {"rank": 65}, {"hidden": 65}, {"outputs": 33}):
        assert not sim(**larger).fused(torch.zeros(2, larger.get("dim", 128)))
    own = sim()
    own.nu = nn.Sequential(nn.Linear(128, 64))
    assert not own.fused(phi)
    own = sim()
    own.h = nn.Linear(64, 32)
    assert not own.fused(phi)


def test_a_tcn_is_fused_where_its_channels_are_few(as_on_a_gpu):
    x = torch.zeros(1, 5, 1)
    assert TCN(4, 2, 64, 2).fused(x)
    assert not TCN(4, 2, 65, 2).fused(x)
    assert not TCN(4, 2, 4, 2).fused(x.double())
    assert TCN(4, 2, 4, 2, input_channels=4).fused(torch.zeros(1, 5, 4))
    assert not TCN(4, 2, 4, 2, input_channels=5).fused(torch.zeros(1, 5, 5))


def test_on_a_cpu_nothing_is_fused_whatever_autocast_says():
    vgg, x = VGG((1, 8, 8), 2, 3), torch.zeros(1, 1, 8, 8)
    assert not vgg.fused(x)
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        assert not vgg.fused(x)
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    assert not usable(x)
    assert on_cpu(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_whoever_looks_at_each_operation_is_shown_the_twins():
    x, seen = torch.zeros(1, 3), []

    def look(row):
        seen.append((on_cpu(row), on_cpu(x)))
        return row.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    torch.jit.trace(look, torch.ones(3), check_trace=False)
    with FlopCounterMode(display=False):
        look(x)
    assert seen == [(False, False)] * 4, "an unbatched tensor is within the transform, too"
    assert on_cpu(x)


def test_a_residual_for_the_kernels():
    layer = nn.Linear(2, 3)
    R, r = residual_of(layer, torch.zeros(1))
    assert R is layer.weight
    assert r is layer.bias
    assert [t.shape for t in residual_of(nn.Identity(), torch.zeros(1))] == [(0, 0), (0,)]


def test_neighbouring_maps_are_multiplied_first_only_in_full_precision_and_where_it_pays():
    sequences = SIM(TCN(6, 1, 4, 2), lift_dim=6, outputs=3, hidden=4)
    x = torch.randn(2, 5)
    assert sequences._foldable(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not sequences._foldable(x)
    points = SIM(nn.Identity(), lift_dim=6, outputs=3, hidden=4)
    assert points._foldable(torch.zeros(12, 6))  # twice as many rows as the lift has numbers
    assert not points._foldable(torch.zeros(11, 6))
    assert not points._foldable(torch.zeros(2, 5, 6))
    assert not SIM(nn.Linear(2, 6), lift_dim=6, outputs=3, hidden=4)._foldable(torch.zeros(99, 2))
    points.h = nn.Linear(4, 3)
    assert not points._foldable(torch.zeros(12, 6))
