"""RFF-only SIMs, U V learnt and U V = I, and Tancik et al.'s network, on pictures that are in no table.

    python benchmarks/picture_bandwidths.py PHOTOGRAPHS --out results/h200/picture-bandwidths.json      # H200, minutes
    python benchmarks/picture_bandwidths.py PHOTOGRAPHS --small --out results/picture-bandwidths.json   # CPU, an hour

At full size what picture_factors.py shows in small, over bandwidths and rates: valid pixels, which choose, lie one
pixel from a trained one, test pixels a diagonal away; of every setting both are shown. PHOTOGRAPHS is a folder; as many
pictures of text are made here. A bandwidth b of Tancik et al.'s network is sigma = 1 / (2 pi b).
--small: 128 x 128, a quarter of the features and widths, bandwidths four times as wide.
"""

import argparse
import hashlib
import itertools
import math
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from verbs import trained, write

from koopsim.pictures import picture_set

BANDWIDTHS, RATES = (0.009, 0.012, 0.016), (1e-3, 2e-3)
WHOLE = ("--model.projector", "--model.rank")  # and N: U V = I
MODELS = {
    "SIM": ("image/sim-rff", False, "plain"),
    "SIM, U V = I": ("image/sim-rff", True, "plain"),
    "SIM, U V = I, even start": ("image/sim-rff", True, "even"),
    "Tancik et al.": ("image/tancik", False, ""),
}
SEED = 13  # of the text: no other figure has it


def gathered(photographs: Path, size: int, folder: Path) -> dict[str, str]:
    """All pictures as files in `folder`; the digest of each one's pixels."""
    own = picture_set(str(photographs), size)
    text = picture_set("text", size, count=len(own), seed=SEED)
    digests = {}
    for kind, found in (("photograph", own), ("text", text)):
        for name, values in zip(found.names, found.values, strict=True):
            pixels = np.round(255 * values).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{kind}-{name}.png")
            digests[f"{kind}-{name}"] = hashlib.sha256(pixels.tobytes()).hexdigest()[:16]
    return digests


def words_of(model: str, bandwidth: float, rate: float, small: bool) -> list[object]:
    """`koopsim train` of it."""
    preset, whole, start = MODELS[model]
    features, width = (128, 64) if small else (512, 256)
    words: list[object] = [preset, "--recipe.learning-rate", rate]
    if preset == "image/tancik":
        sizes = ["--model.features", features, "--model.width", width]
        return [*words, "--model.sigma", 1 / (2 * math.pi * bandwidth), *sizes]
    words += ["--model.fourier.bandwidth", bandwidth, "--model.start", start]
    words += ["--model.fourier.features", features, "--model.hidden", width]
    return [*words, *WHOLE, features] if whole else words


def means(result: dict, split: str) -> dict[str, float]:
    """PSNR over the photographs and over the text."""
    own = {name.removeprefix("psnr/"): value for name, value in result[split].items() if name.startswith("psnr/")}
    kinds = ("photograph", "text")
    return {kind: float(np.mean([v for name, v in own.items() if name.startswith(kind)])) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    small = arguments.small or arguments.quick
    size, wider = (128, 4) if small else (512, 1)
    common: list[object] = ["--task.size", size, "--precision", arguments.precision, "--device", arguments.device]
    if arguments.quick:
        common += ["--recipe.epochs", 2, "--task.steps-an-epoch", 2]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        digests = gathered(arguments.photographs, size, Path(folder))
        for bandwidth, rate, model in itertools.product(BANDWIDTHS, RATES, MODELS):
            began = time.perf_counter()
            words = words_of(model, wider * bandwidth, rate, small)
            result = trained(*words, "--task.pictures", folder, *common)
            row = {"model": model, "bandwidth": bandwidth, "rate": rate, "parameters": result["parameters"]}
            row |= {split: means(result, split) for split in ("valid", "test")}
            row |= {"train": result["metrics"][-1]["train_psnr"], "each": result["test"]}
            rows.append(row | {"seconds": time.perf_counter() - began})
            about = {"size": size, "precision": arguments.precision, "steps": result["steps"], "pictures": digests}
            write(arguments.out, about | {"rows": rows})


if __name__ == "__main__":
    main()
