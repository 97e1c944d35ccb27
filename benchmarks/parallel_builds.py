"""Seconds to build Triton kernels for Hopper one after the other, by threads and by processes; no GPU is needed.

    python benchmarks/parallel_builds.py [--kernels 6] [--turns 5] [--wait 20] [--out results/parallel-builds.json]

Each is `tail`'s backward kernel, the largest there is, at another size, built anew, in turns. What threads can gain is
what of a build runs without Python's lock: its processor time is counted apart (`under_lock`, `free`, `ptxas`). What
processes gain has the start of each (imports of torch and Triton) in it; they have every fifth turn. Beside each
wall stands how many processors others used meanwhile: gains are medians over all turns, and over the quiet ones, in
which that was less than half a processor.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
QUIET = 0.5  # of a processor, at most, that others use
FREE = ("to_module", "optimize_module", "translate_to_asm")  # of Triton's binding of LLVM: they let go of the lock


def build(width: int) -> None:
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
    source = ASTSource(tail._backward, kinds, constants, aligned)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 1})


def in_turn(widths: range, workers: int) -> None:
    for width in widths:
        build(width)


def by_threads(widths: range, workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(build, widths))


def by_processes(widths: range, workers: int) -> None:
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build, widths))


WAYS = {"in turn": in_turn, "threads": by_threads, "processes": by_processes}


def processor(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def busy() -> float:
    """Processor seconds of all programs since the machine was started."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(seconds: float) -> None:
    """Until others leave the machine alone for half a second, or so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        before = busy()
        time.sleep(0.5)
        if busy() - before < 0.5 * QUIET:
            return


def measured(way: Any, widths: range, workers: int) -> dict[str, float]:
    """Wall seconds, and how many processors others used."""
    families = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    began, all_used, own = time.perf_counter(), busy(), sum(map(processor, families))
    way(widths, workers)
    wall, own = time.perf_counter() - began, sum(map(processor, families)) - own
    return {"wall": wall, "others": max(0.0, busy() - all_used - own) / wall}


def gains(turns: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """How many times as fast threads are, and processes."""
    found: dict[str, Any] = {"turns": len(turns)}
    for way in ("threads", "processes"):
        ratios = [turn["in turn"]["wall"] / turn[way]["wall"] for turn in turns if way in turn]
        if ratios:
            found[way] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return found


def shares(width: int) -> dict[str, float]:
    """Processor seconds of one build: under Python's lock, free of it, in ptxas."""
    from triton._C.libtriton import ir, llvm

    free = 0.0

    def timed(call: Any) -> Any:
        def inside(*words: Any, **more: Any) -> Any:
            nonlocal free
            began = time.thread_time()
            found = call(*words, **more)
            free += time.thread_time() - began
            return found

        return inside

    places = [(ir.pass_manager, "run"), *((llvm, name) for name in FREE)]
    wholes = [getattr(owner, name) for owner, name in places]
    for (owner, name), whole in zip(places, wholes, strict=True):
        setattr(owner, name, timed(whole))
    own, others = time.thread_time(), processor(resource.RUSAGE_CHILDREN)
    build(width)
    own, others = time.thread_time() - own, processor(resource.RUSAGE_CHILDREN) - others
    for (owner, name), whole in zip(places, wholes, strict=True):
        setattr(owner, name, whole)
    return {"under_lock": own - free, "free": free, "ptxas": others, "most": (own + others) / (own - free)}


def main() -> None:
    import triton
    from verbs import write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=6)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds at most for a quiet moment before each turn")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    count, first = arguments.kernels, 22
    build(20)  # imports
    row: dict[str, Any] = {"kernels": count, "triton": triton.__version__, "one": shares(21), "turns": []}
    for turn in range(arguments.turns):
        found = {}
        wait_for_quiet(arguments.wait)
        order = ["in turn", "threads"][:: -1 if turn % 2 else 1] + (["processes"] if turn % 5 == 0 else [])
        for way in order:
            found[way] = measured(WAYS[way], range(first, first + count), count)
            first += count
        row["turns"].append(found)
        quiet = [t for t in row["turns"] if max(t[way]["others"] for way in ("in turn", "threads")) < QUIET]
        row |= {"all": gains(row["turns"]), "quiet": gains(quiet)}
        write(arguments.out, row)


if __name__ == "__main__":
    main()
