"""What a lease has to do (again.py), by the budgets of results/BUDGETS.md: jobs in order of worth, a list a table.

table1   the paper's searches of both SIMs, confirmed, three seeds; trials of the DEQ, three seeds; T = 1,000, 2,000
table2   SIM (two) on SVHN over the paper's whole space, 200 trials, confirmed; V U = I; monDEQ (multi) with the
         published scale; monDEQs' other seeds and their published recipe; last, if there is time, the other SIMs'
         searches
table3   which start; the paper's search per picture, judged after 100 *steps* as its public code does; Tancik's; the
         same settings on text that the package draws
whole    SIMs with U V learnt and U V = I beside Tancik's network on other pictures; Table 3 with the latter
text     the next byte of a text, three models, three seeds
beside   the paper's code in turns with ours; sound and shape; accuracy against data; what needs no deadline

The DEQ's trials are `koopsim train --train-on train` stopped after max_t = 6 epochs of their 20, as ASHA would: the
trials of a search side by side cannot change how many solver steps their captured step has. What they chose, once for
all, is DEQ_CHOSEN (2026-11-16, results/BUDGETS.md), and is trained again with three seeds. Names are the folders that
tools/record.py --names keeps.
"""

import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koopsim.files.json import read_json

MAX_T = 6  # epochs of a trial, the paper's
AT_ONCE = 32  # trials of a search: eight of each batch size, and those of a size overlap
SHARE = 60  # percent of the chip for what would fill it
SOLVER = ("--model.forward.method", "broyden", "--model.backward.method", "broyden",
          "--model.forward.max-steps", 80, "--model.backward.max-steps", 80)  # fmt: skip
DEQ_TRIALS = ((5, 1e-3), (2, 1e-3), (5, 2e-3), (10, 2e-3))  # batch, learning rate
DEQ_CHOSEN = DEQ_TRIALS[0]  # 3.8e-6 on valid sequences, of 5.3e-6, 4.3e-6, 1.2e-5
SIMS = ("sim-single", "sim-two")
RATES, WIDTHS = ("2e-3", "4e-3"), ("0.009", "0.012", "0.016", "0.022")  # of Table 3's choice
Words = Sequence[object]


@dataclass(frozen=True)
class Place:
    """Where jobs leave their folders, where their data lies, and whether this is a rehearsal: every path, tiny."""

    folder: Path
    rehearse: bool = False

    def at(self, variable: str, otherwise: str) -> str:
        return os.environ.get(variable, otherwise)

    def read(self, name: str) -> dict[str, Any]:
        return read_json(self.folder / name / "result.json")

    def few(self, *words: object) -> tuple[object, ...]:
        """These words in a rehearsal alone."""
        return words if self.rehearse else ()


@dataclass
class Job:
    """A verb, or a script with `script`; its name is its folder. `seconds` it takes beside others, `box` at most; it
    begins `after` these have ended, is stopped after `stop` epochs, and has the device to itself if `alone`. One whose
    kernels fill the chip gets a `share` of its processors, in percent, lest small kernels of others wait for it."""

    name: str
    words: Callable[[], Words]
    seconds: float
    after: tuple[str, ...] = ()
    stop: int | None = None
    alone: bool = False
    script: bool = False
    share: int = 100
    box: float = math.inf
    status: str = "waiting"
    began: float = 0.0
    took: float = 0.0
    process: subprocess.Popen | None = field(default=None, repr=False)


def fixed(*words: object) -> Callable[[], Words]:
    return lambda: words


# ------------------------------------------------------------ Table 1


def table1(place: Place) -> list[Job]:
    few = place.few("--task.train", 20, "--task.valid", 10, "--task.test", 10)
    here, longer, longest = (10, 20, 30) if place.rehearse else (500, 1000, 2000)
    again = ("--confirm", 2, "--confirm-seeds", 2) if place.rehearse else ("--confirm", 4, "--confirm-seeds", 3)
    small = place.few("--trials", 6, "--max-t", 2, "--grace", 1, "--task.horizon", here, "--recipe.epochs", 3)
    jobs = [
        Job(f"search-copy-{kind}", fixed("tune", f"copy/{kind}", *again, "--retrain", 0, *few, *small), 150, box=330)
        for kind in SIMS
    ]
    short = (*few, *place.few("--recipe.epochs", 3))
    tried = DEQ_TRIALS[: 2 if place.rehearse else None]
    trials = []
    for number, (batch, rate) in enumerate(tried):
        words = ("train", "copy/deq", *short, *place.few("--task.horizon", here), "--train-on", "train", *SOLVER,
                 *recipe_words(batch_size=batch, learning_rate=rate), "--seed", 100 + number)  # fmt: skip
        trials.append(Job(f"trial-copy-deq-{number}", fixed(*words), 100, stop=2 if place.rehearse else MAX_T))

    def deq(horizon: int, seed: int, seconds: float) -> Job:
        batch, rate = DEQ_CHOSEN
        words = ("train", "copy/deq", *short, *SOLVER, *recipe_words(batch_size=batch, learning_rate=rate),
                 "--task.horizon", horizon, "--seed", seed)  # fmt: skip
        return Job(f"copy{'' if horizon == here else horizon}-deq-broyden-seed{seed}", fixed(*words), seconds)

    def sim(horizon: int, kind: str, seed: int, seconds: float) -> Job:
        def words() -> Words:
            return (*best_of(place, f"copy/{kind}"), *few, "--task.horizon", horizon, "--seed", seed)

        name = f"copy{'' if horizon == here else horizon}-{kind}-seed{seed}"
        return Job(name, words, seconds, (f"search-copy-{kind}",))

    jobs += [*trials, *(deq(here, seed, 150) for seed in range(3))]
    jobs += [sim(here, kind, seed, 30) for kind in SIMS for seed in range(3)]
    jobs += [sim(longer, kind, seed, 50) for kind in SIMS for seed in range(3)]
    return [*jobs, *(sim(longest, kind, 0, 90) for kind in SIMS), deq(longer, 0, 200)]


def recipe_words(**values: object) -> list[object]:
    return [word for name, value in values.items() for word in (f"--recipe.{name.replace('_', '-')}", value)]


def best_of(place: Place, preset: str) -> list[object]:
    """`koopsim train PRESET` with what its search chose."""
    run = place.read(f"search-{preset.replace('/', '-')}")["best"]["run"]
    keys = ("batch_size", "epochs", "learning_rate", "schedule", "step_size")
    words = ["train", preset, *recipe_words(**{k: run["recipe"][k] for k in keys if run["recipe"].get(k) is not None})]
    fourier = run["model"]["fourier"]
    return [*words, *(["--model.fourier.bandwidth", fourier["bandwidth"]] if fourier else [])]


# ------------------------------------------------------------ Table 2


def table2(place: Place) -> list[Job]:
    few = place.few("--task.train", 200, "--task.test", 64)
    short = (*few, *place.few("--recipe.epochs", 2))

    def row(name: str, preset: str, seed: int, seconds: float, *more: object) -> Job:
        return Job(f"{name}-seed{seed}", fixed("train", preset, "--seed", seed, *more, *short), seconds)

    def searched(preset: str, seconds: float) -> list[Job]:
        name = preset.replace("/", "-")
        again = place.few("--trials", 3, "--max-t", 2, "--grace", 1, "--search", "epochs=2")
        sure = ("--confirm", 2, "--confirm-seeds", 2) if place.rehearse else ("--confirm", 4, "--confirm-seeds", 3)
        words = ("tune", preset, *sure, "--retrain", 0, "--at-once", AT_ONCE, *few, *again)
        search = Job(f"search-{name}", fixed(*words), seconds, box=900)

        def row_of(seed: int) -> Callable[[], Words]:
            return lambda: (*best_of(place, preset), "--seed", seed, *few)

        return [search, *(Job(f"{name}-seed{s}", row_of(s), 20, (search.name,)) for s in range(3))]

    jobs = searched("svhn/sim-two", 380)
    jobs += [
        row(f"cifar10-{kind}-projector", f"cifar10/{kind}", s, 20, "--model.projector")
        for kind in SIMS for s in range(3)
    ]  # fmt: skip
    free = ("cifar10-mondeq-multi-free", "cifar10/mondeq-multi")  # the published scale of A
    jobs += [row(*free, s, 40, "--model.scale", "free") for s in range(3)]
    kinds = ("single", "multi")
    jobs += [row(f"svhn-mondeq-{k}", f"svhn/mondeq-{k}", s, 140) for s in (1, 2) for k in kinds]
    jobs += [row(f"mnist-mondeq-{k}", f"mnist/mondeq-{k}", s, 80) for s in (1, 2) for k in kinds]
    jobs.append(row("mnist-mondeq-single", "mnist/mondeq-single", 0, 80))  # what is recorded is of a changed tree
    published = {"single": (1e-3, 25), "multi": (1e-2, 10)}  # rate, epochs between drops: of their train.py
    for s in range(3):
        for k, (rate, drop) in published.items():
            own = recipe_words(epochs=40, learning_rate=rate, step_size=drop)
            jobs.append(row(f"cifar10-mondeq-{k}-published", f"cifar10/mondeq-{k}", s, 100, *own))
    others = ("cifar10/sim-two", "svhn/sim-single", "mnist/sim-two", "mnist/sim-single")
    return jobs + [job for preset in others for job in searched(preset, 350)]


# ------------------------------------------------------------ Table 3


def table3(place: Place) -> list[Job]:
    tf32 = ("--precision", "float32" if place.rehearse else "tf32")
    small = place.few("--task.size", 16)
    short = (*small, *place.few("--recipe.epochs", 4, "--task.steps-an-epoch", 5))
    folders = {"natural": place.at("NATURAL16", "natural16"), "text": place.at("TEXT16", "text16")}
    jobs, paper = [], []
    for kind, folder in folders.items():
        unseen = ("--task.pictures", "photographs" if kind == "natural" else "text", "--task.seed", 11)
        for start in ("plain", "even"):
            space = (f"learning_rate=listed {' '.join(r for r in RATES for _ in WIDTHS)}", "features=512",
                     f"bandwidth=listed {' '.join(b for _ in RATES for b in WIDTHS)}")  # fmt: skip
            name = f"choice-{kind}-{start}"
            words = ("tune", "image/sim-rff", "--trials", len(RATES) * len(WIDTHS), "--retrain", 0, *unseen,
                     "--task.count", 4, "--model.start", start, *tf32, *short, "--no-prune", "--judge-over", 4,
                     "--search", *space)  # fmt: skip
            jobs.append(Job(name, fixed(*words), 190))  # 800 epochs; 220 to 280 took 53 to 79 s

            def chosen(name: str = name, start: str = start, folder: str = folder) -> Words:
                run = place.read(name)["best"]["run"]
                own = recipe_words(learning_rate=run["recipe"]["learning_rate"])
                return ("train", "image/sim-rff", "--model.start", start, *own, "--model.fourier.bandwidth",
                        run["model"]["fourier"]["bandwidth"], "--task.pictures", folder, *tf32, *short)  # fmt: skip

            own = "" if start == "plain" else f"-{start}"
            jobs.append(Job(f"image-sim-rff{own}-{kind}16", chosen, 45, (name,)))
        peer = ("train", "image/tancik", "--task.pictures", folder, *tf32, *short)
        jobs.append(Job(f"image-tancik-{kind}16", fixed(*peer), 45))
        few = place.few("--trials", 6, "--grace", 2, "--task.count", 2)
        words = ("tune", "image/sim-rff", "--per-picture", "--task.pictures", folder, "--task.steps-an-epoch", 1, *tf32,
                 "--recipe.epochs", 100 if place.rehearse else 2000, "--max-t", 6 if place.rehearse else 100, *small,
                 "--at-once", 24, *few)  # fmt: skip
        before = tuple(job.name for job in paper)  # one after the other: each takes tens of GiB
        paper.append(Job(f"image-sim-rff-paper-{kind}16", fixed(*words), 240, before, box=600, share=SHARE))
    return jobs + drawn(tf32, short) + paper


def drawn(*more: Words) -> list[Job]:
    """text16's rows on pictures that anyone can draw: the package's text of seed 0, by the settings recorded there."""
    sim = ("image/sim-rff", *recipe_words(learning_rate=2e-3), "--model.fourier.bandwidth", 0.009)
    rest = ("--task.pictures", "text", *(word for words in more for word in words))
    return [
        Job(f"{row[0].replace('/', '-')}-text-seed{s}", fixed("train", *row, *rest, "--seed", s), 30)
        for row in (sim, ("image/tancik",)) for s in range(3)
    ]  # fmt: skip


def whole(place: Place) -> list[Job]:
    """Table 3 with U V = I: bandwidth, rate and start are chosen by valid pixels of pictures that are in no table."""
    folders = {"natural": place.at("NATURAL16", "natural16"), "text": place.at("TEXT16", "text16")}
    tf32 = ("--precision", "float32" if place.rehearse else "tf32")
    short = place.few("--task.size", 16, "--recipe.epochs", 2, "--task.steps-an-epoch", 5)
    file = place.folder / "picture-bandwidths.json"
    words = ("picture_bandwidths.py", place.at("UNSEEN", "unseen"), "--out", file)
    study = (*words, *place.few("--quick", "--precision", "float32", "--device", "cpu"))
    jobs = [Job("picture-bandwidths", fixed(*study), 160, script=True, share=SHARE, box=600)]
    for kind, folder in folders.items():

        def chosen(kind: str = kind, folder: str = folder) -> Words:
            shown = "photograph" if kind == "natural" else kind
            rows = [row for row in read_json(file)["rows"] if row["model"].startswith("SIM, U V = I")]
            best = max(rows, key=lambda row: row["valid"][shown])
            own = recipe_words(learning_rate=best["rate"])
            start = "even" if best["model"].endswith("even start") else "plain"
            return ("train", "image/sim-rff", "--model.projector", "--model.rank", 512, "--model.start", start, *own,
                    "--model.fourier.bandwidth", best["bandwidth"], "--task.pictures", folder, *tf32,
                    *short)  # fmt: skip

        jobs.append(Job(f"image-sim-rff-whole-{kind}16", chosen, 45, ("picture-bandwidths",), share=SHARE))
    return jobs


# ------------------------------------------------------------ text


def text(place: Place) -> list[Job]:
    few = place.few("--recipe.epochs", 1, "--task.windows", 40)
    names = ("sim-single", "deq", "deq-reversible")
    return [
        Job(f"text-{name}-seed{s}", fixed("train", f"text/{name}", "--seed", s, *few), 60)
        for s in range(3) for name in names
    ]  # fmt: skip


# ------------------------------------------------------------ beside the tables


def beside(place: Place) -> list[Job]:
    def script(name: str, seconds: float, *words: object, alone: bool = False) -> Job:
        out = ("--out", place.folder / f"{name}.json")
        return Job(name, fixed(*words, *out), seconds, alone=alone, script=True, share=SHARE, box=600)

    device, quick = "cpu" if place.rehearse else "cuda", place.few("--quick")
    code = place.at("PAPER_CODE", "paper")
    jobs = [script("paper-code", 60, "paper_code.py", code, "--turns", 1, "--device", device, *quick, alone=True)]
    bench = fixed("bench", "train", "inference", *place.few("--quick"))
    jobs.append(Job("bench-trained", bench, 120, alone=True))
    jobs.append(script("signals", 240, "signals.py", "--device", device, *quick))
    shares = place.few("--dataset", "digits", "--shares", 16)
    return [*jobs, script("theory-samples", 240, "theory.py", "samples", "--device", device, *shares)]


PARTS = {
    "table1": table1, "table2": table2, "table3": table3, "whole": whole, "text": text, "beside": beside,
}  # fmt: skip
