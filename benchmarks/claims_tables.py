"""The tables of docs/claims.md on samples and on signals, from results/, and the figure of the signals.

    python benchmarks/claims_tables.py        between the page's marks, and docs/images/signals.png

A difference is the mean of paired differences with its standard error, over signals or over seeds; it is bold where it
is beyond Student's 95% for so many. A signal without all four networks and a seed without all its trainings are left
out, as results/BUDGETS.md has it.
"""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from scipy import stats
from signal_forms import NAMES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
MODELS = {"sim-rff": "SIM, RFF only", "sim-rff, even start": "SIM, even start", "tancik": "Tancik et al.",
          "tancik, as many parameters": "the same, as many parameters"}  # fmt: skip
PAIRS = [(sim, peer) for sim in ("sim-rff", "sim-rff, even start") for peer in ("tancik, as many parameters", "tancik")]
SIGNALS = tuple(sorted(file.name for file in (ROOT / "results").glob("signals*.json")))  # of processes side by side
SEEN = ("chord", "torus")  # looked at before the other ten
SIM, MONDEQ = "digits/sim-single", "digits/mondeq-single"


def rows(*files: str) -> list[dict]:
    return [row for file in files for row in json.loads((ROOT / "results" / file).read_text())["rows"]]


def paired(differences: Sequence[float], form: str = ".2f") -> str:
    """Mean and standard error; bold where the mean is not zero by Student's t at 95%."""
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    said = f"{mean:+{form}} ± {error:{form}}".replace("-", "\u2212")
    return f"**{said}**" if abs(mean) > stats.t.ppf(0.975, len(differences) - 1) * error else said


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    said = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in said)


def finished(found: list[dict]) -> dict[str, dict[str, dict]]:
    """Of every signal that has all networks, its row by model; sounds first."""
    signals: dict[str, dict[str, dict]] = {}
    for row in found:
        signals.setdefault(row["signal"], {})[row["model"]] = row
    whole = {name: own for name, own in signals.items() if set(own) == set(MODELS)}
    return {name: whole[name] for name in (*NAMES[::2], *NAMES[1::2]) if name in whole}


def signals_table(signals: dict[str, dict[str, dict]]) -> str:
    """Test PSNR, the best of each signal in bold."""
    lines = []
    for name, own in signals.items():
        best = max(MODELS, key=lambda model: own[model]["test_psnr"])
        shown = {model: f"{own[model]['test_psnr']:.1f}" for model in MODELS}
        lines.append([name, *(f"**{shown[m]}**" if m == best else shown[m] for m in MODELS)])
    return table(["dB", *MODELS.values()], lines)


def lead(own: dict[str, dict], sim: str, peer: str) -> float:
    return own[sim]["test_psnr"] - own[peer]["test_psnr"]


def leads_table(signals: dict[str, dict[str, dict]]) -> str:
    """What a SIM has more than Tancik et al.'s network, over kinds of signals."""
    kinds = {name: own["tancik"]["kind"] for name, own in signals.items()}
    groups = {f"{sum(k == kind for k in kinds.values())} {kind}s": [n for n in signals if kinds[n] == kind]
              for kind in ("sound", "shape")}  # fmt: skip
    groups |= {f"all {len(signals)}": list(signals)}
    groups |= {f"without {' and '.join(SEEN)}": [name for name in signals if name not in SEEN]}
    lines = [
        [f"{MODELS[sim]}, less {MODELS[peer].replace('the same', 'Tancik et al.')}",
         *(paired([lead(signals[name], sim, peer) for name in names]) for names in groups.values())]
        for sim, peer in PAIRS
    ]  # fmt: skip
    return table(["dB", *groups], lines)


def whole_seeds(found: list[dict]) -> tuple[list[int], dict[tuple[str, int, int], float]]:
    """Seeds with all their trainings, and the accuracy in percent by model, number of pictures and seed."""
    accuracy = {(r["model"], r["train"], r["seed"]): 100 * r["test"]["accuracy"] for r in found}
    runs = {(model, train) for model, train, _ in accuracy}
    seeds = sorted({seed for *_, seed in accuracy})
    return [seed for seed in seeds if all((*run, seed) in accuracy for run in runs)], accuracy


def samples_table(found: list[dict]) -> str:
    seeds, accuracy = whole_seeds(found)
    counts = sorted({train for _, train, _ in accuracy})
    lines = [[f"{title}, %"] for title in ("SIM (single)", "monDEQ (single)")] + [["SIM less monDEQ"]]
    for n in counts:
        own = {model: [accuracy[model, n, seed] for seed in seeds] for model in (SIM, MONDEQ)}
        for line, values in zip(lines, own.values(), strict=False):
            line.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
        lines[-1].append(paired([a - b for a, b in zip(own[SIM], own[MONDEQ], strict=True)]))
    return table(["pictures", *(f"{n:,}" for n in counts)], lines)


def draw(signals: dict[str, dict[str, dict]], file: Path) -> None:
    """Of every signal how far the SIMs are ahead; the bar is the standard error over the starts of both."""
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for sim, shift, look in (("sim-rff", 0.12, "o"), ("sim-rff, even start", -0.12, "s")):
        for place, own in enumerate(reversed(signals.values())):
            each = [own[model]["test_each"] for model in (sim, PAIRS[0][1])]
            error = math.sqrt(sum(statistics.variance(values) / len(values) for values in each))
            colour, label = "C0" if look == "o" else "C1", None if place else MODELS[sim]
            axis.errorbar(lead(own, sim, PAIRS[0][1]), place + shift, xerr=error, fmt=look, color=colour, label=label)
    axis.axvline(0, color="grey", lw=0.8)
    axis.set_yticks(range(len(signals)), list(reversed(signals)))
    axis.set(xlabel="test PSNR above Tancik et al.'s network with as many parameters, dB")
    axis.legend(fontsize=8)
    figure.savefig(file, dpi=90)


def tables() -> dict[str, str]:
    """What stands between <!-- NAME --> and <!-- /NAME --> on the page."""
    signals = finished(rows(*SIGNALS))
    recorded = sorted((ROOT / "results").glob("theory-samples-*.json"))
    found = {file.stem.removeprefix("theory-"): samples_table(rows(file.name)) for file in recorded}
    return found | {"signals": signals_table(signals), "signal-leads": leads_table(signals)}


def main() -> None:
    text = PAGE.read_text()
    for name, said in tables().items():
        before, rest = text.split(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{said}<!-- /{name} -->{rest.split(f'<!-- /{name} -->')[1]}"
    PAGE.write_text(text)
    draw(finished(rows(*SIGNALS)), ROOT / "docs" / "images" / "signals.png")


if __name__ == "__main__":
    main()
