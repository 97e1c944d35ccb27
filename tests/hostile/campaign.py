"""The hostile campaign: `make hostile`. Seeded; the seed is printed, and counts go to results/hostile.json.

    mutated files x verbs, kills, options at their extremes, other people's folders
    wanted: 0 tracebacks, 0 hangs, 0 foreign bytes touched, 0 wrong answers accepted in silence

Everything runs in forks of one warm process (warm.py), in a temporary folder, on as many workers as there are cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from corpus import Case, Truths, build, cases, figures
from extremes import arguments
from kills import WORKS, killed, truths
from mutations import mutated
from warm import Ended, run, warm_up

LIMIT = 30.0  # seconds for a verb; more is a hang
LEAST = {"mutations": 5000, "kills": 60, "extremes": 1000}
FAULTS = ("tracebacks", "hangs", "foreign", "silent")
COUNTED = ("mutations", "kills", "extremes", "folders", "accepted", "refused", *FAULTS)
THEIRS = (
    "ray/thesis.txt",
    "best/config.json",
    "result.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "index.html",
    "verdict.json",
    "p/result.json",
    "env.json",
    "bench.json",
    "search.txt",
    "state.safetensors",
)


class Book:
    """What happened: counts, and every fault in words that let one repeat it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def take(self, kind: str, what: str, ended: Ended, wrong: str | None = None) -> None:
        """One ending: a fault of the first kind that fits, or accepted, or refused."""
        self.counts[kind] += 1
        last = (ended.err.strip().splitlines() or [""])[-1][:300]
        if ended.hung:
            self._fault("hangs", f"{what}: no end within {LIMIT:.0f} s")
        elif ended.crashed:
            self._fault("tracebacks", f"{what}: status {ended.status}: {last}")
        elif wrong:
            self._fault("silent", f"{what}: {wrong}")
        elif ended.status not in (0, 2):
            self._fault("tracebacks", f"{what}: status {ended.status}: {last}")
        else:
            self.counts["accepted" if ended.status == 0 else "refused"] += 1

    def _fault(self, kind: str, words: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{kind}: {words}")
        print(f"hostile: {self.faults[-1]}", file=sys.stderr, flush=True)

    def add(self, other: Book) -> None:
        self.counts += other.counts
        self.faults += other.faults


def snapshot(folder: Path) -> str:
    """One number for all that is below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)}\0{path.is_symlink()}\0".encode())
        if path.is_file() and not path.is_symlink():
            found.update(path.read_bytes())
    return found.hexdigest()


def silent(case: Case, ended: Ended, truth: Truths) -> str | None:
    """What is wrong with an answer that was given: no JSON, or other figures than an intact file's."""
    if ended.status != 0 or not ("--json" in case.argv or case.argv[0].startswith("@")):
        return None
    try:
        said = json.loads(ended.out, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return f"what it printed is no JSON: {ended.out[-200:]!r}"
    if case.truth and said is not None and figures(ended) != truth[case.truth]:
        return f"{figures(ended)} where {truth[case.truth]} belongs"
    return None


def strangers(folder: Path) -> None:
    """Somebody's folder, with files of the names that ours have."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in THEIRS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}")


def worker(job: tuple[int, int, int, Path, Truths, dict[str, Any]]) -> Book:
    """A share of the campaign, with a seed and a folder of its own."""
    number, seed, count, base, truth, whole = job
    book, rng, root = Book(), random.Random(f"{seed}/{number}"), base / f"worker{number}"
    strangers(root / "mine")
    before, log = snapshot(root / "mine"), root / "log"
    known = cases()
    left = deadlines(whole["minutes"])
    for index in range(count):
        if left("mutations"):
            break
        case = rng.choices(known, [c.weight for c in known])[0]
        here = root / "case"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(base / "base" / case.folder, here)
        file = here / case.file
        data, how = mutated(case.kind, file.read_bytes(), rng)
        file.write_bytes(data)
        if whole["again"] is not None and whole["again"] != index:
            continue
        ended = run(case.argv, here, log, LIMIT)
        what = f"worker {number}, mutation {index}: {how} of {case.folder}/{case.file}, koopsim {' '.join(case.argv)}"
        book.take("mutations", what, ended, silent(case, ended, truth))
        if index % 50 == 0 and snapshot(root / "mine") != before:
            book._fault("foreign", what)
    for index in range(whole["kills"]):
        if left("kills"):
            break
        work = WORKS[(index + number) % len(WORKS)]
        _, wrong = killed(work, rng, root, base / "base" / "files", whole["truths"][work.name])
        book.counts["kills"] += 1
        if wrong:
            book._fault("silent", f"worker {number}, kill {index}: {wrong}")
    for index, argv in enumerate(arguments()):
        if index % whole["workers"] == number and index < whole["extremes"] and not left("extremes"):
            book.add(extreme(argv, root, base, log))
    if number == 0 and whole["extremes"]:
        book.add(foreign(root, base, log))
    if snapshot(root / "mine") != before:
        book._fault("foreign", f"worker {number}")
    return book


def deadlines(minutes: float | None) -> Callable[[str], bool]:
    """Whether the time for a part is over: on a crowded machine less is tried, and the counts say how much."""
    began, shares = time.monotonic(), {"mutations": 0.65, "kills": 0.85, "extremes": 1.0}

    def over(part: str) -> bool:
        return minutes is not None and time.monotonic() - began > 60 * minutes * shares[part]

    return over


def extreme(argv: list[str], root: Path, base: Path, log: Path) -> Book:
    book, here = Book(), root / "case"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(base / "base" / "files", here)
    book.take("extremes", f"koopsim {' '.join(argv)}", run(argv, here, log, LIMIT))
    return book


def foreign(root: Path, base: Path, log: Path) -> Book:
    """A stranger's folder as --out of every verb that writes."""
    book, mine = Book(), root / "mine"
    files = base / "base" / "files"
    from extremes import DIGITS, FIT, PICTURES, TRAIN, TUNE

    there, page = ["--out", str(mine)], ["--out", str(mine / "index.html")]
    links = root / "links"
    links.mkdir()
    (links / "metrics.jsonl").symlink_to(mine / "metrics.jsonl")
    for argv in (
        [*TRAIN, *there],
        [*TUNE, *there],
        [*TUNE, *there, "--overwrite"],
        [*PICTURES, *there],
        [*DIGITS, *there],
        ["tune", *PICTURES[1:-2], "--per-picture", "--trials", "1", *there],
        ["report", str(base / "base" / "copy"), *there],
        ["fit", "p.png", *FIT, *there],
        ["fit", "folder", *FIT, *there],
        ["fit", "song.wav", *FIT, *there],
        ["spectrum", "matrix.npy", *there],
        ["forecast", "t.csv", *there],
        ["bench", "stack", "--quick", *there],
        ["reproduce", "figure1", "--scale", "smoke", *there],
        ["render", "fits/p", *page],
        ["predict", "named", "p.png", *page],
        ["export", "named", "--format", "pt2", "--no-check", "--out", str(mine / "state.safetensors")],
        ["export", "named", "--format", "hub", *there],
        ["render", "fits/p", "--out", "/dev/null", "--overwrite"],
        ["eval", "named", "--device", "cpu", "--out", str(mine / "p")],
        ["data", "get", "digits", "--root", str(mine)],
        [*TRAIN[:-1], "new1", "--storage", f"file://{mine}"],
        [*TRAIN[:-1], "new2", "--storage", f"file://{links}"],
        [*TRAIN[:-1], "new3", "--storage", f"file://{links}", "--overwrite"],
        ["train", "--resume", "named", "--storage", f"file://{mine}"],
        ["train", "--resume", "named", "--storage", f"file://{links}"],
        ["train", "--resume", "named", "--storage", f"file://{base / 'base' / 'stored' / 'url'}"],
    ):
        named, before = snapshot(files / "named"), snapshot(mine)
        ended = run(argv, files, log, LIMIT)
        what = f"koopsim {' '.join(argv)}"
        book.take("folders", what, ended)
        kept = [name for name in THEIRS if "/" in name or "--overwrite" not in argv]  # a folder's, whatever was said
        lost = [name for name in kept if (mine / name).read_text() != f"mine: {name}"]
        changed = "--resume" in argv and snapshot(files / "named") != named  # a run of one's own; eval notes its look
        if lost or changed or (ended.status != 0 and snapshot(mine) != before):
            book._fault("foreign", f"{what}: {lost}")
        strangers(mine)
    return book


def campaign(
    seed: int, sizes: dict[str, int], workers: int, say: Callable[[str], None], how: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All of it, as JSON values. `how`: minutes, after which it stops; again, the one mutation that is tried."""
    how = {"minutes": None, "again": None} | (how or {})
    began = time.monotonic()
    warm_up()
    from koopsim.runs import environment

    os.environ.setdefault("KOOPSIM_COMMIT", environment()["commit"] or "unknown")  # though someone commits meanwhile
    with tempfile.TemporaryDirectory(prefix="koopsim-hostile-") as folder:
        base = Path(folder)
        truth = build(base / "base", base / "log")
        kills = -(-sizes["kills"] // workers)
        whole = truths(base, base / "base" / "files") if kills else {}
        share = {"truths": whole, "workers": workers, "kills": kills, "extremes": sizes["extremes"], **how}
        say(f"corpus made in {time.monotonic() - began:.0f} s; {sizes}, {workers} workers")
        jobs = [(n, seed, -(-sizes["mutations"] // workers), base, truth, share) for n in range(workers)]
        book = Book()
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            for part in pool.imap_unordered(worker, jobs):
                book.add(part)
    return {
        "seed": seed,
        **{name: book.counts[name] for name in COUNTED},
        "faults": sorted(book.faults),
        "seconds": time.monotonic() - began,
        "cores": os.cpu_count(),
    }


def earlier(file: Path) -> list[dict[str, Any]]:
    """What the runs before came to, the oldest first: their counts and faults stay."""
    if not file.exists():
        return []
    last = json.loads(file.read_text())
    counts = {name: last[name] for name in ("seed", *COUNTED, "faults", "seconds", "cores")}
    where = {name: last["environment"][name] for name in ("date", "commit", "command")}
    return [*last.get("earlier", []), counts | where]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=24)
    for name, count in LEAST.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--jobs", "--workers", dest="workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long; what was tried counts")
    parser.add_argument(
        "--again", type=int, default=None, help="only this mutation of each worker, by a fault's number"
    )
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()

    def say(line: str) -> None:
        print(f"hostile, seed {given.seed}: {line}", file=sys.stderr, flush=True)

    sizes = {name: getattr(given, name) for name in LEAST}
    if given.again is not None:
        sizes |= {"kills": 0, "extremes": 0, "mutations": given.workers * (given.again + 1)}
    how = {"minutes": given.minutes, "again": given.again}
    found = campaign(given.seed, sizes, given.workers, say, how)
    say(", ".join(f"{found[name]} {name}" for name in COUNTED) + f" in {found['seconds']:.0f} s")
    if given.out:
        from koopsim.runs import environment, write_json

        write_json(given.out, found | {"environment": environment(), "earlier": earlier(given.out)})
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
