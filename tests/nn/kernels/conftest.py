"""CUDA kernels of clusters on a CPU: their own source, built with threads for threads and barriers for barriers."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from koopsim.nn import kernels

HOME = Path(kernels.__file__).parent
EMULATOR = """
#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define UNROLL
#define SHARED own_memory
#include <barrier>
#include <memory>
#include <optional>
#include <thread>
#include <vector>
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx, blockIdx, gridDim;
static thread_local unsigned block;
static thread_local float* own_memory;
static std::vector<std::vector<float>> memories;
static std::unique_ptr<std::barrier<>> everybody;
static std::vector<std::unique_ptr<std::barrier<>>> of_blocks;
static unsigned cluster_rank() { return block; }
static thread_local std::optional<std::barrier<>::arrival_token> arrived;
static void cluster_arrive() { arrived.emplace(everybody->arrive()); }
static void cluster_wait() { everybody->wait(std::move(*arrived)), arrived.reset(); }
static void cluster_sync() { everybody->arrive_and_wait(); }
#ifdef PLANTED_barrier  // a fault for test_sanitized.py to find
static void block_sync() {}
#else
static void block_sync() { of_blocks[block]->arrive_and_wait(); }
#endif
#ifdef PLANTED_memory  // the same
static int part_of(int bytes) { return bytes / 2; }
#else
static int part_of(int bytes) { return bytes; }
#endif
static void last_block_sync() { block_sync(); }
static float* place_at(unsigned rank, float* local) { return memories[rank].data() + (local - own_memory); }
static void store_at(unsigned rank, float* local, float v) { *place_at(rank, local) = v; }
static void store_at(unsigned rank, float* local, float2 v) { *(float2*)place_at(rank, local) = v; }
static void fetch4(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
static void end_of_group() {}
template <int LEFT> static void wait_for_groups() {}
#include "cluster.cu"
template <class F> static void run(unsigned blocks, unsigned count, int bytes, unsigned first, F kernel) {
    memories = {};  // no larger than it is asked for
    memories.assign(blocks, std::vector<float>(part_of(bytes) / 4, __builtin_nanf("")));
    everybody = std::make_unique<std::barrier<>>(blocks * count);
    of_blocks.clear();
    for (unsigned i = 0; i < blocks; i++) of_blocks.push_back(std::make_unique<std::barrier<>>(count));
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < blocks * count; i++)
        threads.emplace_back([=] {
            block = i / count, threadIdx.x = i % count, blockIdx.x = first + block;
            own_memory = memories[block].data();
            kernel();
        });
    for (auto& t : threads) t.join();
}
template <class F> static void launch(int clusters, int bytes, F kernel) {
    for (int each = 0; each < clusters; each++) run(CLUSTER, THREADS, bytes, each * CLUSTER, kernel);
}
"""


WARPS = Path(__file__).with_name("warps.hpp")  # the same for kernels of tensor cores


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    """(file, C++ that calls its kernels, sizes) -> a library."""
    folder = tmp_path_factory.mktemp("emulated")
    return lambda file, calls, **sizes: _built(folder, EMULATOR, (file,), calls, sizes)


@pytest.fixture(scope="session")
def emulated_warps(tmp_path_factory):
    """The same for kernels of tensor cores, of several files one behind the other."""
    folder = tmp_path_factory.mktemp("warps")
    return lambda files, calls, **sizes: _built(folder, WARPS.read_text(), files, calls, sizes)


def _built(folder: Path, before: str, files: Sequence[str], calls: str, sizes: dict[str, int]) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    name = f"{Path(files[-1]).stem}_{'_'.join(map(str, sizes.values()))}"
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text("\n".join([before, *(f'#include "{file}"' for file in files), calls]))
    defines = [f"-D{key}={value}" for key, value in sizes.items()]
    watched = os.environ.get("KOOPSIM_SANITIZE")  # test_sanitized.py: with threads, or addresses, watched
    defines += [f"-fsanitize={watched}", "-g", f"-DWATCHED_{watched}"] if watched else []
    defines += [f"-DPLANTED_{os.environ['KOOPSIM_PLANT']}"] if "KOOPSIM_PLANT" in os.environ else []
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-I{HOME}", *defines]
    subprocess.run([*command, source, "-o", library], check=True, capture_output=True, timeout=240)
    return ctypes.CDLL(str(library))
