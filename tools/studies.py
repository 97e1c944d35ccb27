"""Tables of studies, each from its file in results/: tools/readme.py writes them into pages of docs/."""

import json
import re
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from koopsim.report.tables import Table

RESULTS = Path(__file__).resolve().parent.parent / "results"
KINDS = ("photograph", "text")
SOLVERS = ("anderson", "broyden", "picard")
ASKED = {"deq-solver": 4, "deq-solver-multiscale": 2, "deq-solver-multiscale-512": 2}  # times torchdeq's speed


@cache
def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def memory() -> Table:
    """Bytes of a training step above the model, its data and its gradients."""
    found: dict[str, dict[int | None, float]] = {}
    for row in read("theory-memory")["rows"]:
        found.setdefault(row["model"], {})[row["depth"]] = row["bytes"]
    called = {"copy/sim-single": "SIM, single-tier", "copy/sim-two": "SIM, two-tier"}
    rows = [[name, size(found[model][None]), "-", "-", "-"] for model, name in called.items()]
    called = {"copy/deq": "DEQ, implicit differentiation", "copy/deq, unrolled": "the DEQ's layer, unrolled"}
    rows += [[name, "-", *(size(found[model][depth]) for depth in (10, 20, 40))] for model, name in called.items()]
    return Table("Memory", ["17,000 parameters each", "no solver", "10 steps or layers", "20", "40"], rows)


def size(count: float) -> str:
    mib = count / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB" if mib >= 100 else f"{mib:.1f} MiB"


def starts() -> Table:
    """Test accuracy by where the iteration begins, and seed by seed against zero: mean and standard error."""
    found: dict[str, list[float]] = {}
    for row in read("theory-starts")["rows"]:
        found.setdefault(row["z0"], []).append(100 * row["test"])
    called = {"zero": "zero, the paper's", "learnt": "learnt", "again": "the answer from zero, again",
              "previous": "states of the step before; tested with its own answer from zero"}  # fmt: skip
    rows = []
    for z0, name in called.items():
        ahead = [one - other for one, other in zip(found[z0], found["zero"], strict=True)]
        rows.append([name, mean_and(found[z0], statistics.stdev(found[z0]), ".1f"),
                     "-" if z0 == "zero" else mean_and(ahead, error(ahead), "+.2f")])  # fmt: skip
    return Table("Starts", ["z_0", "test accuracy %", "ahead of zero"], rows)


def mean_and(values: Sequence[float], spread: float, form: str) -> str:
    return f"{statistics.mean(values):{form}} ± {spread:{form.removeprefix('+')}}"


def error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def gap() -> Table:
    """How far the RFF-only SIMs of Table 3 are behind Tancik's network, picture by picture."""
    called = {
        "sim-rff": "bandwidth 0.009, rate 2e-3",
        "sim-rff-even": "the same, even start",
        "sim-rff-whole": "without U V, bandwidth 0.012 (natural16: rate 2e-3, even start; text16: 1e-3, PyTorch's)",
    }
    head = ["SIM, RFF only", "parameters", "natural16, dB", "better on", "text16, dB", "better on"]
    rows = []
    for model, name in called.items():
        row = [name, f"{read(f'h200/image-{model}-natural16/result')['parameters']:,}"]
        for kind in ("natural16", "text16"):
            theirs, ours = (each(read(f"h200/image-{m}-{kind}/result")) for m in ("tancik", model))
            behind = [theirs[picture] - ours[picture] for picture in theirs]
            row += [mean_and(behind, error(behind), ".2f"), f"{sum(v < 0 for v in behind)} of {len(behind)}"]
        rows.append(row)
    return Table("Gap", head, rows)


def each(result: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in result["test"].items() if name.startswith("psnr/")}


def bandwidths() -> Table:
    """Valid and test dB of pictures in no table, as Table 3 has the models and with each one's best settings."""
    called = {"SIM": ["SIM"], "SIM without U V": ["SIM, U V = I", "SIM, U V = I, even start"],
              "Tancik et al.": ["Tancik et al."]}  # fmt: skip
    fixed = {"SIM": (0.009, 2e-3), "Tancik et al.": (0.016, 1e-3)}
    rows = []
    for name, models in called.items():
        own = [row for row in read("h200/picture-bandwidths")["rows"] if row["model"] in models]
        if name in fixed:
            kept = next(row for row in own if (row["bandwidth"], row["rate"]) == fixed[name])
            rows.append([f"{name}, as in the table", *(decibels(kept, kind) for kind in KINDS)])
        best = [max(own, key=lambda row: row["valid"][kind]) for kind in KINDS]
        both = ", of both starts" if len(models) > 1 else ""
        rows.append([f"{name}, best by valid pixels{both}", *map(decibels, best, KINDS)])
    return Table("Bandwidths", ["valid and test dB (bandwidth, rate)", "photographs", "text"], rows, words=3)


def decibels(row: dict[str, Any], kind: str) -> str:
    even = ", even" if "even" in row["model"] else ""
    settings = f"{row['bandwidth']}, {row['rate']:.0e}{even}".replace("e-0", "e-")
    return f"{row['valid'][kind]:.2f}, {row['test'][kind]:.2f} ({settings})"


def torchdeq() -> Table:
    """A DEQ's training step beside torchdeq's at equal residual, captured and run by the host."""
    called = {"deq-solver": "copy memory, batch 20, float32", "deq-solver-multiscale": "multiscale, batch 128, bf16",
              "deq-solver-multiscale-512": "multiscale, batch 512, float32"}  # fmt: skip
    rows = []
    for file, name in called.items():
        found = {row["ours"]["name"]: row for row in read(f"h200/{file}")["rows"]}
        for solver in SOLVERS:
            host, captured = (found[f"koopsim, {way}{solver}"] for way in ("", "captured, "))
            short = "" if captured["ratio"] >= ASKED[file] else ", short"
            rows.append([name, solver.capitalize(), *(side(captured[who]) for who in ("other", "ours")),
                         f"{captured['ratio']:.1f}{short}", str(ASKED[file]), f"{host['ratio']:.2f}"])  # fmt: skip
            name = ""
    head = ["", "solver", "torchdeq", "captured", "times as fast", "asked", "run by the host"]
    return Table("torchdeq", head, rows, words=2)


def side(found: dict[str, Any]) -> str:
    """Milliseconds, the residuals of the answer and its gradient, and evaluations, forward + backward."""
    residuals, evaluations = found["note"].replace("residual ", "").replace("backward ", "").split("; ")
    return f"{1e3 * found['seconds']:.3g} ms, {evaluations.removesuffix(' evaluations')}, to {residuals}"


def beside_papers() -> Table:
    """`koopsim bench paper`: times as fast, a step and an answer; of several runs the middle one and the others."""
    runs = read("bench-paper-cpu")["runs"]
    machines = [(maker, threads) for maker in ("AMD", "Intel") for threads in (1, 2)]
    columns = [[run["comparisons"] for run in runs if machine_of(run) == machine] for machine in machines]
    columns.append([read("h200/bench-paper")["comparisons"]])
    works = {"copy memory": "copy memory, T = 500, batch 20", "CIFAR-10": "CIFAR-10, batch 128 (H200: 512)",
             "a picture": "a picture of 128 x 128 (H200: 512 x 512)"}  # fmt: skip
    rows = []
    for start, name in works.items():
        for way, said in (("train step", f"{name}: a step"), ("inference", "an answer")):
            found = [
                [c["ratio"] for run in own for c in run if c["work"].startswith(f"{way}, {start}")] for own in columns
            ]
            rows.append([said, *(middle(ratios) for ratios in found)])
    return Table("Paper", ["times as fast", *(f"{maker}, threads: {n}" for maker, n in machines), "H200"], rows)


def machine_of(run: dict[str, Any]) -> tuple[str, int]:
    return re.split(r"\W", run["machine"]["name"])[0], run["machine"]["threads"]


def middle(ratios: list[float]) -> str:
    first, *others = sorted(ratios, key=lambda ratio: abs(ratio - statistics.median(ratios)))
    return f"{first:.2f}" + (f" ({', '.join(f'{ratio:.2f}' for ratio in sorted(others))})" if others else "")


def bf16() -> Table:
    """`bf16_turns.py steps`: what a step takes in bfloat16; in float32 and by the paper's code, in times of that."""
    rows: dict[str, list[str]] = {}
    for row in read("bf16-turns-cpu")["steps"]:
        times = row["times bf16"]
        own = rows.setdefault(f"{row['model']}, batch {row['batch']}", [])
        others = [f"{times[side]:.2f}" if side in times else "-" for side in ("float32", "paper")]
        own += [f"{1e3 * row['seconds']['bf16']:.1f} ms", *others]
    sides = [f"{side}, threads: {n}" for n in (1, 2) for side in ("bf16", "float32", "the paper's code")]
    return Table("bf16", ["a step", *sides], [[name, *own] for name, own in rows.items()])


def stacked() -> Table:
    """`bf16_turns.py trials`: a model's step in a stack of eight against its step alone, one thread."""
    rows: dict[str, list[str]] = {}
    for row in read("bf16-turns-cpu")["trials"]:
        rows.setdefault(row["model"], []).append(f"{row['stack']:.2f}")
    return Table("stacked", ["a stack's step, in steps alone", "float32", "bf16"], [[k, *v] for k, v in rows.items()])


def pictures_on_cpu() -> Table:
    """`picture_cpu_turns.py steps`: a step in float32; as a stack, in bfloat16, by the paper's code in times of it."""
    rows: dict[str, list[str]] = {}
    for row in read("picture-cpu-turns")["steps"]:
        count, size, times = row["pictures"], row["size"], row["times float32"]
        name = f"{row['model']}, {count} picture{'s' * (count > 1)} of {size} x {size}"
        others = [f"{times[side]:.2f}" if side in times else "-" for side in ("stacked", "bf16", "paper")]
        rows.setdefault(name, []).extend([f"{1e3 * row['seconds']['float32']:.0f} ms", *others])
    sides = [f"{side}, threads: {n}" for n in (1, 2) for side in ("float32", "a stack", "bf16", "the paper's code")]
    return Table("pictures-cpu", ["a step", *sides], [[name, *own] for name, own in rows.items()])


def mondeq_on_cpu() -> Table:
    """`mondeq_turns.py`: times as fast as on whole states, and the milliseconds that a step or an answer takes."""
    called = {"step": "a step, batch 128", "answers": "128 answers", "answer": "an answer"}
    rows: dict[str, list[str]] = {}
    for row in read("mondeq-turns-cpu")["rows"]:
        name = f"{row['model']}: {called[row['what']]}"
        rows.setdefault(name, []).append(f"{row['times']:.2f} ({1e3 * row['seconds']['ours']:.0f} ms)")
    return Table("mondeq-cpu", ["times as fast", "threads: 1", "threads: 2"], [[k, *v] for k, v in rows.items()])
