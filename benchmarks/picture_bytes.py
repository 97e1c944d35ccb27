"""Pictures at equal bytes: `koopsim fit --bytes` beside JPEG, PNG and networks written plainly.

    python benchmarks/picture_bytes.py --out results/picture-bytes.json [--steps 2500] [--jobs 8] [--minutes 5]
    python benchmarks/picture_bytes.py --out results/picture-bytes-jpeg.json --jpeg results/picture-bytes.json

Scikit-learn's two photographs at 640 x 427 and a page of text made here, at 2 to 64 kB, three seeds each. JPEG is given
its best: optimised tables, and the picture at half or a quarter of its size where that is better. Figures are of files
that were written and read again. The file grows with every fit; after --minutes none is begun. --jpeg fits nothing: the
JPEG of today beside the networks of a file from before.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from koopsim.engine.drive import pick_device
from koopsim.fit_folder import Keeping, fit_files
from koopsim.fitting import FitSettings
from koopsim.pictures import picture_set, save_png
from koopsim.pictures.codecs import jpeg_within
from koopsim.runs import environment, write_json
from koopsim.training import Session

BUDGETS = (2000, 4000, 8000, 16_000, 32_000, 64_000)


def pictures(folder: Path) -> list[Path]:
    made = {name: np.array(load_sample_image(f"{name}.jpg")) for name in ("china", "flower")}
    text = picture_set("text", 512, count=1)
    made["text"] = np.rint(255 * text.values[0]).astype(np.uint8)
    for name, pixels in made.items():
        save_png(folder / f"{name}.png", pixels)
    return [folder / f"{name}.png" for name in made]


KEYS = ("psnr", "network_bytes", "jpeg_at_equal_bytes", "jpeg_bytes", "png_bytes", "steps", "seconds", "model")


def fitted(job: tuple[Path, str, Keeping, int, int, str]) -> dict:
    """One fit: a picture, a way of writing it, a seed."""
    path, way, kept, seed, steps, device = job
    torch.set_num_threads(1)
    settings = FitSettings(steps=steps, seed=seed, frames=False)
    folder = path.parent / f"{path.stem}-{way}-{seed}"
    result = fit_files([path], [folder], settings, Session(pick_device(device)), kept)[0]
    row = {"picture": path.stem, "way": way, "budget": kept.budget, "seed": seed}
    return row | {key: result[key] for key in KEYS}


def beside(recorded: Path, out: Path) -> None:
    """The best JPEG within the bytes of each network that was asked to be small."""
    rows = [row for row in json.loads(recorded.read_text())["rows"] if row["budget"]]
    keys = ("picture", "budget", "seed", "network_bytes")
    with tempfile.TemporaryDirectory() as folder:
        pixels = {file.stem: np.array(Image.open(file)) for file in pictures(Path(folder))}
    found = []
    for row in rows:
        jpeg = jpeg_within(pixels[row["picture"]], row["network_bytes"])
        found.append({key: row[key] for key in keys} | {"jpeg_at_equal_bytes": jpeg and asdict(jpeg)})
    write_json(out, {"networks_of": str(recorded), "rows": found, "environment": environment()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500, help="of each fit: the same seed gives the same bits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no further fit is begun")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jpeg", type=Path, help="measure JPEG alone, beside the networks of this file")
    arguments = parser.parse_args()
    if arguments.jpeg:
        beside(arguments.jpeg, arguments.out)
        return
    began = time.perf_counter()
    ways = [(f"{b} bytes", Keeping(budget=b)) for b in arguments.budgets]
    ways += [(w, Keeping(w)) for w in ("float32", "float16", "int8")]  # pyright: ignore[reportArgumentType]
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (path, way, kept, seed, arguments.steps, arguments.device)
            for seed in range(arguments.seeds) for path in pictures(Path(folder)) for way, kept in ways
            if kept.budget or seed == 0
        ]  # fmt: skip
        about = {"steps_a_fit": arguments.steps, "jobs": arguments.jobs, "asked": len(jobs)}
        about |= {"device": str(pick_device(arguments.device))}
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(fitted, job) for job in jobs]
            for done in as_completed(waiting):
                if done.cancelled():
                    continue
                if (error := done.exception()) is not None:  # one fit that fails does not end the others
                    print("failed:", str(error).splitlines()[0], flush=True)
                    failed.append(str(error).splitlines()[0])
                    continue
                row = done.result()
                rows.append(row)
                small = row["jpeg_at_equal_bytes"]
                said = row["picture"], row["way"], row["seed"], row["network_bytes"], row["psnr"]
                print(*said, small and small["psnr"], flush=True)
                spent = time.perf_counter() - began
                ordered = sorted(rows, key=lambda r: (r["picture"], r["budget"] or 0, r["way"], r["seed"]))
                write_json(
                    arguments.out,
                    about | {"wall_seconds": spent, "failed": failed, "rows": ordered} | {"environment": environment()},
                )
                if spent > 60 * arguments.minutes:
                    for job in waiting:
                        job.cancel()


if __name__ == "__main__":
    main()
