"""Tables 1 and 2 again inside a lease: what is most worth knowing first, each row kept as it ends, over by a deadline.

    python benchmarks/again.py table1 --seconds 400 --out $OUT [--lanes 10] [--scale smoke --device cpu]
    python benchmarks/again.py table1 table2 --earlier again.tar.gz ...        # go on in another lease

A job is a verb of koopsim in a process of its own. So many lanes run beside each other (small models leave most of a
GPU idle; NVIDIA's MPS is started where it is there, without it give --lanes 1), a job that cannot end in time is not
begun, and at the deadline the rest is stopped by Ctrl-C, which saves it. OUT/again.json says what became of each; the
folders are in OUT/again.tar.gz, without the searches' optimisers. Budgets were decided before (results/BUDGETS.md).

The DEQ's trials are `koopsim train --train-on train` stopped after max_t = 6 epochs of their 20, as ASHA would, and the
best loss on valid sequences is trained again with three seeds: the trials of a search side by side cannot change how
many solver steps their captured step has.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koopsim.runs import environment, write_json

MAX_T = 6  # epochs of a trial, the paper's
SOLVER = ("--model.forward.method", "broyden", "--model.backward.method", "broyden",
          "--model.forward.max-steps", 80, "--model.backward.max-steps", 80)  # fmt: skip
DEQ_TRIALS = ((5, 1e-3), (2, 1e-3), (5, 2e-3), (10, 2e-3))  # batch, learning rate
SIMS = ("sim-single", "sim-two")
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/koopsim-mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/koopsim-mps"}


@dataclass
class Job:
    """A verb: its name is its folder; `after` these jobs; `stop` after so many epochs; `seconds` it may take."""

    name: str
    words: Callable[["Lease"], Sequence[object]]
    seconds: float
    after: tuple[str, ...] = ()
    stop: int | None = None
    status: str = "waiting"
    began: float = 0.0
    took: float = 0.0
    process: subprocess.Popen | None = field(default=None, repr=False)


class Lease:
    """Jobs in lanes until a deadline."""

    def __init__(self, jobs: list[Job], arguments: argparse.Namespace):
        self.jobs, self.arguments = jobs, arguments
        self.folder = arguments.work / "again"
        self.start = time.monotonic()
        self.mps, self.lanes = arguments.device != "cpu" and mps_runs(), arguments.lanes
        self.folder.mkdir(parents=True, exist_ok=True)

    def now(self) -> float:
        return time.monotonic() - self.start

    def metrics(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def run(self) -> None:
        while any(job.status in ("waiting", "running") for job in self.jobs):
            for job in self.jobs:
                if job.process is not None:
                    self.watch(job)
            running = sum(job.status == "running" for job in self.jobs)
            for job in self.jobs:
                if running < self.lanes and job.status == "waiting" and self.ready(job):
                    running += self.begin(job)
            time.sleep(0.2)
        self.say()

    def ready(self, job: Job) -> bool:
        before = [other for other in self.jobs if other.name in job.after]
        return all(other.status not in ("waiting", "running") for other in before)

    def begin(self, job: Job) -> bool:
        folder, epochs = self.folder / job.name, len(self.metrics(job.name))
        if (folder / "result.json").exists() or (job.stop and epochs >= job.stop):  # of an earlier lease
            job.status = "done before"
            return False
        if self.now() + job.seconds > self.arguments.seconds:
            job.status = "no time left"
            return False
        begun = (folder / "config.json").exists()
        try:
            own = ("train", "--resume", folder) if begun else job.words(self)
            words = [*map(str, own), "--device", self.arguments.device, "--json"]
        except (LookupError, OSError, ValueError) as error:  # what it builds on did not come to an end
            job.status = f"cannot begin: {error}"
            return False
        job.status, job.began = "running", self.now()
        log = (self.folder / f"{job.name}.log").open("wb")
        out = [] if begun else ["--out", str(folder)]
        job.process = subprocess.Popen([sys.executable, "-m", "koopsim", *words, *out], stdout=subprocess.DEVNULL,
                                       stderr=log, env=os.environ | (MPS if self.mps else {}))  # fmt: skip
        return True

    def watch(self, job: Job) -> None:
        assert job.process is not None
        code = job.process.poll()
        late = self.now() > self.arguments.seconds
        if code is None and (late or (job.stop and len(self.metrics(job.name)) >= job.stop)):
            job.process.send_signal(signal.SIGINT)
            try:
                code = job.process.wait(20)
            except subprocess.TimeoutExpired:
                job.process.kill()
                code = job.process.wait()
            job.status = "stopped at the deadline" if late else "stopped as planned"
        elif code is not None:
            job.status = "done" if code == 0 else f"failed ({code})"
        if code is not None:
            job.took, job.process = self.now() - job.began, None
            self.say()

    def say(self) -> None:
        """What became of each so far, and all folders in one file."""
        keys = ("name", "status", "began", "took")
        rows = [{key: getattr(job, key) for key in keys} for job in self.jobs]
        for row, job in zip(rows, self.jobs, strict=True):
            file = self.folder / job.name / "result.json"
            if file.exists():
                row["test"] = json.loads(file.read_text()).get("test")
            row["metrics"] = self.metrics(job.name)[-1:]
        out = self.arguments.out
        write_json(out / "again.json", {"rows": rows, "mps": self.mps, "lanes": self.lanes, "seconds": self.now(),
                                        "environment": environment()})  # fmt: skip
        part = out / "again.part"
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            archive.add(self.folder, "again", filter=light)
        part.rename(out / "again.tar.gz")
        told = [f"{row['name']}: {row['status']}" for row in rows if row["status"] != "waiting"]
        print(f"{self.now():.0f} s", *told, sep="  ", flush=True)


def light(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Search states (hundreds of optimisers) stay behind; a run's own checkpoint is small."""
    return None if entry.name.endswith((".tmp", "state.safetensors")) or entry.size > 4 << 20 else entry


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
    started = subprocess.run([tool, "-d"], env=os.environ | MPS, timeout=20, check=False).returncode == 0
    if not started:
        MPS.clear()  # another daemon may hold the GPU: then without one of our own
    return started


# ------------------------------------------------------------ what there is to do


def table1(smoke: bool) -> list[Job]:
    """The paper's searches of both SIMs, confirmed, three seeds; trials of the DEQ, three seeds; other horizons."""
    scale = ("--scale", "smoke", "--task.train", 60, "--task.valid", 20, "--task.test", 20) if smoke else ()
    few = ("--confirm", 2, "--confirm-seeds", 2) if smoke else ("--confirm", 4, "--confirm-seeds", 3)
    jobs = [
        Job(f"search-copy-{kind}", lambda lease, kind=kind: ("tune", f"copy/{kind}", *few, "--retrain", 0, *scale), 90)
        for kind in SIMS
    ]
    trials = []
    for number, (batch, rate) in enumerate(DEQ_TRIALS[: 2 if smoke else None]):
        words = ("train", "copy/deq", *scale, "--train-on", "train", *SOLVER, "--recipe.batch-size", batch,
                 "--recipe.learning-rate", rate, "--seed", 100 + number)  # fmt: skip
        stop = 2 if smoke else MAX_T
        trials.append(Job(f"trial-copy-deq-{number}", lambda lease, words=words: words, 60, stop=stop))
    names = tuple(trial.name for trial in trials)

    def chosen(lease: Lease, seed: int, *more: object) -> Sequence[object]:
        batch, rate = DEQ_TRIALS[best_trial(lease, names)]
        return ("train", "copy/deq", *scale, *SOLVER, "--recipe.batch-size", batch, "--recipe.learning-rate", rate,
                "--seed", seed, *more)  # fmt: skip

    def sims(horizon: int, kind: str, seeds: int) -> list[Job]:
        name, long = f"copy{'' if horizon == 500 else horizon}-{kind}", ("--task.horizon", horizon)
        return [
            Job(
                f"{name}-seed{s}",
                lambda lease, s=s: best_of(lease, kind, s, *scale, *long),
                40,
                (f"search-copy-{kind}",),
            )
            for s in range(seeds)
        ]

    jobs += trials
    jobs += [Job(f"copy-deq-seed{s}", lambda lease, s=s: chosen(lease, s), 150, names) for s in range(3)]
    here, longer, longest = (20, 30, 40) if smoke else (500, 1000, 2000)
    jobs += [job for kind in SIMS for job in sims(here, kind, 3)]
    jobs += [job for kind in SIMS for job in sims(longer, kind, 3)] + [
        job for kind in SIMS for job in sims(longest, kind, 1)
    ]
    return [*jobs, Job(f"copy{longer}-deq-seed0", lambda lease: chosen(lease, 0, "--task.horizon", longer), 250, names)]


def best_trial(lease: Lease, names: Sequence[str]) -> int:
    """The trial with the least loss on valid sequences after the last epoch that all have, the unlearnt left out."""
    lines = {number: lease.metrics(name) for number, name in enumerate(names)}
    epochs = max(map(len, lines.values()))
    losses = {n: own[-1]["valid_loss"] for n, own in lines.items() if own and len(own) == epochs}
    return min(losses, key=lambda n: losses[n])


def best_of(lease: Lease, kind: str, seed: int, *more: object) -> Sequence[object]:
    """`koopsim train` with what a search chose."""
    run = json.loads((lease.folder / f"search-copy-{kind}" / "result.json").read_text())["best"]["run"]
    recipe, fourier = run["recipe"], run["model"]["fourier"]
    words = ["train", f"copy/{kind}", "--seed", seed, "--recipe.batch-size", recipe["batch_size"],
             "--recipe.epochs", recipe["epochs"], "--recipe.learning-rate", recipe["learning_rate"]]  # fmt: skip
    return [*words, *(["--model.fourier.bandwidth", fourier["bandwidth"]] if fourier else []), *more]


def table2(smoke: bool) -> list[Job]:
    """SIMs with V U = I on CIFAR-10, three seeds; monDEQ by its published recipe there; MNIST's other two seeds."""
    data, scale = ("digits", ("--scale", "smoke")) if smoke else ("cifar10", ())

    def job(name: str, preset: str, seed: int, seconds: float, *more: object) -> Job:
        return Job(f"{name}-seed{seed}", lambda lease: ("train", preset, *scale, "--seed", seed, *more), seconds)

    jobs = [
        job(f"{data}-{kind}-projector", f"{data}/{kind}", s, 35, "--model.projector")
        for kind in SIMS for s in range(3)
    ]  # fmt: skip
    published = {"single": (1e-3, 25), "multi": (1e-2, 10)}  # rate, epochs between drops: of their train.py
    for s in range(3):
        for k, (rate, drop) in published.items():
            own = ("--recipe.epochs", 2 if smoke else 40, "--recipe.learning-rate", rate, "--recipe.step-size", drop)
            jobs.append(job(f"{data}-mondeq-{k}-published", f"{data}/mondeq-{k}", s, 110, *own))
    if not smoke:
        jobs += [job(f"mnist-mondeq-{k}", f"mnist/mondeq-{k}", s, 110) for s in (1, 2) for k in ("single", "multi")]
    return jobs


def table3(smoke: bool) -> list[Job]:
    """Does the start close the gap to Tancik's network? Rate and bandwidth are chosen on pictures in no table."""
    small = ("--task.size", 32, "--recipe.epochs", 2, "--precision", "float32") if smoke else ("--precision", "tf32")
    rates, widths = ("2e-3", "4e-3"), ("0.012",) if smoke else ("0.009", "0.012", "0.016")
    space = (f"learning_rate=listed {' '.join(r for r in rates for _ in widths)}", "features=512",
             f"bandwidth=listed {' '.join(b for _ in rates for b in widths)}")  # fmt: skip
    jobs = []

    def shown(choice: str, start: str, folder: str) -> Callable[[Lease], Sequence[object]]:
        return lambda lease: (*best_picture(lease, choice, start), "--task.pictures", folder, *small)

    for kind, unseen, folder in (("natural", "photographs", NATURAL), ("text", "text", TEXT)):
        for start in ("plain", "even"):
            name = f"choice-{kind}-{start}"
            seen = ("--task.pictures", unseen, "--task.seed", 11, "--task.count", 4, "--model.start", start)
            words = ("tune", "image/sim-rff", "--trials", len(rates) * len(widths), "--grace", 20, "--retrain", 0,
                     *seen, *small, "--search", *space)  # fmt: skip
            jobs.append(Job(name, lambda lease, words=words: words, 40))
            jobs.append(Job(f"image-sim-rff-{start}-{kind}16", shown(name, start, folder), 40, (name,)))
        peer = ("train", "image/tancik", "--task.pictures", folder, *small)
        jobs.append(Job(f"image-tancik-{kind}16", lambda lease, words=peer: words, 40))
    return jobs


def best_picture(lease: Lease, name: str, start: str) -> Sequence[object]:
    """`koopsim train` with what was chosen on pictures of no table."""
    run = json.loads((lease.folder / name / "result.json").read_text())["best"]["run"]
    rate, bandwidth = run["recipe"]["learning_rate"], run["model"]["fourier"]["bandwidth"]
    return ("train", "image/sim-rff", "--model.start", start, "--recipe.learning-rate", rate,
            "--model.fourier.bandwidth", bandwidth)  # fmt: skip


NATURAL, TEXT = os.environ.get("NATURAL16", "natural16"), os.environ.get("TEXT16", "text16")  # folders of pictures
PARTS = {"table1": table1, "table2": table2, "table3": table3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--lanes", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", choices=("paper", "smoke"), default="paper")
    parser.add_argument("--work", type=Path, default=Path("/tmp/koopsim-again"))
    parser.add_argument("--earlier", type=Path, help="again.tar.gz of an earlier lease: what is unfinished goes on")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.earlier:
        with tarfile.open(arguments.earlier) as archive:
            archive.extractall(arguments.work, filter="data")
    smoke = arguments.scale == "smoke"
    jobs = [job for part in arguments.parts for job in PARTS[part](smoke)]
    for job in jobs:
        job.seconds *= not smoke
    Lease(jobs, arguments).run()


if __name__ == "__main__":
    main()
