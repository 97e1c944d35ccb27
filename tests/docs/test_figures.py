"""Figures in the sentences of docs/ and the README are those of the files in results/; tables are written from them.

Each function says, as the page does, what a file says: a sentence that drifts from its file is not found on its page.
"""

import importlib.util
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("evidence", "evidence-history", "claims", "speed", "images-as-networks")
EVIDENCE, HISTORY, CLAIMS, SPEED, PICTURES = (f"docs/{name}.md" for name in PAGES)
README = "README.md"
Said = Iterator[tuple[str, str]]  # a page, and what stands on it


@cache
def read(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


@cache
def words(page: str) -> str:
    return " ".join((ROOT / page).read_text().replace("**", "").split())


def mean_and_error(values: list[float], form: str = ".2f") -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):{form}} ± {error:{form}}"


def power(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}e}".replace("e-0", "e-")


def copy_memory() -> Said:
    searches = [read(f"h200/searches/copy-sim-{kind}/result") for kind in ("single", "two")]
    single, two = (search["ended"]["pruned"] for search in searches)
    yield EVIDENCE, f"100 trials with ASHA, {single} of them pruned"
    yield EVIDENCE, f"100 trials, {two} of them pruned"
    yield HISTORY, " and ".join(power(search["test"]["loss"], 2) for search in searches)
    deq = [read(f"h200/copy-deq-broyden-seed{seed}/result") for seed in range(3)]
    for key in ("unconverged", "backward_unconverged"):
        a, b, c = (f"{100 * statistics.mean(epoch[key] for epoch in run['metrics']):.2f}" for run in deq)
        yield EVIDENCE, f"{a}, {b} and {c}%"
    first = read("h200/copy-deq/result")
    shares = [epoch["unconverged"] for epoch in first["metrics"]]
    trained, tested = (f"{100 * share:.0f}%" for share in (statistics.mean(shares), first["test"]["unconverged"]))
    yield EVIDENCE, f"{trained} of its training and {tested} of its test solves"
    last = [f"{100 * share:.0f}" for share in (min(shares[-6:]), max(shares[-6:]))]
    yield EVIDENCE, f"{last[0]} to {last[1]}% of those of its last six epochs"
    yield CLAIMS, f"{last[0]} to {last[1]}% of its solves of epochs 15 to 20 did not converge"
    yield CLAIMS, f"of epochs 2 to 14 up to {100 * max(shares[1:14]):.1f}%"
    (again,) = {power(row["loss"]) for row in read("copy-deq-fixed-point")["rows"]}
    yield EVIDENCE, f"its weights give {again} on {read('copy-deq-fixed-point')['sequences']} test sequences"
    third = ("copy-deq-seed0", "copy-deq-seed2", "copy1000-deq-seed0")
    a, b, c = (power(read(f"earlier/{name}@40404d2/result")["test"]["loss"]) for name in third)
    yield EVIDENCE, f"at {a} and {b}, and at T = 1,000 at {c}"
    yield HISTORY, f"ended at {a} and {b}, one at T = 1,000 at {c}"


def images() -> Said:
    def accuracy(row: str) -> str:
        values = [100 * read(f"h200/cifar10-{row}-seed{seed}/result")["test"]["accuracy"] for seed in range(3)]
        return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"

    for tier, said in (("single", "single-tier"), ("two", "two-tier")):
        yield EVIDENCE, f"{accuracy(f'sim-{tier}-projector')} against {accuracy(f'sim-{tier}')} {said}"
    yield EVIDENCE, f"{accuracy('mondeq-multi-free')} with it, {accuracy('mondeq-multi')} with ours"
    published = 100 * read("h200/cifar10-mondeq-single-published-seed0/result")["test"]["accuracy"]
    yield EVIDENCE, f"comes to {published:.2f} (one seed"
    others = [read(f"h200/searches/cifar10-sim-single-{kind}/result")["test_over_seeds"] for kind in ("early", "wide")]
    yield EVIDENCE, " and ".join(f"{100 * found['mean']:.2f} ± {100 * found['std']:.2f}" for found in others)
    whole, tiers = read("mondeq-convergence")["rows"][:2]
    exact, loose = ([row[key] for key in ("logits_error", "gradient_error")] for row in (tiers, whole))
    yield EVIDENCE, f"logits are then {100 * exact[0]:.1f}% and gradients {100 * exact[1]:.0f}% off"
    yield EVIDENCE, f"against {100 * loose[0]:.1f}% and {100 * loose[1]:.0f}%"


def pictures() -> Said:
    kinds = ("natural16", "text16")
    of = {m: [read(f"h200/image-{m}-{kind}/result") for kind in kinds] for m in ("sim-rff", "sim-rff-whole")}
    for number, said in enumerate(("{} dB better on natural16", "{} worse on text16")):
        plain, whole = (of[model][number]["test"] for model in of)
        ahead = [whole[name] - plain[name] for name in plain if name.startswith("psnr/")]
        yield EVIDENCE, said.format(mean_and_error([-v for v in ahead] if number else ahead))
    before = [read(f"earlier/image-{m}-{k}@00e904b")["test"]["psnr"] for m in ("sim-rff", "tancik") for k in kinds]
    yield HISTORY, "stood at {:.2f} and {:.2f} dB, Tancik's at {:.2f} and {:.2f}".format(*before)
    cosine = [f"{read(f'image-sim-rff-{kind}-cosine')['test']['psnr']:.2f}" for kind in kinds]
    yield HISTORY, f"come to {cosine[0]} and {cosine[1]} dB"
    part = read("h200/searches/image-sim-rff-paper-text16-part")["rows"]
    own = [f"psnr/{row['picture']}" for row in part]
    rows = [statistics.mean(read(f"h200/image-{m}-text16/result")["test"][name] for name in own)
            for m in ("sim-rff", "sim-rff-even", "tancik")]  # fmt: skip
    chosen = statistics.mean(row["test_psnr"] for row in part)
    said = "comes to {:.2f} dB, the row's settings to {:.2f}, an even start to {:.2f} and Tancik's network to {:.2f}"
    yield EVIDENCE, said.format(chosen, *rows)
    last = [f"{epoch['valid_psnr']:.1f}" for epoch in read("h200/image-sim-rff-even-natural16/result")["metrics"][-4:]]
    yield EVIDENCE, f"{', '.join(last)} after steps 1,700 to 2,000"


def gap_step_by_step() -> Said:
    of = {row["variant"]: row for row in read("h200/picture-steps")["rows"]}

    def ahead(one: str, other: str, kind: str) -> str:
        values = [of[name][f"{kind}, test of each"] for name in (one, other)]
        return mean_and_error([a - b for a, b in zip(*values, strict=True)])

    sim, plain, sigmoid, tancik = "SIM (the paper's)", "U V = I", "U V = I, sigmoid", "Tancik et al."
    third = "U V = I, amplitude 1, Glorot's start, sigmoid"
    photographs, text = (ahead(tancik, sim, kind) for kind in ("photographs", "text"))
    yield EVIDENCE, f"ahead of the SIM by {photographs} dB on photographs and by {text} on text"
    yield EVIDENCE, f"Leaving out U V brings text {ahead(plain, sim, 'text')}"
    yield EVIDENCE, f"A sigmoid then brings {ahead(sigmoid, plain, 'text')}"
    photographs, text = (ahead(tancik, third, kind) for kind in ("photographs", "text"))
    yield EVIDENCE, f"{text} behind it on text, {photographs} on photographs"


def studies() -> Said:
    """Rows of the tables of docs/images-as-networks.md, whatever is bold in them."""
    rows = {(r["model"], r["bandwidth"], r["rate"]): r for r in read("h200/picture-bandwidths")["rows"]}
    models = list(dict.fromkeys(model for model, *_ in rows))
    for kind, bandwidth, rate in itertools.product(("photograph", "text"), (0.009, 0.012, 0.016), (1e-3, 2e-3)):
        found = [rows.get((model, bandwidth, rate)) for model in models]
        cells = [f"{row['valid'][kind]:.2f}, {row['test'][kind]:.2f}" if row else "not run" for row in found]
        yield PICTURES, f"| {bandwidth}, {rate:.0e} | {' | '.join(cells)} |".replace("e-0", "e-")
    for row in read("h200/picture-steps")["rows"]:
        a, b = ("{valid:.2f}, {test:.2f}".format(**row["psnr"][kind]) for kind in ("photographs", "text"))
        yield PICTURES, f"3 | {a} | {b} |" if "U V" in row["variant"] else f"| {a} | {b} |"
    for row in read("picture-factors")["rows"]:
        yield PICTURES, f"| {row['photographs']['test']:.2f} | {row['text']['test']:.2f} |"
    for row in read("picture-gap")["rows"]:
        a, b = (row["psnr"][kind] for kind in ("photographs", "text"))
        train = f"{a['train']:.1f}, {b['train']:.1f}"
        yield PICTURES, f"| {a['test']:.2f} | {b['test']:.2f} | {train} |"
    plain, even, tancik, layer = ("{photographs:.2f} and {text:.2f}".format(**row["psnr"])
                                  for row in read("picture-gap-other")["rows"])  # fmt: skip
    yield PICTURES, f"{plain} dB with PyTorch's start, {even} with an even one, {tancik} for Tancik's network, {layer}"


def starts() -> Said:
    def tests(file: str, z0: str, key: str = "test") -> list[float]:
        return [100 * row[key] for row in read(file)["rows"] if row["z0"] == z0]

    again, zero = tests("theory-starts", "previous", "test_from_zero"), tests("theory-starts", "zero")
    behind = mean_and_error([b - a for a, b in zip(again, zero, strict=True)])
    yield CLAIMS, f"comes to {statistics.mean(again):.1f} ± {statistics.stdev(again):.1f}, {behind} behind"
    early = [tests("earlier/theory-starts@5699c3e", z0) for z0 in ("learnt", "zero")]
    yield CLAIMS, f"looked better, by {mean_and_error([a - b for a, b in zip(*early, strict=True)])}"


def speed() -> Said:
    cell = {row["batch"]: row for row in read("h200/cell")["rows"] if row["work"] == "captured step"}
    was, now = ([1e3 * cell[batch][side]["seconds"] for batch in (1, 20)] for side in ("twin", "kernels"))
    ours = [row["ours"] for row in read("h200/paper-code")["rows"] if row["work"].startswith("copy memory")]
    yield EVIDENCE, f"from {was[0]:.2f} to {now[0]:.2f} ms at batch 1 and from {was[1]:.1f} to {now[1]:.2f} ms at"
    yield EVIDENCE, f"SIM (single)'s to {ours[0]:.3f} and {ours[1]:.3f} ms"
    ratios = [f"{a / b:.0f}" for a, b in zip(now, ours, strict=True)]
    yield EVIDENCE, f"Today's ratios are about {ratios[0]} and {ratios[1]}"
    times = [row["times"] for row in read("h200/paper-code")["rows"]]
    for page in (EVIDENCE, SPEED):
        yield page, f"{min(times):.0f} to {max(times):.0f} times as fast"
    steps = [c for c in read("h200/bench-paper")["comparisons"] if c["work"].startswith("train step")]
    copy, cifar, picture = (c["ratio"] for c in steps)
    yield EVIDENCE, f"{cifar:.2f} times as fast on CIFAR-10, {copy:.0f} on copy memory (batch 20) and {picture:.1f} on"
    yield README, f"{cifar:.2f} (CIFAR-10) and {picture:.1f} (a picture)"
    left = {row["solver"]: row["all_over_left_out"] for row in read("h200/watched")["rows"]}
    yield SPEED, f"{left['picard']:.2f} (Picard), {left['broyden']:.2f} (Broyden) and {left['anderson']:.2f} (Anderson)"
    whole = {row["batch"]: f"{row['cudnn_over_ours']:.2f}" for row in read("h200/conv")["steps"]}
    yield SPEED, f"The whole step is {whole[512]} (batch 512), {whole[128]} (128) and {whole[64]} times (64) as fast"
    large = [row["us"] for row in read("h200/conv")["products"] if (row["batch"], row["size"]) == (512, 32)]
    a, b, c = (f"{us['ours']:.0f} against {us['cuDNN 48']:.0f}" for us in large)
    yield SPEED, f"forward {a}, of the input {b}, of the weights {c}"


def on_a_cpu() -> Said:
    turns = [row["times ours"] for row in read("memory-turns-cpu")["rows"]]
    one, two = (sorted(row["ours, giving back"] for row in turns[at::2]) for at in (0, 1))
    yield SPEED, f"{one[0]:.2f} and {one[1]:.2f} times as long with one thread"
    a, c, b, d = (f"{turn:.2f}" for turn in (row["the paper's code, keeping"] for row in turns))
    yield SPEED, f"{a} and {b} times our step with one thread, {c} and {d} with two"
    a, c, b, d = (f"{turn:.2f}" for turn in (row["the paper's code"] for row in turns))
    yield SPEED, f"as it comes, {a} and {b}, {c} and {d} in those turns"
    yield SPEED, f"{two[1]:.2f} and {two[0]:.2f} with two"
    trained = {row["threads"]: row["seconds"] for row in read("subnormal-turns-cpu")["rows"]
               if (row["model"], row["weights"]) == ("copy/sim-single", "trained")}  # fmt: skip
    a, b = (f"{1e3 * trained[n]['zero']:.0f}" for n in (1, 2))
    c, d = (f"{1e3 * trained[n]['as they are']:.0f}" for n in (1, 2))
    yield SPEED, f"a step takes {a} ms instead of {c} with one thread and {b} instead of {d} with two"


PARTS: list[Callable[[], Said]] = [copy_memory, images, pictures, gap_step_by_step, studies, starts, speed, on_a_cpu]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_sentences_say_what_the_files_say(part):
    missing = [(page, said) for page, said in part() if re.sub(r"\s+", " ", said) not in words(page)]
    assert not missing


def script(name: str) -> Any:
    """One of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_that_scripts_write_have_not_drifted():
    epochs, size = script("copy_curves"), script("picture_bytes_page")
    assert epochs.table(epochs.curves()).join(epochs.MARKS) in epochs.PAGE.read_text(), "copy_curves.py"
    assert size.BEGIN + size.table(size.recorded()) + size.END in size.PAGE.read_text(), "picture_bytes_page.py"
