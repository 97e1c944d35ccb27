"""How training grows: streamed beside resident, processes beside one, memory against the size of the data.

    python benchmarks/scale.py streamed   --out FILE    images a second: resident, from host memory, from disk
    python benchmarks/scale.py processes  --out FILE    seconds an epoch of 1, 2 and 4 gloo processes, one global batch
    python benchmarks/scale.py memory     --out FILE    memory and seconds of a streamed epoch of 1e3 to 1e6 pictures
    python benchmarks/scale.py horizon    --out FILE    seconds and memory of a step of copy memory, T = 1e2 to 1e5
    python benchmarks/scale.py parameters --out FILE    the same of an MLP lift of 1e4 to 2e7 parameters: one process,
                                                        two, two that share the model, one with --recompute

Every row is saved when it is there. Processes have a thread each and, where there are enough, a core each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from koopsim.config import ClassificationConfig, CopyMemoryConfig, Run
from koopsim.engine.drive import pick_device
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import device_of_rank, joined_world
from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task

SHAPE = (3, 32, 32)
Saver = Callable[[dict], None]


def arrays(folder: Path, count: int, sparse: bool = False) -> Path:
    """CIFAR-10-sized pictures as .npy files; sparse ones take no room on the disk."""
    x = np.lib.format.open_memmap(folder / "x_train.npy", "w+", np.uint8, (count, *SHAPE))
    if sparse:
        x[:: max(1, count // 100)] = 200
    else:
        rng = np.random.default_rng(0)
        for i in range(0, count, 10_000):
            x[i : i + 10_000] = rng.integers(0, 255, x[i : i + 10_000].shape, np.uint8)
    del x
    np.save(folder / "y_train.npy", np.arange(count) % 10)
    np.save(folder / "x_test.npy", np.zeros((100, *SHAPE), np.uint8))
    np.save(folder / "y_test.npy", np.arange(100) % 10)
    return folder


def epochs_of(task, batch: int, device: torch.device, epochs: int) -> dict[str, float]:
    """Images a second of the best epoch, and of all but the first together."""
    run = run_of("cifar10/sim-single")
    run = replace(run, recipe=replace(run.recipe, batch_size=batch, epochs=epochs), train_on="train+valid")
    slots = Stacked([run], task, device, epochs)
    slots.warm_up()
    taken = []
    for _ in range(epochs):
        began = time.perf_counter()
        slots.begin_epoch()
        slots.advance(0, slots.epoch_steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
        slots.finish_epoch()
    slots.part.feed.close()
    n = len(task.source) if hasattr(task, "source") else len(task.y)
    return {"images_a_second": n / min(taken), "steady": n * (epochs - 1) / sum(taken[1:]), "epoch_seconds": min(taken)}


def disk_rate(file: Path) -> float:
    """Bytes a second that the disk itself gives, read once from one end to the other without the system's cache."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, count = time.perf_counter(), 0
        while block := opened.read(2**22):
            count += len(block)
        return count / (time.perf_counter() - began)


def streamed(count: int, batch: int, epochs: int, device: torch.device, workers: int) -> dict:
    """One model on the same pictures: on the device, from this process's memory, from a file."""
    from koopsim.datasets.blocks import ArraySource
    from koopsim.tasks.streamed_classification import StreamedClassification

    found = {"count": count, "batch": batch, "device": str(device), "workers": workers}
    with tempfile.TemporaryDirectory(dir=os.environ.get("OUT")) as folder:
        place = arrays(Path(folder), count)
        rate = disk_rate(place / "x_train.npy")
        config = ClassificationConfig(str(place), stream="yes", workers=workers)
        disk = build_task(config, device)
        with (place / "x_train.npy").open("rb") as opened:  # what the system has of it in memory is forgotten
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found["disk"] = epochs_of(disk, batch, device, 2)  # the first epoch is the cold one
        found["disk_bytes_a_second"] = rate
        assert isinstance(disk, StreamedClassification)
        x, y = np.load(place / "x_train.npy"), disk.source.labels
        np.savez(place / "all.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        resident = build_task(ClassificationConfig(str(place / "all.npz"), stream="no"), device)
        found["resident"] = epochs_of(resident, batch, device, epochs)
        source = ArraySource(x, y, "memory")
        disk.source, disk.tested = source, source
        found["memory"] = epochs_of(disk, batch, device, epochs)
    found["memory_share"] = found["memory"]["steady"] / found["resident"]["steady"]
    return found


def processes(sizes: list[int], save: Saver) -> dict:
    """The command itself, digits at one global batch: seconds of training, the last loss; one with threads besides."""
    found = {}
    most = max(sizes)
    for size, threads in [*((size, 1) for size in sizes), *((1, n) for n in sizes if n > 1)]:
        with tempfile.TemporaryDirectory() as folder:
            argv = "train digits/sim-single --device cpu --recipe.epochs 4 --recipe.batch-size 256".split()
            argv += ["--model.lift.channels", "64", "--out", f"{folder}/run", "--json"]
            argv += ["--devices", str(size)] if size > 1 else []
            own = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
            first = max(0, (os.cpu_count() or 1) - most)  # the last cores: others begin with the first
            cores = f"{first}-{first + max(size, threads) - 1}"
            pinned = ["taskset", "-c", cores] if shutil.which("taskset") and (os.cpu_count() or 1) >= most else []
            done = subprocess.run(
                [*pinned, sys.executable, "-m", "koopsim", *argv], capture_output=True, text=True, check=True, env=own
            )
            said = json.loads(done.stdout)
            row = {"train_seconds": said["train_seconds"], "loss": said["metrics"][-1]["train_loss"], "pinned": cores}
            found[f"{size} processes, {threads} threads"] = row
            save({"by_processes": found})
    return found


def memory(counts: list[int], save: Saver) -> dict:
    """A streamed epoch in a process of its own for each size; sparse files, so the disk plays no part."""
    code = (
        "import sys, json, resource, torch; sys.path.insert(0, 'benchmarks'); torch.set_num_threads(1);"
        "import scale; from pathlib import Path; p = Path(sys.argv[1]);"
        "task = scale.build_task(scale.ClassificationConfig(str(p), stream='yes'), 'cpu');"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "feed = scale.read_through(task, int(sys.argv[2]));"
        "print(json.dumps({'peak': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 'rows': feed}))"
    )
    found = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            arrays(Path(folder), count, sparse=True)
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", code, folder, "512"], capture_output=True, text=True, check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            found[count] = json.loads(done.stdout) | {"data": count * int(np.prod(SHAPE))}
            found[count]["process_seconds"] = time.perf_counter() - began
            save({"by_count": found})
    return found


# ---------------------------------------------------------------- a step, in processes of its own


def step_of(run: Run, steps: int, warm: Run | None = None, **way: bool) -> dict:
    """Seconds of a step and the memory it takes, in this process, which may be one of several."""
    device = pick_device(device_of_rank("auto"))
    torch.set_num_threads(1)
    task = build_task(run.task, device)
    with joined_world(device) as world:
        if warm is not None:  # what torch loads for this way is no memory of the model's
            first = Stacked([warm], task, device, 1, Way(world=world, **way))
            first.begin_epoch()
            first.advance(0, 1)
            del first
        before = _peak()
        slots = Stacked([run], task, device, run.recipe.epochs, Way(world=world, **way))
        slots.warm_up()
        slots.begin_epoch()
        slots.advance(0, 1)
        taken = []
        for i in range(1, 1 + steps):
            began = time.perf_counter()
            slots.advance(i, i + 1)
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        own = torch.cuda.max_memory_allocated() if device.type == "cuda" else _peak() - before
        found = {"seconds": float(np.median(taken)), "bytes": own, "loss": float(slots.losses(0)[0, steps])}
        found["parameters"] = sum(int(np.prod(shape)) for shape in slots.part.members.layout().values())
        return found | {"device": str(device)}


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def of_horizon(T: int) -> dict:
    run = run_of("copy/sim-single", "smoke")
    return step_of(replace(run, task=CopyMemoryConfig(T, 8, 1, 1), recipe=replace(run.recipe, batch_size=1)), 4)


def of_width(width: int, shard: bool = False, recompute: bool = False) -> dict:
    run = run_of("table/sim-single", "smoke")
    recipe = replace(run.recipe, batch_size=64, average=0.0)
    small, large = (
        replace(run, model=replace(run.model, lift=replace(run.model.lift, width=w, layers=4)), recipe=recipe)
        for w in (8, width)
    )
    return step_of(large, 4, small, shard=shard, recompute=recompute)


def apart(call: str, size: int = 1) -> dict:
    """A call in so many processes; what the first of them says, and the most memory of any."""
    port = 29_400 + os.getpid() % 500
    code = f"import sys, json; sys.path.insert(0, 'benchmarks'); import scale; print(json.dumps(scale.{call}))"
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    place |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is let go of, is gone
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ | place | {"RANK": str(r), "LOCAL_RANK": str(r)},
                         stdout=subprocess.PIPE, text=True)
        for r in range(size)
    ]  # fmt: skip
    said = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    return said[0] | {"bytes": max(row["bytes"] for row in said)}


def horizon(sizes: list[int], save: Saver) -> dict:
    found = {}
    for T in sizes:
        found[T] = apart(f"of_horizon({T})")
        save({"by_horizon": found})
    return found


def parameters(widths: list[int], save: Saver) -> dict:
    found: dict[int, dict] = {}
    for width in widths:
        row = found.setdefault(width, {})
        row["one"] = apart(f"of_width({width})")
        row["one, computed again"] = apart(f"of_width({width}, recompute=True)")
        if not torch.cuda.is_available():
            row["two"] = apart(f"of_width({width})", 2)
            row["two, sharded"] = apart(f"of_width({width}, shard=True)", 2)
        save({"by_width": found})
    return found


def read_through(task, batch: int) -> int:
    """An epoch of batches, fetched and looked at as a step would."""
    from koopsim.engine.feeds import feed_of

    run = run_of("cifar10/sim-single")
    run = replace(run, recipe=replace(run.recipe, batch_size=batch), train_on="train+valid")
    feed = feed_of(task.data(run, [0]), run.recipe, [torch.nn.Linear(1, 1)])
    feed.begin_epoch([0], [0])
    count = 0
    for position in range(feed.epoch_steps):
        feed.fetch(position)
        count += feed.batch(torch.zeros(1, dtype=torch.int64), feed.size_at(position))[1].numel()
    feed.close()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streamed", "processes", "memory", "horizon", "parameters"])
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    began = time.perf_counter()

    def save(found: dict) -> None:
        whole = found | {"what": given.what, "seconds": time.perf_counter() - began, "environment": environment()}
        if given.out:
            write_json(given.out, whole)

    if given.what == "streamed":
        found = streamed(given.count, given.batch, given.epochs, pick_device(given.device), given.workers)
        save(found)
    else:
        way, sizes = SWEEPS[given.what]
        found = way(given.sizes or sizes, save)
    print(json.dumps(found, indent=2))


SWEEPS = {
    "processes": (processes, [1, 2, 4]),
    "memory": (memory, [1000, 10_000, 100_000, 1_000_000]),
    "horizon": (horizon, [100, 1000, 10_000, 100_000]),
    "parameters": (parameters, [64, 512, 2048]),
}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
