"""Copies run directories into results/: what a run says of itself, and the weights of the first one of each model.

    python tools/record.py RUN... [--to results/h200]

What lay there under the same name goes to results/earlier (without its weights), never away, and each look at a test
split becomes a line of results/LEDGER.md.

Optimiser and random states stay behind: a recorded run can be evaluated and repeated, not gone on with. Runs of a model
become NAME-seed0, NAME-seed1, ... in the order given; their configuration says which seeds they had.
"""

import argparse
import json
import shutil
from pathlib import Path

import ledger

from koopsim.engine.checkpoint import lasting, read_checkpoint, write_checkpoint
from koopsim.runs import RunDirectory

SAID = ("config.json", "env.json", "metrics.jsonl", "result.json")  # and what looks.jsonl has goes to the ledger


def put_by(folder: Path, earlier: Path) -> None:
    """What was recorded as `folder` goes to `earlier`, with the commit it was measured at in its name."""
    if folder.exists():
        commit = json.loads((folder / "env.json").read_text()).get("commit") or "unknown"
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        earlier.mkdir(parents=True, exist_ok=True)
        folder.rename(earlier / f"{folder.name}@{commit[:7]}")


def looks(run: Path, folder: Path) -> list[str]:
    """The ledger's lines of a run: a line a look."""
    result, seen = RunDirectory(run).read_result(), RunDirectory(run).read_looks()
    here = result["environment"]
    said = [(look["test"], look) for look in seen] or [(result.get("test"), here)]
    kept = f"{folder.parent.name}/{folder.name}/result.json"
    shown = [(result | {"test": test, "environment": look}, kept, look["date"][:10], "") for test, look in said]
    return [line for entry in shown if (line := ledger.line(*entry))]


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
        put_by(folder, arguments.to.parent / "earlier")
        folder.mkdir(parents=True)
        for file in SAID:
            shutil.copyfile(run / file, folder / file)
        ledger.add(looks(run, folder))
        if not number:
            kept = folder / "checkpoint.safetensors"
            parts, header, _ = read_checkpoint(run / kept.name)
            write_checkpoint(kept, {number: lasting(state) for number, state in parts.items()}, header)
        print(f"{run} -> {folder}")


if __name__ == "__main__":
    main()
