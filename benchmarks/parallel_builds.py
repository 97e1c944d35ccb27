"""Seconds to build Triton kernels for Hopper one after the other, by threads and by processes; no GPU is needed.

    python benchmarks/parallel_builds.py [--kernels 6] [--workers 6] [--out results/parallel-builds.json]

Each is `tail`'s backward kernel, the largest there is, at another size, built anew. What threads gain is what of the
compiler runs without Python's lock; what processes gain has the start of each (imports of torch and Triton) in it.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()


def build(width: int) -> float:
    """Seconds of one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from koopsim.nn.kernels import tail

    sizes = {"D": width, "K": 16, "H": 32, "O": 10, "F": 10, "S": 32, "PK": 16, "PH": 32, "PO": 16, "PF": 16, "R": 16}
    names = tail._backward.arg_names
    numbers = [n for n in names if n in ("rows", "chunk") or (n.startswith("s") and n != "sums")]
    kinds = {n: "constexpr" if n in sizes else "i32" if n in numbers else "*fp32" for n in names}
    constants = {(names.index(name),): value for name, value in sizes.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n] == "*fp32"}
    began = time.perf_counter()
    source = ASTSource(tail._backward, kinds, constants, aligned)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 1})
    return time.perf_counter() - began


def together(pool: Executor, widths: range) -> float:
    began = time.perf_counter()
    with pool:
        list(pool.map(build, widths))
    return time.perf_counter() - began


def main() -> None:
    from verbs import write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=6)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    count, workers = arguments.kernels, arguments.workers
    row = {"kernels": count, "workers": workers, "first": build(20)}
    began = time.perf_counter()
    row["each"] = [build(width) for width in range(21, 21 + count)]
    row["one after the other"] = time.perf_counter() - began
    row["threads"] = together(ThreadPoolExecutor(workers), range(40, 40 + count))
    write(arguments.out, row)
    fresh = multiprocessing.get_context("spawn")
    row["processes"] = together(ProcessPoolExecutor(workers, fresh), range(60, 60 + count))
    write(arguments.out, row)


if __name__ == "__main__":
    main()
