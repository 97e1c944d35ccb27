"""The CUDA kernels of all layers at once (`tcn.cu`), built for a CPU with threads for threads, against the blocks."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from koopsim.nn import TCN
from koopsim.nn.kernels import tcn_cluster
from koopsim.nn.lift import residual_of

EMULATOR = """
#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __cluster_dims__(...)
#define UNROLL
#define SHARED own_memory
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static thread_local Index threadIdx, blockIdx;
static thread_local float* own_memory;
static std::vector<std::vector<float>> memories;
static std::unique_ptr<std::barrier<>> everybody;
static unsigned cluster_rank() { return blockIdx.x % CLUSTER; }
static void cluster_sync() { everybody->arrive_and_wait(); }
static void store_at(unsigned rank, float* local, float2 v) {
    float* there = memories[rank].data() + (local - own_memory);
    there[0] = v.x, there[1] = v.y;
}
#include "tcn.cu"
template <class F> static void launch(int sequences, int bytes, F kernel) {
    for (int sequence = 0; sequence < sequences; sequence++) {
        memories.assign(CLUSTER, std::vector<float>(bytes / 4, __builtin_nanf("")));
        everybody = std::make_unique<std::barrier<>>(CLUSTER * THREADS);
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < CLUSTER * THREADS; i++)
            threads.emplace_back([=] {
                threadIdx.x = i % THREADS, blockIdx.x = sequence * CLUSTER + i / THREADS;
                own_memory = memories[i / THREADS].data();
                kernel();
            });
        for (auto& t : threads) t.join();
    }
}
extern "C" void forward(int bytes, const float* x, const float* R, const float* r, const float* W, const float* b,
                        float* last, float* h, float* a, int T, int sequences, int each, int projected) {
    launch(sequences, bytes, [=] { temporal_forward(x, R, r, W, b, last, h, a, T, sequences, each, projected); });
}
extern "C" void backward(int bytes, const float* W, const float* last, const float* h, const float* a, const float* dy,
                         float* g, int T, int sequences, int each) {
    launch(sequences, bytes, [=] { temporal_backward(W, last, h, a, dy, g, T, sequences, each); });
}
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """(sizes) -> the kernels as a library."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("emulated")

    def build(**sizes: int) -> ctypes.CDLL:
        source, library = folder / "emulator.cpp", folder / ("_".join(map(str, sizes.values())) + ".so")
        source.write_text(EMULATOR)
        defines = [f"-D{key}={value}" for key, value in sizes.items()]
        include = f"-I{Path(tcn_cluster.__file__).parent}"
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", include, *defines, source, "-o", library]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return ctypes.CDLL(str(library))

    return build


@pytest.mark.parametrize(
    ("sequences", "T", "levels", "C", "K", "inputs", "cluster"),
    [(2, 19, 3, 4, 2, 1, 4), (1, 5, 1, 2, 4, 2, 8), (2, 33, 2, 6, 4, 2, 2)],
    ids=["three blocks", "one block, fewer steps than stretches", "two inputs"],
)
def test_all_layers_at_once_are_the_blocks(emulated, sequences, T, levels, C, K, inputs, cluster, monkeypatch):
    torch.manual_seed(T)
    monkeypatch.setattr(tcn_cluster, "CLUSTER", cluster)
    tcn, L = TCN(3, levels, C, K, inputs), 2 * levels
    library = emulated(C=C, K=K, L=L, I=inputs, CLUSTER=cluster, THREADS=3)
    x = torch.randn(sequences, T, inputs)
    convs = [conv for block in tcn.blocks for conv in (block.first, block.second)]  # pyright: ignore
    W, b = (t.detach().contiguous() for t in tcn.normed_weights(convs))  # pyright: ignore
    R, r = (t.detach() for t in residual_of(tcn.blocks[0].residual, x))  # pyright: ignore
    bytes_ = tcn_cluster.shared_bytes(T, W[None])

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
    library.forward(bytes_, *pointers(x, R, r, W, b, last, hs, a), T, sequences, sequences, int(R.numel() > 0))
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(last, h.detach(), **close)
    torch.testing.assert_close(hs, torch.stack([t.detach() for t in layers[:-1]]), **close)
    torch.testing.assert_close(a, torch.stack([t.detach().relu() for t in before[1::2]]), **close)

    dy = torch.randn_like(last)
    library.backward(bytes_, *pointers(W, last, hs, a, dy, g), T, sequences, sequences)
    want = torch.autograd.grad((h * dy).sum(), [*before, outer[0]])
    torch.testing.assert_close(g, torch.stack(want), **close)
