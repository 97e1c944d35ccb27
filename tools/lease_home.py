"""What a call of a lease brought back becomes results, lines of the ledger, tables and a commit, in one step.

    python tools/lease_home.py FOLDER [--no-commit]      FOLDER: a copy of what a call of lease_calls.sh left in $OUT

kernels.tar has the files of benchmarks/kernels_lease.sh, again1.tar.gz the folders of benchmarks/again.py. What had
lain in results/h200 goes to results/earlier. What is recorded already is passed over, for each call brings again what
those before it brought. Runs that have not ended go to results/unfinished, the newest state of each. At the end it
says what is left to do. benchmarks/lease_home.sh calls it while a lease lasts.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import ledger
import record

from koopsim.config import to_dict

ROOT = Path(__file__).resolve().parent.parent
TO, EARLIER = ROOT / "results" / "h200", ROOT / "results" / "earlier"
UNFINISHED = ROOT / "results" / "unfinished" / "table1-table2.tar.gz"
WRITTEN = tuple(f"docs/{page}.md" for page in ("evidence", "latency", "claims", "speed"))  # by tools/readme.py
LISTS = ROOT / "tests" / "nn" / "kernels" / "test_cuda_record.py"
# Steps of kernels_lease.sh whose file has another name in results/h200.
NAMES = {
    "variants.json": "tcn-variants.json",
    "compiled.json": "compiled-gradients.json",
    "pictures.json": "image-timing.json",
    "epochs.json": "classification-steps.json",
    "deploy/bench.json": "bench-deploy.json",
    "trained/bench.json": "bench-trained.json",
}
LOOKS = ("signals.json", "theory-samples.json", "picture-bandwidths.json")  # studies that look at test splits


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def same(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.read_bytes() == b.read_bytes()


def whole(file: Path) -> bool:
    """Whether it is JSON that says where it was measured, and of tests that some were run."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        return False
    return "environment" in found and bool(found.get("counts", True))


def keep_file(file: Path, name: str) -> Path | None:
    """A file as results/h200/NAME; None where it is, or was, there already, or is not whole."""
    place = TO / name
    if not whole(file) or any(same(file, kept) for kept in (place, *EARLIER.glob(f"{place.stem}@*.json"))):
        return None
    record.put_by(place, EARLIER)
    place.write_bytes(file.read_bytes())
    return place


def keep_kernels(folder: Path) -> list[str]:
    names = [(file, file.relative_to(folder).as_posix()) for file in sorted(folder.rglob("*.json"))]
    return [place.name for file, name in names if (place := keep_file(file, NAMES.get(name, Path(name).name)))]


def recorded(run: Path) -> bool:
    """Whether this very run is in results/h200, or was and has been followed by another."""
    name, file = run.name, run / "result.json"
    places = [TO / name, TO / "searches" / name.removeprefix("search-")]
    kept = [*(p / "result.json" for p in places), TO / f"{name}.json", *EARLIER.glob(f"{name}@*/result.json")]
    return any(same(file, place) for place in kept)


def keep_runs(folder: Path) -> list[str]:
    """Every run, search and study that has ended."""
    said = []
    for run in sorted(path.parent for path in folder.glob("*/result.json")):
        if not run.name.startswith("trial-") and not recorded(run):
            said.append(record.by_name(run, TO).name)
    for done in sorted(folder.glob("*.json.done")):
        if (place := keep_file(done.with_suffix(""), done.stem)) is not None:
            said.append(place.name)
            if place.name in LOOKS:
                ledger.add(list(ledger.of_study(json.loads(place.read_text()), f"h200/{place.name}")))
    return said


def other_settings(names: list[str]) -> list[str]:
    """Rows whose search has chosen: the preset has to say so, that `koopsim train NAME --seed N` repeats them."""
    from koopsim.presets import PRESETS, run_of
    from koopsim.runs import RunDirectory

    said = []
    for row in sorted({name.rpartition("-seed")[0] for name in names if "-seed" in name}):
        name, run = RunDirectory(next(TO / n for n in names if n.startswith(f"{row}-seed"))).read_config()
        if name in PRESETS and row == name.replace("/", "-") and replace(run, seed=0) != run_of(name):
            said.append(f"the preset {name} becomes what its search chose: {ledger.settings_of(to_dict(run))}")
    return said


def keep_unfinished(folders: list[Path], work: Path) -> list[str]:
    """Runs to go on with: those of before that have not ended since, and the newest state of each."""
    with tarfile.open(UNFINISHED) as tar:
        tar.extractall(work, filter="data")
    mine = work / "again"
    before = {run.name: epochs(run) for run in mine.iterdir()}
    for run in (run for folder in folders for run in sorted(folder.iterdir()) if run.is_dir()):
        old = mine / run.name
        if (run / "result.json").exists():
            subprocess.run(["rm", "-rf", old], check=True)
        elif (run / "checkpoint.safetensors").exists() and epochs(run) > epochs(old):
            subprocess.run(["rm", "-rf", old], check=True)
            subprocess.run(["cp", "-r", run, old], check=True)
    after = {run.name: epochs(run) for run in mine.iterdir()}
    if after != before:
        with tarfile.open(UNFINISHED, "w:gz") as tar:
            tar.add(mine, "again")
    return [f"{name} at epoch {n}" for name, n in sorted(after.items())]


def epochs(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def shorten_lists() -> list[str]:
    """The lists of tests/nn/kernels/test_cuda_record.py after a new record; what a person has to see to."""
    from koopsim.nn.kernels.sources import digest

    found, text = json.loads((TO / "cuda-tests.json").read_text()), LISTS.read_text()
    if found["kernels"] == digest() and "\nSINCE = {\n" in text:
        before, rest = text.split("\nSINCE = {\n")
        LISTS.write_text(before + "\nSINCE: dict[str, tuple[str, str]] = {}\n" + rest.split("\n}\n", 1)[1])
    wrong = [f"{name}: {test['outcome']}" for name, test in found["tests"].items() if test["outcome"] == "failed"]
    late = [name for name, test in found["tests"].items() if test["outcome"] == "not run"]
    said = [f"failed on the GPU, mend it or say why in KNOWN: {line}" for line in wrong]
    said += [f"not run on the GPU, NOT_BEGUN stays for them: {len(late)}, such as {late[0]}"] if late else []
    return said or ["all CUDA tests passed: KNOWN and NOT_BEGUN of test_cuda_record.py can go"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-commit", action="store_true")
    arguments = parser.parse_args()
    bring(arguments.folder.resolve(), not arguments.no_commit)


def bring(came: Path, commit: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        for archive in [*came.glob("kernels.tar"), *sorted(came.glob("again*.tar.gz"))]:
            with tarfile.open(archive) as tar:
                tar.extractall(work / archive.name, filter="data")
        files = keep_kernels(work / "kernels.tar")
        folders = [folder / "again" for folder in sorted(work.glob("again*.tar.gz"))]
        runs = [name for folder in folders for name in keep_runs(folder)]
        left = keep_unfinished(folders, work / "before")
        lost = [
            f.parent for folder in folders for kind in ("search", "pictures") for f in folder.glob(f"*/{kind}.json")
        ]
        todo = [f"{run.name} did not end: begins anew" for run in lost if not (run / "result.json").exists()]
    todo += other_settings(runs) + (shorten_lists() if "cuda-tests.json" in files else [])
    subprocess.run([sys.executable, str(ROOT / "tools" / "readme.py")], cwd=ROOT, check=True)
    print("recorded:", *(files + runs or ["nothing new"]), "unfinished:", *left, "to do:", *todo, sep="\n   ")
    if commit and git("status", "--porcelain"):
        what = ", ".join(files + runs) or "runs to go on with"
        git("add", "--all", "results", "README.md", *WRITTEN, str(LISTS))
        git("commit", "--quiet", "-m", f"results: a call of the lease: {what}")
        print(git("log", "--oneline", "-1").strip())


if __name__ == "__main__":
    main()
