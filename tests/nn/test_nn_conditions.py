"""Where a fast form stands in for its twin: sizes and kinds at their bounds, on a GPU that is only pretended."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from koopsim.nn import SIM, TCN, flat, folded, linear, padding, stretches, transforms
from koopsim.nn.cross_entropy import CLASSES, fused
from koopsim.nn.fuse import FusedTCN, FusedVGG, Waves, fuse
from koopsim.nn.limit import LimitOperator
from koopsim.nn.linear import FEW, MANY, SLICES
from koopsim.nn.synced import SyncedNorm, synchronised
from koopsim.nn.tcn import CausalConv, TemporalBlock
from koopsim.nn.vgg import VGG

triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def cuda():
    """Tensors of a GPU without numbers."""
    with FakeTensorMode():
        yield lambda *shape, dtype=torch.float32: torch.empty(*shape, device="cuda", dtype=dtype)


@pytest.fixture
def autocast():
    """Autocast on CUDA as if a GPU were there: a function that sets its type, or None for off."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    def set_to(dtype):
        torch.set_autocast_enabled("cuda", dtype is not None)
        torch.set_autocast_dtype("cuda", dtype or torch.float16)

    yield set_to
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@triton
def test_the_loss_has_its_kernel_up_to_so_many_classes_and_numbers(cuda):
    def fits(logits, rows=4, dtype=torch.int64, device="cuda"):
        return fused(cuda(*logits), torch.empty(rows, dtype=dtype, device=device))

    assert fits((4, CLASSES))
    assert fits((4, 1))
    assert not fits((4, CLASSES + 1))
    assert not fits((4, 0))
    assert not fits((0, 5), 0)
    assert not fits((4, 5), device="cpu")
    assert not fits((4, 5), dtype=torch.int32)
    assert not fits((4, 5, 1))
    assert not fits((2**25, 64), 2**25)
    assert fits((2**25 - 1, 64), 2**25 - 1)


def test_what_is_usable(cuda, monkeypatch):
    x = cuda(3)
    monkeypatch.setattr(transforms, "TRITON", True)
    assert transforms.usable(x)
    assert not transforms.usable(torch.empty(3, device="cpu"))
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert not transforms.usable(x)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: False)
    monkeypatch.setattr(transforms, "differentiated", lambda *tensors: True)
    assert not transforms.usable(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert transforms.usable(x)
    assert not transforms.on_cpu(torch.empty(3, device="cpu"))
    monkeypatch.setattr(transforms, "TRITON", False)
    assert not transforms.usable(x)
    assert not transforms.on_cpu(x)


def test_rows_are_sliced_where_there_are_many_of_few_features(cuda, autocast, monkeypatch):
    sliced = []
    monkeypatch.setattr(linear, "sliced_linear", lambda x, W, b=None: sliced.append(x.shape))

    def slices(x, W):
        sliced.clear()
        linear.linear(x, W, cuda(W.shape[0]))
        return bool(sliced)

    autocast(None)
    assert slices(cuda(MANY, FEW), cuda(FEW, FEW))
    assert slices(cuda(2, MANY // 2, 3), cuda(2, 3))
    assert not slices(cuda(MANY - SLICES, 3), cuda(2, 3))
    assert not slices(cuda(MANY + 1, 3), cuda(2, 3))
    assert slices(cuda(MANY + SLICES, 3), cuda(2, 3))
    assert not slices(cuda(MANY, 3), cuda(FEW + 1, 3))
    assert not slices(cuda(MANY, FEW + 1), cuda(2, FEW + 1))
    autocast(torch.bfloat16)
    assert slices(cuda(MANY, 3), cuda(FEW, 3))  # small layers keep their own numbers
    assert not slices(cuda(MANY, 3), cuda(FEW + 1, 3))


def test_small_layers_keep_float32_under_autocast():
    x = torch.randn(4, 3)
    for width, dtype in ((FEW, torch.float32), (FEW + 1, torch.bfloat16)):
        layer = linear.Linear(3, width)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == dtype
            if width == FEW:
                assert linear.linear(x.bfloat16(), layer.weight, layer.bias).dtype == dtype
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


def test_very_many_rows_are_sliced(cuda, monkeypatch):
    sliced = []
    monkeypatch.setattr(folded, "sliced_linear", lambda x, W: sliced.append(x.dtype) or F.linear(x, W))
    for rows, wanted in ((MANY, True), (MANY - SLICES, False), (MANY + 1, False), (MANY + SLICES, True)):
        sliced.clear()
        folded.rows_linear(cuda(rows, 3), cuda(2, 3), cuda(2))
        assert bool(sliced) == wanted
    folded.rows_linear(cuda(MANY, 3), cuda(2, 3), cuda(2), torch.bfloat16)
    assert sliced[-1] == torch.bfloat16
    sliced.clear()
    folded.rows_linear(torch.empty(MANY, 3, device="cpu"), torch.empty(2, 3), torch.empty(2))
    assert sliced == []
    monkeypatch.setattr(folded, "usable", lambda x: True)
    assert folded.fuses(cuda(MANY, 3))
    assert folded.fuses(cuda(2, MANY, 3, dtype=torch.bfloat16))
    assert not folded.fuses(cuda(MANY - SLICES, 3))
    assert not folded.fuses(cuda(MANY + 1, 3))
    assert not folded.fuses(cuda(MANY, 3, dtype=torch.float64))
    monkeypatch.setattr(folded, "usable", lambda x: False)
    assert not folded.fuses(cuda(MANY, 3))


@pytest.mark.parametrize("outputs", [3, 8, 9])
def test_a_short_output_is_padded_to_eights(outputs, monkeypatch):
    seen, rows_linear = [], folded.rows_linear
    monkeypatch.setattr(folded, "rows_linear", lambda *given: seen.append(given) or rows_linear(*given))
    z, W, b = torch.randn(5, 4), torch.randn(outputs, 4), torch.randn(outputs)
    y = folded._output(z, W, b, torch.bfloat16)
    wide = -(-outputs // 8) * 8
    assert [tuple(t.shape) for t in seen[0][1:3]] == [(wide, 4), (wide,)]
    assert (y.dtype, y.shape) == (torch.float32, (5, outputs))
    torch.testing.assert_close(y, F.linear(z, W, b), rtol=0.05, atol=0.1)
    for dtype in (None, torch.float32):
        assert torch.equal(folded._output(z, W, b, dtype), F.linear(z, W, b))
        assert seen[-1][1] is W


def test_waves_are_sines_then_cosines():
    phase = torch.randn(3, 4, dtype=torch.float64)
    found = folded.waves(phase, torch.float32)
    torch.testing.assert_close(found, torch.cat([phase.sin(), phase.cos()], 1).float())
    x, W, b = torch.randn(5, 3), torch.randn(2, 3), torch.randn(2)
    torch.testing.assert_close(folded.relu_linear(x, W, b), F.linear(x, W, b).relu())
    assert folded.relu_linear(x, W, b, torch.bfloat16).dtype == torch.bfloat16
    frequencies = torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        own = Waves(frequencies)(x)
    phase = x @ frequencies.T
    torch.testing.assert_close(own, torch.cat([phase.sin(), phase.cos()], 1))


@triton
def test_pictures_have_their_kernels_in_training_in_bfloat16(cuda, autocast):
    def lift(image=(3, 8, 12)):
        return VGG(image, 4, 5)

    x = cuda(2, 3, 8, 12)
    autocast(torch.bfloat16)
    assert lift().fused(x)
    assert not lift((3, 8, 10)).fused(x)
    assert not lift((3, 6, 12)).fused(x)
    assert not lift().eval().fused(x)
    assert not synchronised(lift()).fused(x)
    autocast(torch.float16)
    assert not lift().fused(x)
    autocast(None)
    assert not lift().fused(x)


def test_a_fused_model_has_its_kernels(monkeypatch):
    monkeypatch.setattr("koopsim.nn.fuse.usable", lambda *tensors: True)
    x = torch.zeros(1, 3, 8, 12)
    own = FusedVGG(VGG((3, 8, 12), 5, 4).eval(), 8)
    assert (own.depth, own.channels, own.missing, own.even) == (8, 8, 5, True)
    assert own._has_kernels(x)
    assert not own._has_kernels(x.double())
    wanted = x.clone().requires_grad_()
    assert not own._has_kernels(wanted)
    with torch.no_grad():
        assert own._has_kernels(wanted)
    seen = []
    torch.func.vmap(lambda t: seen.append(own._has_kernels(t)) or t.sum())(torch.zeros(2, 1, 3, 8, 12))
    assert seen == [False]
    for image in ((3, 10, 12), (3, 12, 10)):
        assert not FusedVGG(VGG(image, 5, 4).eval(), 1)._has_kernels(x)
    assert FusedVGG(VGG((3, 8, 12), 5, 4).eval(), 1).missing == 0
    for channels, inputs, fits in ((64, 64, True), (65, 1, False), (4, 5, False), (4, 1, True)):
        tcn = FusedTCN(TCN(3, 2, channels, 2, inputs))
        assert tcn._has_kernels(torch.zeros(1, 5, inputs)) == fits
        assert not tcn._has_kernels(torch.zeros(1, 5, inputs, dtype=torch.float64))
        assert tcn.W.shape == ((4, channels, 2, channels) if inputs <= channels else (channels, 2, inputs))
        assert not {"W", "b"} & tcn.state_dict().keys()


def test_a_tail_begins_behind_the_blocks_of_a_small_tcn(monkeypatch):
    monkeypatch.setattr("koopsim.nn.sim.on_cpu", lambda *tensors: False)
    seen = []
    monkeypatch.setattr(SIM, "tail", lambda self, phi, front=None: seen.append((phi.shape[-1], front)))
    fits = [True]
    monkeypatch.setattr(SIM, "fused", lambda self, phi: fits[0])
    x = torch.zeros(2, 6)
    for channels, behind in ((64, 64), (65, 7)):
        sim = SIM(TCN(7, 1, channels, 2), 7, 3)
        sim(x)
        assert seen[-1] == (behind, sim.mu.linear if channels == 64 else None)
    fits[0] = False
    count = len(seen)
    torch.testing.assert_close(sim(x), sim.h(sim.state(x)))
    small = SIM(TCN(7, 1, 4, 2), 7, 3)
    torch.testing.assert_close(small(x), small.h(small.state(x)))
    assert len(seen) == count


@triton
def test_a_tail_of_too_many_numbers_is_left_to_its_maps(cuda):
    sim = SIM(nn.Identity(), 128, 2, hidden=4, rank=4)
    assert sim.fused(cuda(2**24 - 1, 128))
    assert not sim.fused(cuda(2**24, 128))
    assert not sim.fused(cuda(0, 128))


def test_matrices_of_the_limit_start_within_the_roots_of_what_they_see():
    torch.manual_seed(0)
    limit = LimitOperator(64, 16)
    for t, size in ((limit.V, 64), (limit.U, 16)):
        bound = size**-0.5
        assert 0.98 * bound < float(t.detach().max()) <= bound
        assert -bound <= float(t.detach().min()) < -0.98 * bound
    assert (LimitOperator(7).rank, LimitOperator(4, 4).rank, LimitOperator(4, 1).rank) == (3, 4, 1)
    for rank in (0, 5):
        with pytest.raises(ValueError, match=rf"rank is {rank}; it must lie between 1 and the dimension 4"):
            LimitOperator(4, rank)
    torch.testing.assert_close(limit.matrix(), limit.U @ limit.V)
    conv = CausalConv(3, 400, 5, 1)
    bound = 15**-0.5
    for t in (conv.direction, conv.bias):
        assert 0.97 * bound < float(t.detach().max()) <= bound
        assert -bound <= float(t.detach().min()) < -0.97 * bound
    torch.testing.assert_close(conv.weight(), conv.direction)
    assert isinstance(TemporalBlock(3, 3, 2, 1).residual, nn.Identity)


# ---------------------------------------------------------------- pieces of the CPU's forms


def test_one_tensor_three_strangers_and_other_kinds(monkeypatch):
    whole = torch.arange(12.0)
    vector, offsets = flat.common_vector([whole[3:7]])
    assert (vector.data_ptr(), offsets, vector.shape) == (whole.data_ptr(), (3,), (12,))
    three = [torch.ones(2), torch.ones(3), torch.ones(4)]
    assert flat.common_vector(three)[1] == (0, 2, 5)
    mixed = [whole[:4], whole[4:6].view(torch.int32)]
    assert flat.common_vector(mixed)[0].data_ptr() != whole.data_ptr()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    vector, offsets = flat.common_vector([whole[3:7], whole[1:2]])
    assert (offsets, vector.tolist()) == ((0, 4), [3, 4, 5, 6, 1])


def test_neighbours_are_copied_as_one(monkeypatch):
    whole, cat, seen = torch.randn(20), torch.cat, []
    monkeypatch.setattr(torch, "cat", lambda pieces: seen.append(len(pieces)) or cat(pieces))
    for pieces, runs in (
        ([whole[:1], whole[1:2], whole[2:6]], 1),
        ([whole[3:3], whole[3:5], whole[5:5], whole[5:9]], 1),
        ([whole[:2], whole[2:4].view(torch.int32).float()], 2),
        ([whole[:2], whole[3:4]], 2), ([whole[2:4], whole[:2]], 2), ([whole[:4:2], whole[3:5]], 2),
        ([whole[:2], whole.clone()[2:4]], 2),
    ):  # fmt: skip
        assert torch.equal(flat.joined(pieces), cat([p.reshape(-1) for p in pieces]))
        assert seen.pop() == runs


def test_stretches_take_the_least_work():
    for Q in (1, 16, 17):
        assert stretches.stretch(Q, 8) == Q
    for Q, K in ((18, 2), (21, 8), (40, 3), (520, 8), (260, 8), (33, 20)):
        work = {s: -(-Q // s) * s * (s + K - 1) for s in stretches.SIZES}
        assert work[stretches.stretch(Q, K)] == min(work.values())
    assert [stretches.stretch(*given) for given in ((18, 20), (21, 20), (32, 60), (520, 8))] == [6, 7, 8, 5]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_gradient_nobody_asked_for_is_not_taken(wanted, monkeypatch):
    asked, gradients = [], stretches._gradients
    monkeypatch.setattr(stretches, "_gradients", lambda *given: asked.append(given[-1]) or gradients(*given))
    tcn, x = TCN(3, 2, 4, 2), torch.randn(2, 9, requires_grad=wanted)
    tcn(x).sum().backward()
    assert asked == [True, True, True, wanted]
    assert (x.grad is not None) == wanted


def test_the_kernels_of_padding_are_for_what_needs_no_gradient(monkeypatch):
    monkeypatch.setattr(padding, "usable", lambda x: True)
    said = []
    monkeypatch.setattr("koopsim.nn.kernels.padding.channels_last", lambda *given: said.append(given[1:]))
    monkeypatch.setattr("koopsim.nn.kernels.padding.patches_of", lambda *given: said.append(given[1:]))
    x = torch.randn(1, 3, 4, 4)
    padding.images_of_depth(x, 8, torch.float32)
    padding.patches(x, torch.bfloat16)
    assert said == [(8, torch.float32), (32, torch.bfloat16)]
    x.requires_grad_()
    assert padding.images_of_depth(x, 8, torch.float32).shape == (1, 8, 4, 4)
    assert padding.patches(x, torch.float32).shape == (1, 4, 4, 32)
    assert len(said) == 2
    assert [padding.padded(c) for c in (1, 16, 17, 0)] == [16, 16, 32, 0]


# ---------------------------------------------------------------- batch norms of several


@pytest.fixture
def processes(monkeypatch):
    """So many processes, each with the batch of this one."""
    count = [1]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda t: t.mul_(count[0]))
    return count


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm1d, (3, 4, 5)), (nn.BatchNorm2d, (2, 4, 3, 3))]
)
def test_a_norm_of_several_is_that_of_their_batch(kind, shape, momentum, processes):
    processes[0] = 2
    torch.manual_seed(0)
    own, plain = SyncedNorm(kind(4, momentum=momentum).double()), kind(4, momentum=momentum).double()
    with torch.no_grad():
        for norm in (own, plain):
            norm.weight.copy_(torch.arange(1.0, 5)), norm.bias.copy_(torch.arange(4.0))
    for _ in range(2):
        x = torch.randn(*shape, dtype=torch.float64)
        both = plain(torch.cat([x, x]))
        torch.testing.assert_close(own(x), both[: len(x)])
    for name, t in plain.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], t)
    assert own.num_batches_tracked == 2
    torch.testing.assert_close(own.eval()(x), plain.eval()(x))
    torch.testing.assert_close(own.running_mean, plain.running_mean)


def test_a_norm_without_weights_or_statistics_and_in_short_numbers(processes):
    own = SyncedNorm(nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    x = torch.randn(8, 3)
    torch.testing.assert_close(own(x), F.batch_norm(x, None, None, training=True))
    short = own(x.bfloat16())
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.float(), own(x.bfloat16().float()), rtol=1e-2, atol=1e-2)
    one = SyncedNorm(nn.BatchNorm1d(3))
    one(x[:1])
    assert one.running_var.isfinite().all()
    assert not SyncedNorm(nn.BatchNorm1d(3).eval()).training


def test_a_bias_before_a_norm_is_seen_by_the_running_mean_alone(processes):
    norm, x = SyncedNorm(nn.BatchNorm2d(3)), torch.randn(2, 3, 4, 4)
    bias = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    twin = nn.BatchNorm2d(3)
    wanted = twin(x + bias.detach().view(1, -1, 1, 1))
    found = norm.unbiased(x, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    (gradient,) = torch.autograd.grad(found.square().sum(), bias)
    assert not gradient.any()
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(2)), nn.Linear(2, 2))
    model = synchronised(synchronised(model))
    assert [type(m) for m in (model[0], model[1][0], model[2])] == [SyncedNorm, SyncedNorm, nn.Linear]


def test_a_vgg_of_several_trains_without_its_biases(processes):
    torch.manual_seed(0)
    plain = VGG((1, 8, 8), 3, 2)
    synced = VGG((1, 8, 8), 3, 2)
    synced.load_state_dict(plain.state_dict())
    synced = synchronised(synced)
    assert (plain.synced, synced.synced) == (False, True)
    x = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(synced(x), plain(x), rtol=1e-4, atol=1e-5)
    for name, t in plain.state_dict().items():
        torch.testing.assert_close(synced.state_dict()[name], t, rtol=1e-4, atol=1e-5)
    with FlopCounterMode(display=False):  # layer by layer
        torch.testing.assert_close(synced(x), plain(x), rtol=1e-4, atol=1e-5)
    assert fuse(SIM(plain.eval(), 2, 2, rank=1))(x).shape == (4, 2)
