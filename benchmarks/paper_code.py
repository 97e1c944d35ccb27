"""The paper's public code and koopsim in turns on one device: the same work by each one's own training loop.

    git clone https://github.com/uswodce/sim
    python benchmarks/paper_code.py sim/src --out results/h200/paper-code.json       # 90 s on an H200, alone

Theirs is run as it is, by its own `train` functions in float32; a stand-in for Ray hears what they report, and the time
between two reports is an epoch (or, of a picture, an iteration). Ours is `koopsim train` at the precision its presets
have. CIFAR-10's pictures are random ones of its size, which cost the same; theirs come through torchvision's
transforms, one by one, where torchvision is there. Of a picture, theirs is a step and the evaluation of all valid
pixels that its loop does after each; ours is a sixteenth of a step of 16 stacked pictures, without an evaluation: step
against step is `koopsim bench` (results/h200/bench-paper.json). The two take turns, and the least of each one's turns
counts; the recorded file has one turn of each.
Nothing of the public code is in this repository.
"""

import argparse
import contextlib
import io
import itertools
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verbs import trained, write

TIMES: list[float] = []  # when the public code reported
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


def stand_in() -> None:
    """A module `ray` with `tune.report`, and CUDA's events where there is no CUDA: all that the public code needs."""
    ray, tune = types.ModuleType("ray"), types.ModuleType("ray.tune")

    def report(**figures: float) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        TIMES.append(time.perf_counter())

    tune.report = report  # pyright: ignore[reportAttributeAccessIssue]
    ray.tune = tune  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules |= {"ray": ray, "ray.tune": tune}
    if not torch.cuda.is_available():
        torch.cuda.Event = lambda enable_timing: types.SimpleNamespace(record=lambda: None)  # pyright: ignore


class Images(torch.utils.data.Dataset):
    """Random pictures as torchvision's CIFAR-10 gives them: a PIL image each, made a tensor and normalised."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray):
        self.pixels, self.labels = pixels, labels
        try:
            from torchvision import transforms

            self.of = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        except ImportError:
            self.of = None
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
        self.plain = (torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - mean) / std if self.of is None else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        if self.of is None:
            assert self.plain is not None
            return self.plain[index], int(self.labels[index])
        return self.of(Image.fromarray(self.pixels[index])), int(self.labels[index])


def their_seconds(train: Callable[..., Any], config: dict[str, Any], options: dict[str, Any]) -> float:
    """The median time between two reports."""
    TIMES.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        train(config, options | {"report_ray": True, "sfix": False})
    return statistics.median(after - before for before, after in itertools.pairwise(TIMES))


def our_seconds(name: str, *words: object) -> tuple[float, dict[str, Any]]:
    """The median time of an epoch, and the run's result."""
    result = trained(name, *words)
    times = [0.0, *(line["seconds"] for line in result["metrics"])]
    return statistics.median(after - before for before, after in itertools.pairwise(times)), result


def copy_row(batch: int, n: int, horizon: int, device: str) -> tuple[Callable[[], float], Callable[[], tuple]]:
    from sim.train_cpmem import train  # pyright: ignore[reportMissingImports]

    from koopsim.tasks.copy_memory import sequences

    x, y = sequences(torch.randint(1, 9, (n + batch, 10)), horizon)
    data = {"train": [x[:n].float(), y[:n]], "val": [x[n:].float(), y[n:]]}
    options = {"n_classes": 10, "epochs": 3, "eps": 1e-5, "tier_type": "single", "basis": "tcn", "tier_dim": 32,
               "rev_dim": 32, "channel_sizes": [10] * 8, "kernel_size": 8, "dropout_rate": 0.0, "clip": 1.0,
               "multi_gpu": False, "dataset": data}  # fmt: skip
    steps = -(-n // batch)
    words = ("--task.horizon", horizon, "--task.train", n - 1, "--task.valid", 1, "--task.test", 2, "--recipe.epochs",
             3, "--recipe.batch-size", batch, "--device", device)  # fmt: skip

    def ours() -> tuple[float, dict[str, Any]]:
        seconds, result = our_seconds("copy/sim-single", *words)
        return seconds / steps, result

    return lambda: their_seconds(train, {"batch_size": batch, "lr": 1e-4}, options) / steps, ours


def image_row(batch: int, n: int, folder: Path, device: str) -> tuple[Callable[[], float], Callable[[], tuple]]:
    from sim.train_imgcl import train  # pyright: ignore[reportMissingImports]

    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, n)
    file = folder / f"{n}.npz"
    np.savez(file, x_train=pixels, y_train=labels, x_test=pixels[:64], y_test=labels[:64])
    data = {"train": Images(pixels, labels), "val": Images(pixels[:64], labels[:64])}
    options = {"in_dim": 32, "out_dim": 10, "in_channels": 3, "tier_type": "single", "basis": "cnn", "tier_dim": 50,
               "rev_dim": 32, "out_channels": 38, "test_batch_size": 64, "model_path": None,
               "dataset": data}  # fmt: skip
    config = {"train_batch_size": batch, "lr_mode": "constant", "epochs": 3, "max_lr": 1e-4, "steplr_step": 10}
    words = ("--task.dataset", file, "--recipe.epochs", 4, "--recipe.batch-size", batch, "--device", device)
    scale = 50_000 / n

    def ours() -> tuple[float, dict[str, Any]]:
        seconds, result = our_seconds("cifar10/sim-single", *words)
        return seconds * scale, result

    return lambda: their_seconds(train, config, options) * scale, ours


def picture_row(size: int, iterations: int, device: str) -> tuple[Callable[[], float], Callable[[], tuple]]:
    from sim.train_imgreg import train  # pyright: ignore[reportMissingImports]

    axis = torch.arange(size) / size
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).unsqueeze(0)
    colours = torch.rand(1, size, size, 3)
    data = {"train": [grid[:, ::2, ::2], colours[:, ::2, ::2]], "val": [grid[:, ::2, 1::2], colours[:, ::2, 1::2]]}
    options = {"in_dim": 2, "out_dim": 3, "num_iters": iterations, "tier_type": "single", "basis": "rff",
               "rev_dim": 256, "dataset": data}  # fmt: skip
    config = {"lr": 1e-4, "tier_dim": 512, "bandwidth": 0.01}
    count, each = 16, max(1, iterations // 3)
    words = ("--task.pictures", "text", "--task.count", count, "--task.size", size, "--recipe.epochs", 3,
             "--task.steps-an-epoch", each, "--device", device)  # fmt: skip

    def ours() -> tuple[float, dict[str, Any]]:
        seconds, result = our_seconds("image/sim-rff", *words)
        return seconds / each / count, result

    return lambda: their_seconds(train, config, options), ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the folder of the public code that has sim/net.py: its src")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not (arguments.path / "sim" / "net.py").is_file():
        raise SystemExit(f"{arguments.path} has no sim/net.py; give the folder src of a checkout of uswodce/sim.")
    stand_in()
    sys.path.insert(0, str(arguments.path.resolve()))
    quick, device, rows = arguments.quick, arguments.device, []
    pixels = (32, 6) if quick else (512, 150)  # a side, iterations
    with tempfile.TemporaryDirectory() as folder:
        images, horizon, few = (128, 20, 20) if quick else (12_800, 500, 200)
        place = Path(folder)
        makers = {
            ("CIFAR-10's size, SIM (single), batch 512: an epoch", "s"): lambda: image_row(512, images, place, device),
            ("CIFAR-10's size, SIM (single), batch 128: an epoch", "s"): lambda: image_row(128, images, place, device),
            ("copy memory, SIM (single), batch 1: a step", "ms"): lambda: copy_row(1, few, horizon, device),
            ("copy memory, SIM (single), batch 20: a step", "ms"): lambda: copy_row(20, 10 * few, horizon, device),
            ("a picture of 512 x 512, RFF only, M = 512: a step", "ms"): lambda: picture_row(*pixels, device),
        }
        for (work, unit), make in makers.items():
            theirs, ours = make()
            turns, result = [], {}
            for _ in range(arguments.turns):
                their = theirs()
                our, result = ours()
                turns.append((their, our))
            factor = 1 if unit == "s" else 1e3
            least = [factor * min(column) for column in zip(*turns, strict=True)]
            row = {"work": work, "unit": unit, "theirs": least[0], "ours": least[1], "times": least[0] / least[1]}
            row |= {"turns": [[factor * t for t in turn] for turn in turns], "their_precision": "float32"}
            rows.append(row | {"our_precision": result["precision"], "captured": result["captured"]})
            write(arguments.out, {"rows": rows, "torchvision": "torchvision" in sys.modules, "device": device})


if __name__ == "__main__":
    main()
