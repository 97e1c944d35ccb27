"""The CUDA kernels on a CPU, thread for thread, under ThreadSanitizer and AddressSanitizer.

What compute-sanitizer's racecheck and memcheck tell on a GPU, these tell of the same source here, as far as it is
shared memory, the caller's tensors and barriers of blocks and clusters: what two threads touch with no barrier between
them, and what lies beyond an end. What the emulator stands in for (a warp's exchange, asynchronous copies, the GPU's
memory model between blocks) is not watched. A fault that is planted is found.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
EMULATED = {
    "tcn": ("nn/kernels/test_tcn_cluster.py", "all_layers_at_once"),
    "answer": ("nn/kernels/test_answer_kernels.py", "in_one_kernel"),
    "conv": ("nn/kernels/test_conv_kernels.py", "a_convolution or gradient_of_the_weights"),
    "cell": ("implicit/kernels/test_cell_kernels.py", "not compile and not cuda"),
}
FOUND = {"thread": "WARNING: ThreadSanitizer: data race", "address": "ERROR: AddressSanitizer"}
OPTIONS = {"TSAN_OPTIONS": "exitcode=66:halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0:exitcode=66"}


def library(name: str) -> str:
    """Where the compiler keeps it: Python was not built with it, so it is loaded first."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    said = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    place = said.stdout.strip()
    if place == name:
        pytest.skip(f"the compiler has no {name}")
    return place


def watched(sanitizer: str, kernels: str, **more: str) -> subprocess.CompletedProcess:
    file, which = EMULATED[kernels]
    first = " ".join(map(library, [{"thread": "libtsan.so", "address": "libasan.so"}[sanitizer], "libstdc++.so"]))
    own = os.environ | OPTIONS | {"KOOPSIM_SANITIZE": sanitizer, "LD_PRELOAD": first, "OMP_NUM_THREADS": "1"} | more
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", which]
    command.append(str(TESTS / file))
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", EMULATED)
@pytest.mark.parametrize("sanitizer", FOUND)
def test_neither_races_nor_places_beyond_an_end(sanitizer, kernels):
    done = watched(sanitizer, kernels)
    said = done.stdout + done.stderr
    assert FOUND[sanitizer] not in said, said[-6000:]
    assert done.returncode == 0, said[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("sanitizer", "planted"), [("thread", "barrier"), ("address", "memory")])
@pytest.mark.parametrize("kernels", ["answer", "conv"])
def test_a_planted_fault_is_found(sanitizer, planted, kernels):
    """Without barriers of a block; with half of the shared memory that was asked for."""
    done = watched(sanitizer, kernels, KOOPSIM_PLANT=planted)
    assert FOUND[sanitizer] in done.stdout + done.stderr
    assert done.returncode != 0
