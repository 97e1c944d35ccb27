"""Copies run directories into results/: what a run says of itself, and the weights of the first one of each model.

    python tools/record.py RUN... [--to results/h200]
    python tools/record.py --names again/copy-* again/search-*       # what benchmarks/again.py left: names are kept

What lay there under the same name goes to results/earlier (without its weights), never away, and each look at a test
split becomes a line of results/LEDGER.md.

Optimiser and random states stay behind: a recorded run can be evaluated and repeated, not gone on with. Runs of a model
become NAME-seed0, NAME-seed1, ... in the order given; their configuration says which seeds they had. Searches go to
searches/, a search per picture becomes one file. Folders without a result are passed over.
"""

import argparse
import json
import shutil
from pathlib import Path

import ledger

from koopsim.engine.checkpoint import lasting, read_checkpoint, write_checkpoint
from koopsim.runs import RunDirectory

SAID = ("config.json", "env.json", "metrics.jsonl", "result.json")  # and what looks.jsonl has goes to the ledger


SEARCHED = ("search.json", "env.json", "trials.csv", "result.json")


def put_by(recorded: Path, earlier: Path) -> None:
    """What was recorded as this folder or file goes to `earlier`, with the commit it was measured at in its name."""
    if recorded.exists():
        file = recorded / "env.json" if recorded.is_dir() else recorded
        said = json.loads(file.read_text())
        commit = said.get("environment", said).get("commit") or "unknown"
        if recorded.is_dir():
            (recorded / "checkpoint.safetensors").unlink(missing_ok=True)
        earlier.mkdir(parents=True, exist_ok=True)
        kind = "" if recorded.is_dir() else recorded.suffix
        name, number = f"{recorded.name.removesuffix(kind)}@{commit[:7]}", 1
        while (place := earlier / f"{name}{f'-{number}' if number > 1 else ''}{kind}").exists():
            number += 1  # measured twice at one commit: neither takes the other's place
        recorded.rename(place)


def looks(run: Path, folder: Path, to: Path) -> list[str]:
    """The ledger's lines of a run that is recorded in `folder`: a line a look."""
    result, seen = RunDirectory(run).read_result(), RunDirectory(run).read_looks()
    here = result["environment"]
    said = [(look["test"], look) for look in seen] or [(result.get("test"), here)]
    kept = f"{(folder / 'result.json').relative_to(to.parent)}"
    shown = [(result | {"test": test, "environment": look}, kept, look["date"][:10], "") for test, look in said]
    return [line for entry in shown if (line := ledger.line(*entry))]


def record_run(run: Path, folder: Path, weights: bool) -> None:
    folder.mkdir(parents=True)
    for file in SAID:
        shutil.copyfile(run / file, folder / file)
    ledger.add(looks(run, folder, folder.parent))
    if weights:
        kept = folder / "checkpoint.safetensors"
        parts, header, _ = read_checkpoint(run / kept.name)
        write_checkpoint(kept, {number: lasting(state) for number, state in parts.items()}, header)


def record_search(search: Path, folder: Path) -> None:
    """What was asked, every trial, what was chosen, the trainings that confirmed it, the looks of those after it."""
    for inner in ("", "confirm"):
        for file in SEARCHED:
            if (search / inner / file).exists():
                (folder / inner).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(search / inner / file, folder / inner / file)
    for best in sorted(search.glob("best*/looks.jsonl")):
        ledger.add(looks(best.parent, folder, folder.parents[1]))


def record_pictures(search: Path, file: Path) -> None:
    """A search per picture: its one result over the set, and a line in the ledger."""
    shutil.copyfile(search / "result.json", file)
    result = json.loads(file.read_text())
    said = ledger.line(result, f"{file.parent.name}/{file.name}", result["environment"]["date"][:10], "")
    ledger.add([said] if said else [])


def by_name(run: Path, to: Path) -> Path:
    """Record under the name it has; the place where it is now. Older ones of its row go to earlier/."""
    earlier, name = to.parent / "earlier", run.name
    if (run / "pictures.json").exists():
        put_by(place := to / f"{name}.json", earlier)
        record_pictures(run, place)
    elif (run / "search.json").exists():
        put_by(place := to / "searches" / name.removeprefix("search-"), earlier / "searches")
        record_search(run, place)
    else:
        row, _, seed = name.rpartition("-seed")
        for old in (to / name, to / f"{name}.json", *([to / row] if seed.isdigit() else [])):
            put_by(old, earlier)
        record_run(run, place := to / name, weights=seed == "0" and (run / "checkpoint.safetensors").exists())
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=Path("results/h200"))
    parser.add_argument("--names", action="store_true", help="folders keep their names")
    arguments = parser.parse_args()
    seen: dict[str, int] = {}
    for run in arguments.runs:
        if not (run / "result.json").exists():
            print(f"{run} has no result: passed over")
            continue
        if arguments.names:
            print(f"{run} -> {by_name(run, arguments.to)}")
            continue
        name, _ = RunDirectory(run).read_config()
        number = seen[name] = seen.get(name, -1) + 1
        folder = arguments.to / f"{name.replace('/', '-').replace(':', '-')}-seed{number}"
        put_by(folder, arguments.to.parent / "earlier")
        record_run(run, folder, weights=not number)
        print(f"{run} -> {folder}")


if __name__ == "__main__":
    main()
