"""How long a fresh process takes to its first training step, with kernels to compile and with kernels in the cache.

    python benchmarks/ready.py [--presets image/sim-rff copy/sim-single] [--out results/h200/ready.json]

Each row is a process of its own: seconds of torch's own import, from there to the end of the set-up (everything built,
compiled, captured: the next thing is a step), of the steps, and of the whole process. "cold" has empty caches of Triton
and CUDA and, where no data set is read, of koopsim's kernels; "warm" is the next process. Pictures are eight of random
numbers, 512 x 512.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verbs import write

CHILD = """
import json, sys, time
began = time.perf_counter()
import torch
torch.cuda.is_available() and torch.zeros(1, device="cuda")  # the driver's start is not ours
imported = time.perf_counter()
from koopsim import training
whole, ready = training.Training._open, []
def opened(self):
    whole(self)
    ready.append(time.perf_counter())
training.Training._open = opened
from koopsim.cli import main
code = main(sys.argv[2:])
heavy = sorted(name for name in ("torch._dynamo", "sympy") if name in sys.modules)
with open(sys.argv[1], "w") as file:
    json.dump({"torch_import": imported - began, "first_step": ready[0] - imported, "imported": heavy}, file)
sys.exit(code)
"""


def pictures(folder: Path, count: int = 8) -> Path:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (512, 512, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def row(preset: str, caches: Path, place: Path, kind: str) -> dict:
    own = {"TRITON_CACHE_DIR": str(caches / "triton"), "XDG_CACHE_HOME": str(caches), "CUDA_CACHE_PATH": str(caches)}
    if preset.startswith(("image", "copy", "digits")):
        own["KOOPSIM_DATA"] = str(caches)
    words = ["train", preset, "--out", str(place / f"{preset.replace('/', '-')}-{kind}"), "--json"]
    words += ["--recipe.epochs", "1"]
    if preset.startswith("image"):
        words += ["--task.pictures", str(place / "pictures")]
    said = place / "said.json"
    began = time.perf_counter()
    command = [sys.executable, "-c", CHILD, str(said), *words]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        return {"preset": preset, "caches": kind, "failed": done.stderr[-400:]}
    result = json.loads(done.stdout)
    found = {"preset": preset, "caches": kind, "process": seconds, **json.loads(said.read_text())}
    return found | {"set_up": result["set_up_seconds"], "training": result["train_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["image/sim-rff", "copy/sim-single", "cifar10/sim-single"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        pictures(place / "pictures")
        for preset in arguments.presets:
            for kind in ("cold", "warm"):
                rows.append(row(preset, place / preset.replace("/", "-"), place, kind))
                write(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
