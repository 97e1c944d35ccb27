"""How training grows: streamed beside resident, processes beside one, memory against the size of the data.

    python benchmarks/scale.py streamed  --out FILE     images a second: resident, from host memory, from disk
    python benchmarks/scale.py processes --out FILE     seconds an epoch of 1, 2 and 4 gloo processes, one global batch
    python benchmarks/scale.py memory    --out FILE     peak memory of a streamed epoch of 1e3 to 1e6 pictures
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from koopsim.config import ClassificationConfig
from koopsim.engine.drive import pick_device
from koopsim.engine.stacked import Stacked
from koopsim.presets import run_of
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task

SHAPE = (3, 32, 32)


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


def processes(sizes: list[int]) -> dict:
    """The command itself, digits at one global batch: seconds of training and the last loss."""
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            argv = "train digits/sim-single --device cpu --recipe.epochs 4 --recipe.batch-size 256".split()
            argv += ["--model.lift.channels", "64", "--out", f"{folder}/run", "--json"]
            argv += ["--devices", str(size)] if size > 1 else []
            own = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, "-m", "koopsim", *argv], capture_output=True, text=True, check=True, env=own
            )
            said = json.loads(done.stdout)
            found[size] = {"train_seconds": said["train_seconds"], "loss": said["metrics"][-1]["train_loss"]}
    return found


def memory(counts: list[int]) -> dict:
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
            done = subprocess.run(
                [sys.executable, "-c", code, folder, "512"], capture_output=True, text=True, check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            found[count] = json.loads(done.stdout) | {"data": count * int(np.prod(SHAPE))}
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
    parser.add_argument("what", choices=["streamed", "processes", "memory"])
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    began = time.perf_counter()
    if given.what == "streamed":
        found = streamed(given.count, given.batch, given.epochs, pick_device(given.device), given.workers)
    elif given.what == "processes":
        found = {"by_processes": processes(given.sizes or [1, 2, 4])}
    else:
        found = {"by_count": memory(given.sizes or [1000, 10_000, 100_000, 1_000_000])}
    found |= {"what": given.what, "seconds": time.perf_counter() - began, "environment": environment()}
    print(json.dumps(found, indent=2))
    if given.out:
        write_json(given.out, found)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
