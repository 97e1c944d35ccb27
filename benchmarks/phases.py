"""Where a fresh `koopsim train` spends its seconds: imports, CUDA's start, reading, set-up, steps, figures, the end.

    python benchmarks/phases.py cifar10/sim-single --recipe best --recipe.epochs 12 [--out-file FILE]

The process is a child of this one; each phase is marked when it ends, by the child's own clock from its first line on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verbs import write

CHILD = r'''
import ctypes, json, sys, threading, time
began, marks = time.perf_counter(), []
def wake():
    """The GPU's context, which PyTorch will find there: the driver's calls let go of the interpreter's lock."""
    driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
if sys.argv.pop(1) == "early":
    threading.Thread(target=wake, daemon=True).start()
mark = lambda name: marks.append((name, time.perf_counter() - began))
import koopsim.cli.train as verb
from koopsim.cli import leaving
leaving.Process.own = True
mark("import the verb")
def after(owner, name, label):
    whole = getattr(owner, name)
    def timed(*words, **more):
        mark("before " + label)
        found = whole(*words, **more)
        mark(label)
        return found
    setattr(owner, name, timed)
def asked(*words, whole=verb._train):
    mark("options")
    import koopsim.engine.drive, koopsim.training as training
    mark("import training")
    after(koopsim.engine.drive, "pick_device", "device")
    after(training, "build_task", "task")
    after(training, "fingerprint_of", "fingerprint")
    after(training.Training, "_open", "set-up")
    after(training, "drive", "drive")
    after(training.Training, "result", "result")
    return whole(*words)
after(verb, "run_of", "import torch, presets")
verb._train = asked
code = leaving.main(sys.argv[2:])
mark("end of main")
names = ("torch._dynamo", "sympy", "sklearn", "pandas", "scipy.stats", "matplotlib")
heavy = sorted(n for n in names if n in sys.modules)
open(sys.argv[1], "w").write(json.dumps({"marks": marks, "imported": heavy}))
leaving.leave(code)
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out-file", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--early", action="store_true", help="and, in turns, with the GPU's context begun early")
    arguments, words = parser.parse_known_args()
    rows = []
    ways = ["plain", "early"] if arguments.early else ["plain"]
    for way in ways * arguments.repeats:
        with tempfile.TemporaryDirectory() as folder:
            said, began = Path(folder) / "said.json", time.perf_counter()
            command = [sys.executable, "-c", CHILD, way, str(said), "train", *words, "--out", f"{folder}/run", "--json"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result, row = json.loads(done.stdout), {"way": way, "process": time.perf_counter() - began}
            row |= {key: result.get(key) for key in ("set_up_seconds", "train_seconds", "test")}
            rows.append(row | json.loads(said.read_text()))
        write(arguments.out_file, {"words": words, "rows": rows})


if __name__ == "__main__":
    main()
