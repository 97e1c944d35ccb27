"""Where a fresh `koopsim train` spends its seconds: imports, CUDA's start, reading, set-up, steps, figures, the end.

    python benchmarks/phases.py cifar10/sim-single --recipe best --recipe.epochs 12 [--out-file FILE]

The process is a child of this one; each phase is marked when it ends, by the child's own clock from its first line on.
--ways plain late serial: in turns with processes whose GPU context PyTorch itself begins, and with those that import
their kernels when they are first used. --ways cold in-turn: with no kernel in the cache, built side by side and one
after the other; rehearsed: none is to be built, and they are looked for all the same (engine/rehearsal.py). What a
process imports has its bytecode beside it, as an installed package has.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verbs import fresh_environment, write

WAYS = ("plain", "late", "serial", "cold", "in-turn", "rehearsed")
CHILD = r'''
import json, sys, time
began, marks, way = time.perf_counter(), [], sys.argv.pop(1)
mark = lambda name: marks.append((name, time.perf_counter() - began))
import koopsim.cli.train as verb
from koopsim.cli import leaving
leaving.Process.own = True
mark("import the verb")
if way == "late":
    verb.wake_gpu = lambda: None
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
    import koopsim.engine.capture, koopsim.engine.drive, koopsim.training as training
    mark("import training")
    if way == "serial":
        training.import_ahead = lambda device: None
    after(koopsim.engine.drive, "pick_device", "device")
    after(training, "build_task", "task")
    after(training, "fingerprint_of", "fingerprint")
    after(koopsim.engine.capture, "build_kernels", "kernels")
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
kept = not sys.dont_write_bytecode
open(sys.argv[1], "w").write(json.dumps({"marks": marks, "imported": heavy, "bytecode": kept}))
leaving.leave(code)
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out-file", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=["plain"], choices=WAYS)
    arguments, words = parser.parse_known_args()
    rows = []
    for way in arguments.ways * arguments.repeats:
        with tempfile.TemporaryDirectory() as folder:
            said, began = Path(folder) / "said.json", time.perf_counter()
            command = [sys.executable, "-c", CHILD, way, str(said), "train", *words, "--out", f"{folder}/run", "--json"]
            cache = {"TRITON_CACHE_DIR": f"{folder}/kernels"} if way in ("cold", "in-turn") else {}
            asked = {"KOOPSIM_REHEARSE": str(int(way in ("cold", "rehearsed")))}
            settings = fresh_environment() | cache | asked
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=settings)
            result, row = json.loads(done.stdout), {"way": way, "process": time.perf_counter() - began}
            row |= {key: result.get(key) for key in ("set_up_seconds", "train_seconds", "test")}
            rows.append(row | json.loads(said.read_text()))
        write(arguments.out_file, {"words": words, "rows": rows})


if __name__ == "__main__":
    main()
