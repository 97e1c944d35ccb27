"""The CUDA kernels of all layers at once (`tcn.cu`), built for a CPU with threads for threads, against the blocks."""

import ctypes

import pytest
import torch
from torch.nn import functional as F

from koopsim.nn import TCN
from koopsim.nn.kernels import tcn_cluster
from koopsim.nn.lift import residual_of

CALLS = """
extern "C" void forward(int bytes, const Input* x, const float* R, const float* r, const float* W, const float* b,
                        float* last, float* h, float* a, int T, int sequences, int each, int projected) {
    launch(sequences, bytes, [=] { temporal_forward(x, R, r, W, b, last, h, a, T, sequences, each, projected); });
}
extern "C" void backward(int bytes, const float* W, const float* last, const float* h, const float* a, const float* dy,
                         float* g, int T, int sequences, int each) {
    launch(sequences, bytes, [=] { temporal_backward(W, last, h, a, dy, g, T, sequences, each); });
}
extern "C" void weights(int bytes, const float* g, const float* h, const Input* x, float* sums, int T, int rows,
                        int chunk, int size, int layers, int parts, int models) {
    for (int l = 0; l < layers; l++)
        for (int p = 0; p < parts; p++)
            for (int m = 0; m < models; m++)
                run(1, 2 * K * C, bytes, l, [=] {
                    blockIdx.y = p, blockIdx.z = m, gridDim.z = models;
                    temporal_weights(g, h, x, sums, T, rows, chunk, size);
                });
}
"""


@pytest.mark.parametrize(
    ("sequences", "T", "levels", "C", "K", "inputs", "cluster", "more"),
    [
        (2, 19, 3, 4, 4, 1, 4, {}),
        (1, 5, 1, 2, 4, 2, 8, {}),
        (2, 33, 2, 6, 4, 2, 2, {}),
        (2, 21, 2, 4, 4, 1, 4, {"BYTES": 1}),
        (2, 21, 2, 4, 8, 2, 4, {"SPLIT": 2, "THREADS": 26}),
        (1, 5, 2, 4, 4, 1, 4, {"SPLIT": 2, "THREADS": 8}),
    ],
    ids=["three blocks", "few steps", "two inputs", "symbols", "taps shared", "taps shared, few steps"],
)
def test_all_layers_at_once_are_the_blocks(emulated, sequences, T, levels, C, K, inputs, cluster, more):
    torch.manual_seed(T)
    tcn, L = TCN(3, levels, C, K, inputs), 2 * levels
    sizes = {"C": C, "K": K, "L": L, "I": inputs, "OUTS": tcn_cluster.outs(C), "CLUSTER": cluster, "THREADS": 6}
    library, symbols = emulated("tcn.cu", CALLS, **(sizes | more)), "BYTES" in more
    x = torch.randint(0, 10, (sequences, T, inputs)).float() if symbols else torch.randn(sequences, T, inputs)
    given = x.byte() if symbols else x
    convs = [conv for block in tcn.blocks for conv in (block.first, block.second)]  # pyright: ignore
    W, b = (t.detach().contiguous() for t in tcn.normed_weights(convs))  # pyright: ignore
    R, r = (t.detach() for t in residual_of(tcn.blocks[0].residual, x))  # pyright: ignore
    bytes_ = tcn_cluster.shared_bytes(T, W[None], cluster)

    before, layers, outer, h = [], [], [], x  # the twin, with what is before each ReLU
    for block in tcn.blocks:
        first = block.first(h)
        second = block.second(first.relu())
        out = block.residual(h) + second.relu()
        before += [first, second]
        layers += [first.relu(), out.relu()]
        outer.append(out)
        h = out.relu()

    last, hs = torch.full((sequences, T, C), torch.nan), torch.full((L - 1, sequences, T, C), torch.nan)
    a, g = torch.full((levels, sequences, T, C), torch.nan), torch.full((L + 1, sequences, T, C), torch.nan)
    pointers = lambda *ts: [ctypes.c_void_p(t.data_ptr()) for t in ts]  # noqa: E731
    library.forward(bytes_, *pointers(given, R, r, W, b, last, hs, a), T, sequences, sequences, int(R.numel() > 0))
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(last, h.detach(), **close)
    torch.testing.assert_close(hs, torch.stack([t.detach() for t in layers[:-1]]), **close)
    torch.testing.assert_close(a, torch.stack([t.detach().relu() for t in before[1::2]]), **close)

    dy = torch.randn_like(last)
    library.backward(bytes_, *pointers(W, last, hs, a, dy, g), T, sequences, sequences)
    learnt = [*(c.bias for c in convs), *([tcn.blocks[0].residual.weight] if R.numel() else [])]  # pyright: ignore
    wanted = torch.autograd.grad((h * dy).sum(), [*before, outer[0], *learnt])
    torch.testing.assert_close(g, torch.stack(wanted[: L + 1]), **close)

    parts = 1 if sequences * T > 64 else 3  # a part of several tiles, and several parts
    size = W.numel() + b.numel() + (R.numel() + r.numel() if R.numel() else 0)
    sums = torch.full((parts, 1, size), torch.nan)
    rows, shared = sequences * T, 4 * (32 * 2 * (-(-C // 8) * 4) + 2 * K * C)
    layers = L + (R.numel() > 0)
    library.weights(shared, *pointers(g, hs, given, sums), T, rows, -(-rows // parts), size, layers, parts, 1)
    total = sums.sum((0, 1))
    dW, db = total[: W.numel()].view(W.shape), total[W.numel() : W.numel() + b.numel()].view(b.shape)
    torch.testing.assert_close(db, torch.stack(wanted[L + 1 : 2 * L + 1]), rtol=1e-4, atol=1e-4)
    for l, conv in enumerate(convs):  # dW by hand, tap by tap
        before_it = F.pad(x, (0, C - inputs)) if l == 0 else hs[l - 1]
        for k in range(K):
            back = (K - 1 - k) * conv.dilation
            seen = F.pad(before_it, (0, 0, back, 0))[:, :T]
            torch.testing.assert_close(dW[l, :, k], torch.einsum("bto,btc->oc", g[l], seen), rtol=1e-4, atol=1e-4)
    if R.numel():
        dR = total[W.numel() + b.numel() :][: R.numel()].view(R.shape)
        torch.testing.assert_close(dR, wanted[-1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(total[-C:], g[L].sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_a_few_time_steps_more_do_not_cost_a_round():
    W = torch.empty(1, 16, 10, 8, 10)  # two threads a time step
    found = [tcn_cluster.threads(T, W, 4) for T in (4, 320, 324, 512, 516, 520, 640, 644, 2000)]
    assert found == [256, 320, 256, 256, 288, 288, 320, 256, 256]
    assert [tcn_cluster.split(T, W, 4) for T in (4, 320, 324)] == [2, 2, 1]
    assert (tcn_cluster.split(520, W, 8), tcn_cluster.threads(520, W, 8)) == (2, 288)
    assert [tcn_cluster.room(T, W, 8) for T in (8, 520, 2000)] == [3, 2, 1]
