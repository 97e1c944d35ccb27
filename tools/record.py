"""Copies run directories into results/: what a run says of itself, and the weights of the first one of each model.

    python tools/record.py RUN... [--to results/h200]

Optimiser and random states stay behind: a recorded run can be evaluated and repeated, not gone on with. Runs of a model
become NAME-seed0, NAME-seed1, ... in the order given; their configuration says which seeds they had.
"""

import argparse
import shutil
from pathlib import Path

from koopsim.engine.checkpoint import lasting, read_checkpoint, write_checkpoint
from koopsim.runs import RunDirectory

SAID = ("config.json", "env.json", "metrics.jsonl", "result.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=Path("results/h200"))
    arguments = parser.parse_args()
    seen: dict[str, int] = {}
    for run in arguments.runs:
        name, _ = RunDirectory(run).read_config()
        number = seen[name] = seen.get(name, -1) + 1
        folder = arguments.to / f"{name.replace('/', '-').replace(':', '-')}-seed{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in SAID:
            shutil.copyfile(run / file, folder / file)
        if not number:
            kept = folder / "checkpoint.safetensors"
            parts, header, _ = read_checkpoint(run / kept.name)
            write_checkpoint(kept, {number: lasting(state) for number, state in parts.items()}, header)
        print(f"{run} -> {folder}")


if __name__ == "__main__":
    main()
