"""Fused normalisation, ReLU and pooling against PyTorch's layers, through Triton's interpreter or on CUDA."""

import pytest
import torch

from koopsim.nn.lift import VGG

CHECK = """
import copy
import torch
from koopsim.nn.kernels import norm as norm_kernels
from koopsim.nn.lift import VGG

norm_kernels.PARTS = 6  # the interpreter is slow
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
for batch, image, channels in [(3, (3, 8, 12), 6), (2, (2, 16, 8), 11)]:
    torch.manual_seed(batch)
    vgg = VGG(image, channels, 5).to(device)
    with torch.no_grad():  # all of them matter: not only ones and zeros
        for p in vgg.parameters():
            p.add_(0.3 * torch.randn_like(p))
    x = torch.randn(batch, *image, device=device, requires_grad=True)
    twin = copy.deepcopy(vgg)
    slow, fast = twin.linear(twin.stages(x).flatten(1)), vgg.fused_map(x, torch.float32)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(vgg.named_buffers(), twin.buffers()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    weights = torch.randn_like(slow)
    fast_grads = torch.autograd.grad((fast * weights).sum(), [x, *vgg.parameters()], materialize_grads=True)
    slow_grads = torch.autograd.grad((slow * weights).sum(), [x, *twin.parameters()])
    for a, b in zip(fast_grads, slow_grads):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=3e-5 * max(1.0, float(b.abs().max())))
with torch.no_grad():
    vgg.stages[0].weight[0, 0, 0, 0] = torch.nan
assert vgg.fused_map(x, torch.float32).isnan().all(), "a network that has diverged must not look alive"
"""


BESIDE_CONVOLUTIONS = """
import torch
from torch.nn import functional as F
from koopsim.nn.kernels import conv, conv_tiles

def normed(x, table):
    return x if table is None else torch.relu(x * table[2] + table[3])

def convolved(x, kernel, before=None, turned=False, moments=False, after=None):
    conv2d = F.conv_transpose2d if turned else F.conv2d
    y = conv2d(normed(x, before).permute(0, 3, 1, 2), kernel.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)
    y = y.contiguous()
    first, second = y, y.square()
    if after is not None:
        seen, (mean, rstd, scale, shift, *_) = after
        first = torch.where(seen * scale + shift > 0, y, 0.0)
        second = first * (seen - mean) * rstd
    assert moments or after is not None or turned
    return y, torch.stack([first.sum((1, 2)), second.sum((1, 2))]).mT.contiguous()  # an image is a part

def weight_gradient(x, dy, before=None):
    planes, P = normed(x, before).permute(0, 3, 1, 2), x.shape[3]
    dw = torch.nn.grad.conv2d_weight(planes, (P, P, 3, 3), dy.permute(0, 3, 1, 2), padding=1)
    return dw.permute(0, 2, 3, 1).contiguous()

calls = []
conv.convolved = convolved
conv.weight_gradient = lambda x, *a, **k: calls.append(x.shape[3]) or weight_gradient(x, *a, **k)
conv_tiles.taken_over = lambda x, channels, dtype: True
conv.build_stages = lambda shape, device: None
"""  # the operators of `kernels.conv` with twins of their kernels, whose own tests are in test_conv_kernels.py


@pytest.mark.parametrize("ours", [False, True], ids=["the library's convolutions", "ours"])
def test_the_fused_map_is_the_stages_and_the_linear_layer(in_triton, ours):
    in_triton(BESIDE_CONVOLUTIONS + CHECK + "assert calls == [8] * 3 + [16] * 3, calls\n" if ours else CHECK)


OPERATORS = """
from torch.library import opcheck
from koopsim.nn.kernels import norm
norm.PARTS = 6
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rules = ("test_schema", "test_faketensor", "test_autograd_registration")

def some(*shape, learnt=True):
    return torch.randn(*shape, device=device).requires_grad_(learnt)

y, kernel, norms = some(2, 4, 4, 8), some(8, 3, 3, 8), [some(6) for _ in range(6)]
plain = [t.detach() for t in norms]
table = conv.picture_table(y.detach(), plain[:3], 1e-5)
opcheck(conv.picture_table, (y.detach(), plain[:3], 1e-5), test_utils=rules[:2])
opcheck(conv.conv_table, (y, kernel, norms[:3], 1e-5), test_utils=rules)
opcheck(conv.norm_conv_pool, (y, table, kernel, norms, 1e-5), test_utils=rules)
p, x, second = (t.detach() for t in conv.norm_conv_pool(y, table, kernel, norms, 1e-5))
y, kernel = y.detach(), kernel.detach()
opcheck(conv.norm_conv_pool_backward, (y, table, kernel, x, second, torch.randn_like(p)), test_utils=rules[:2])
opcheck(conv.conv_table_backward, (y, kernel, torch.randn_like(y)), test_utils=rules[:2])
"""


def test_the_operators_of_convolutions_keep_their_rules(in_triton):
    in_triton(BESIDE_CONVOLUTIONS + OPERATORS)


def test_they_stay_out_of_the_way_on_a_cpu():
    with torch.autocast("cpu", torch.bfloat16):
        assert not VGG((3, 8, 8), 4, 2).fused(torch.zeros(1, 3, 8, 8))
