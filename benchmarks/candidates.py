"""Other settings of the kernels in turns with today's, on CUDA: which of them gains the 10% that keeps a kernel?

    python benchmarks/candidates.py [--works copy cifar10] [--out FILE]

copy      threads of a block and channels of a thread in the TCN's kernels (tcn.cu), at batches 1 and 20
cifar10   how many of its kernels cuDNN tries out: ten, as PyTorch has it, or all; a process each, for it remembers

Rows are written as they come; the last lines say each candidate's gain, today's median over the candidate's.
"""

import argparse
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from koopsim.runs import environment, write_json

# channels of a thread, threads of a block: with 65 steps a block, 130, 325 or 650 threads have something to do
THREADS = {"today": {}, "2 x 352": {"OUTS": 2, "THREADS": 352}, "2 x 512": {"OUTS": 2, "THREADS": 512}}
THREADS |= {"5 x 512": {"OUTS": 5, "THREADS": 512}, "1 x 672": {"OUTS": 1, "THREADS": 672}}
LIMITS = {"today": 10, "all": 0}
CHILD = """
import sys, torch
sys.path.insert(0, sys.argv[2])
import kernel_variants as measured
torch.backends.cudnn.benchmark_limit = int(sys.argv[1])
for batch in (512, 128):
    print(batch, measured.step("cifar10/sim-single", batch, "bf16"), flush=True)
"""
Row = dict[str, object]


def built() -> None:
    """The machine code of all candidates, compiled side by side: each takes a second or two."""
    import torch

    from koopsim.nn.kernels import cuda, tcn_cluster

    major, minor = torch.cuda.get_device_capability()
    text = cuda.CLUSTERS.read_text() + tcn_cluster.SOURCE.read_text()

    def code(own: dict[str, int]) -> bytes:
        given = {"C": 10, "K": 8, "L": 16, "I": 1, "OUTS": 5, "CLUSTER": 8, "THREADS": 256} | own
        options = (f"-arch=sm_{major}{minor}", "-std=c++17", *(f"-D{key}={value}" for key, value in given.items()))
        return cuda._machine_code(text, options)

    with ThreadPoolExecutor() as pool:
        list(pool.map(code, THREADS.values()))


def copy_memory(turns: int):
    """Steps and the kernels' errors against float64, of each candidate in each turn."""
    import kernel_variants as measured

    from koopsim.nn.kernels import tcn_cluster

    built()
    plain = {"OUTS": tcn_cluster.OUTS, "THREADS": tcn_cluster.THREADS}
    for turn in range(turns):
        for name, own in THREADS.items():
            for key, value in (plain | own).items():
                setattr(tcn_cluster, key, value)
            for batch in (1, 20):
                row: Row = {"work": f"copy memory, batch {batch}", "candidate": name, "turn": turn}
                row["ms"] = measured.step("copy/sim-single", batch)
                if turn == 0:
                    far = measured.kernels(batch, 1)
                    row |= {key: far[key] for key in ("forward", "layers_backward", "error", "error_backward")}
                yield row
    for key, value in plain.items():
        setattr(tcn_cluster, key, value)


def cifar(turns: int):
    """A process for each candidate and turn."""
    for turn in range(turns):
        for name, limit in LIMITS.items():
            command = [sys.executable, "-c", CHILD, str(limit), str(Path(__file__).parent)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            for line in done.stdout.splitlines():
                batch, ms = line.split()
                yield {"work": f"CIFAR-10, batch {batch}", "candidate": name, "turn": turn, "ms": float(ms)}
            if done.returncode:
                yield {"work": "CIFAR-10", "candidate": name, "turn": turn, "failed": done.stderr[-500:]}


def gains(rows: list[Row]) -> dict[str, float]:
    """{work and candidate: today's median over its own}"""
    medians: dict[tuple[object, object], float] = {}
    for work, name in dict.fromkeys((row["work"], row["candidate"]) for row in rows if "ms" in row):
        own = [row["ms"] for row in rows if (row["work"], row["candidate"]) == (work, name) and "ms" in row]
        medians[work, name] = statistics.median(own)  # pyright: ignore[reportArgumentType]
    found = {}
    for (work, name), own in medians.items():
        if name != "today" and (work, "today") in medians:
            found[f"{work}: {name}"] = medians[work, "today"] / own
    return found


def save(out: Path | None, rows: list[Row]) -> None:
    if out:
        write_json(out, {"rows": rows, "gains": gains(rows), "environment": environment()})


WORKS = {"copy": copy_memory, "cifar10": cifar}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for work in arguments.works:
        try:
            for row in WORKS[work](arguments.turns):
                rows.append(row)
                print(row, flush=True)
                save(arguments.out, rows)
        except Exception as error:  # the next work is not this one's
            rows.append({"work": work, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
            save(arguments.out, rows)
    for name, gain in gains(rows).items():
        print(f"{gain:.3f}  {name}")


if __name__ == "__main__":
    main()
