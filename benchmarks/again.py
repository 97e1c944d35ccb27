"""The rows of Tables 1 to 3 again inside a lease of a GPU: what is most worth knowing first, each kept as it ends.

    python benchmarks/again.py table1 table3 --seconds 540 --out $OUT             # in so many lanes at once
    python benchmarks/again.py table1 table2 --seconds 540 --out $OUT             # goes on in the same --work folder
    python benchmarks/again.py table1 --earlier again.tar.gz --out $OUT           # on another machine: what travelled
    python benchmarks/again.py table1 table2 table3 beside --rehearse --out OUT   # all of it, tiny, on a CPU

A job (again_jobs.py) is a verb of koopsim, or a script beside this one, in a process of its own. So many lanes run at a
time (small models leave most of a GPU idle; for more than one NVIDIA's MPS is started where it is there). A job that
cannot end in time is not begun; one that outlasts its box, and all at the deadline, are stopped by Ctrl-C, which saves
them; a job that fails stops no other. OUT/again.json says what became of each, OUT/again.tar.gz has the folders: every
text, and weights as long as the whole stays below 14 MiB. Budgets were decided before (results/BUDGETS.md).
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from again_jobs import PARTS, Job, Place

from koopsim.files.json import read_json
from koopsim.runs import environment, write_json

MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/koopsim-mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/koopsim-mps"}
MOST = 14 << 20  # bytes of the archive: a file above 16 MiB would not come back
TEXTS = (".json", ".jsonl", ".csv", ".log", ".koopsim", ".done")
OFTEN = 60.0  # seconds: a machine may be taken away, and what was not copied by then is lost
WAIT = 40.0  # seconds for a stopped process to save itself; one that is killed may take all others of MPS with it


class Lease:
    """Jobs in lanes until a deadline."""

    def __init__(self, jobs: list[Job], arguments: argparse.Namespace):
        self.jobs, self.arguments = jobs, arguments
        self.folder: Path = arguments.work / "again"
        self.start = time.monotonic()
        self.lanes = arguments.lanes
        self.mps = arguments.device != "cpu" and self.lanes > 1 and mps_runs()
        self.said = 0.0  # when

    def now(self) -> float:
        return time.monotonic() - self.start

    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.process is not None]

    def run(self) -> None:
        self.say()
        while any(job.status in ("waiting", "running") for job in self.jobs):
            if any([self.ended(job) for job in self.running()]) or self.now() - self.said > OFTEN:
                self.say()
            self.stop([job for job in self.running() if self.over(job)])
            for job in self.jobs:
                if job.status == "waiting" and self.free(job) and self.ready(job):
                    self.begin(job)
            time.sleep(0.2)
        self.say()

    def free(self, job: Job) -> bool:
        """A lane, and nobody who needs the device alone."""
        running = self.running()
        apart = job.alone or any(other.alone for other in running)
        return len(running) < self.lanes and not (apart and running)

    def ready(self, job: Job) -> bool:
        return all(other.status not in ("waiting", "running") for other in self.jobs if other.name in job.after)

    def begin(self, job: Job) -> None:
        if self.done(job):
            job.status = "done before"
        elif self.now() + job.seconds > self.arguments.seconds:
            job.status = "no time left"
        else:
            try:
                words = self.command(job)
            except (LookupError, OSError, ValueError) as error:  # what it builds on did not come to an end
                job.status = f"cannot begin: {type(error).__name__} {error}"
                return
            job.status, job.began = "running", self.now()
            share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(job.share)} if job.share < 100 else {}
            environ = os.environ | (MPS | share if self.mps else {})
            with (self.folder / f"{job.name}.log").open("ab") as log:
                said = subprocess.DEVNULL if not job.script else log
                job.process = subprocess.Popen([sys.executable, *words], stdout=said, stderr=log, env=environ)

    def done(self, job: Job) -> bool:
        folder = self.folder / job.name
        kept = (folder / "result.json", folder / "bench.json", self.folder / f"{job.name}.json.done")
        return any(map(Path.exists, kept)) or bool(job.stop and self.epochs(job) >= job.stop)

    def epochs(self, job: Job) -> int:
        file = self.folder / job.name / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def command(self, job: Job) -> list[str]:
        """As it was asked for, or, of a run or a search that was stopped before, on with it."""
        folder, words = self.folder / job.name, [*map(str, job.words())]
        if job.script:
            return [str(Path(__file__).with_name(words[0])), *words[1:]]
        begun = any((folder / name).exists() for name in ("config.json", "search.json", "pictures.json"))
        kept = (folder / "checkpoint.safetensors").exists() or words[0] != "train"
        own = [words[0], "--resume", str(folder)] if begun and kept else [*words, "--out", str(folder)]
        own += ["--overwrite"] if begun and not kept else []  # stopped before its first epoch
        return ["-m", "koopsim", *own, "--device", self.arguments.device, "--json"]

    def over(self, job: Job) -> bool:
        late = self.now() > self.arguments.seconds or self.now() - job.began > job.box
        return late or bool(job.stop and self.epochs(job) >= job.stop)

    def stop(self, jobs: list[Job]) -> None:
        """Ctrl-C for all of them at once; who has not saved itself in time is ended."""
        for job in jobs:
            assert job.process is not None
            job.process.send_signal(signal.SIGINT)
        until = time.monotonic() + WAIT
        for job in jobs:
            assert job.process is not None
            try:
                job.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
            planned = job.stop and self.epochs(job) >= job.stop
            late = "at the deadline" if self.now() > self.arguments.seconds else "by its box or by hand"
            job.status = f"stopped {'as planned' if planned else late}"
            job.took, job.process = self.now() - job.began, None
        if jobs:
            self.say()

    def ended(self, job: Job) -> bool:
        assert job.process is not None
        code = job.process.poll()
        if code is None:
            return False
        job.status = "done" if code == 0 else f"failed ({code}): {last_line(self.folder / f'{job.name}.log')}"
        job.took, job.process = self.now() - job.began, None
        if job.script and code == 0:
            (self.folder / f"{job.name}.json.done").touch()
        return True

    def say(self) -> None:
        """What became of each so far, and all folders in one file."""
        self.said = self.now()
        rows = [{"name": j.name, "status": j.status, "began": j.began, "took": j.took} for j in self.jobs]
        for row, job in zip(rows, self.jobs, strict=True):
            file = self.folder / job.name / "result.json"
            if file.exists():
                row["test"] = read_json(file).get("test")
            row["epochs"] = self.epochs(job)
        out = self.arguments.out
        write_json(out / "again.json", {"rows": rows, "mps": self.mps, "lanes": self.lanes, "seconds": self.now(),
                                        "environment": environment()})  # fmt: skip
        left = archive(self.folder, out / "again.tar.gz")
        told = [f"{row['name']}: {row['status']} {row['took']:.0f} s" for row in rows if row["status"] != "waiting"]
        waiting = sum(row["status"] == "waiting" for row in rows)
        print(f"== {self.now():.0f} s, {waiting} waiting, {left} weights left out", *told, sep="\n   ", flush=True)


def last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def archive(folder: Path, out: Path) -> int:
    """All texts, then weights while there is room; the number of those that were left out."""
    part, left = out.with_suffix(".part"), 0
    with part.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
        for file in sorted(f for f in folder.rglob("*") if f.is_file() and is_text(f)):
            tar.add(file, Path("again") / file.relative_to(folder))
        for file in weights(folder):
            if raw.tell() + file.stat().st_size > MOST:
                left += 1
            else:
                tar.add(file, Path("again") / file.relative_to(folder))
    part.rename(out)
    return left


def is_text(file: Path) -> bool:
    return file.suffix in TEXTS or file.name in TEXTS


def weights(folder: Path) -> Iterator[Path]:
    """Checkpoints: those that are recorded, those to go on from, the others. Searches keep theirs."""
    found = sorted(folder.glob("*/checkpoint.safetensors"))
    ended = {file: (file.parent / "result.json").exists() for file in found}
    yield from (f for f in found if ended[f] and f.parent.name.endswith("seed0"))
    yield from (f for f in found if not ended[f])
    yield from (f for f in found if ended[f] and not f.parent.name.endswith("seed0"))


def mps_runs() -> bool:
    """Whether processes share the GPU by NVIDIA's multi-process service instead of taking turns; it is started here
    unless somebody's daemon runs already, which is as good."""
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps/control").exists():
        MPS.clear()
        return True
    tool = shutil.which("nvidia-cuda-mps-control")
    if tool is None:
        return False
    Path(MPS["CUDA_MPS_PIPE_DIRECTORY"]).mkdir(exist_ok=True)
    if Path(MPS["CUDA_MPS_PIPE_DIRECTORY"], "control").exists():  # of an earlier call on this machine
        return True
    started = subprocess.run([tool, "-d"], env=os.environ | MPS, timeout=20, check=False).returncode == 0
    if not started:
        MPS.clear()  # another daemon may hold the GPU: then without one of our own
    return started


def missing(parts: list[str], place: Place) -> list[str]:
    """Data that is not where it should be, so that a lease does not begin in vain."""
    from koopsim.datasets import data_folder

    data, files = data_folder(), ("cifar10", "mnist", "svhn/train_32x32.mat", "svhn/test_32x32.mat")
    wanted = {
        "table2": [data / file for file in files],
        "table3": [Path(place.at("NATURAL16", "natural16")), Path(place.at("TEXT16", "text16"))],
        "whole": [Path(place.at("UNSEEN", "unseen"))],
        "beside": [Path(place.at("PAPER_CODE", "paper")) / "sim" / "net.py"],
    }
    return [f"{part}: there is no {path}" for part in parts for path in wanted.get(part, []) if not path.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--lanes", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", help="jobs by the beginnings of their names")
    parser.add_argument("--rehearse", action="store_true", help="every job with few trials, epochs and samples")
    parser.add_argument("--plan", action="store_true", help="print the jobs and their seconds, and what is missing")
    parser.add_argument("--work", type=Path, default=Path("/tmp/koopsim-again"))
    parser.add_argument("--earlier", type=Path, help="again.tar.gz of an earlier lease: what is unfinished goes on")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # begun by `&` it is ignored, here and in every job
    place = Place(arguments.work / "again", arguments.rehearse)
    place.folder.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.earlier:
        with tarfile.open(arguments.earlier) as tar:
            tar.extractall(arguments.work, filter="data")
    jobs = [job for part in arguments.parts for job in PARTS[part](place)]
    if arguments.only:
        jobs = [job for job in jobs if job.name.startswith(tuple(arguments.only))]
    for line in missing(arguments.parts, place):
        print(f"MISSING  {line}", flush=True)
    if arguments.plan:
        print(*(f"{job.seconds:5.0f} s  at most {job.box:4.0f}  {job.name}" for job in jobs), sep="\n")
        return
    for job in jobs:
        job.seconds *= not arguments.rehearse
        job.box = job.box if not arguments.rehearse else 600
    lease = Lease(jobs, arguments)
    try:
        lease.run()
    except KeyboardInterrupt:
        lease.stop(lease.running())


if __name__ == "__main__":
    main()
