"""The tables of docs/coming-from-torchdeq.md from results/deq-torchdeq.json and deq-evaluations.json.

python benchmarks/equilibrium_page.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, RECORDED = ROOT / "docs" / "coming-from-torchdeq.md", ROOT / "results" / "deq-torchdeq.json"
BEGIN, END = "<!-- deq-torchdeq:tables -->\n", "<!-- deq-torchdeq:end -->\n"
COUNTED = ROOT / "results" / "deq-evaluations.json"
BEGIN_COUNTS, END_COUNTS = "<!-- deq-evaluations:table -->\n", "<!-- deq-evaluations:end -->\n"
WORKS = {
    ("copy", "float32"): "copy memory",
    ("own", "float32"): "own cell",
    ("multiscale", "float32"): "multiscale",
    ("multiscale", "bf16"): "multiscale, bf16",
}
SAID = {
    "torchdeq, as it comes": "torchdeq, as it comes (one-step gradient)",
    "torchdeq, ift=True": "torchdeq, `ift=True` (its backward tolerance is 1e-6, absolute)",
    "koopsim, as it comes": "koopsim, as it comes (tolerance 1e-3 both ways)",
    "torchdeq, ift=True, tol=1e-6": "torchdeq, `ift=True`, 1e-6 both ways",
    "koopsim, tol=1e-6": "koopsim, `tol=1e-6`",
}


def tables(measured: dict) -> str:
    """Markdown: gradient errors, and times with each solver, wall clock and processor."""
    errors = {row["what"]: row["gradient_error"] for row in measured["gradients"]}
    lines = ["| | gradient error |", "|---|---|"]
    lines += [f"| {said} | {errors[what]:.1e} |" for what, said in SAID.items()]
    lines += ["", "| solver | koopsim, ms | torchdeq, ms | ratio | of processor time |", "|---|---|---|---|---|"]
    for row in measured["times"]:
        own, other = row["ours_milliseconds"], row["theirs_milliseconds"]
        busy = f"{row['processor_ratio']:.2f}x" if "processor_ratio" in row else "not measured"
        lines.append(f"| {row['solver']} | {own:.1f} | {other:.1f} | {row['ratio']:.2f}x | {busy} |")
    where = measured["environment"]
    lines += ["", f"Measured at {where['commit']} on one core of an {where['cpu']}, {where['date'][:10]}."]
    return "\n".join(lines) + "\n"


def counts(measured: dict) -> str:
    """Markdown: evaluations, residuals and gradient errors of both, both to the same residual; then bf16 to 1e-3."""
    rows = {(row["work"], row["precision"], row["solver"], row["side"]): row for row in measured["rows"]}
    head = "evaluations | residuals | gradient error"
    lines = [f"| | torchdeq: {head} | koopsim: {head} |", "|---|---|---|---|---|---|---|"]
    solvers = list(dict.fromkeys(row["solver"] for row in measured["rows"]))
    for (work, precision), said in WORKS.items():
        for solver in solvers:
            both = [_counted(rows[work, precision, solver, side]) for side in ("torchdeq", "koopsim")]
            lines.append(f"| {said}, {solver} | {both[0]} | {both[1]} |")
    for solver in solvers:
        sides = ("torchdeq, to 0.001", "koopsim, each part, to 0.001")
        both = [_counted(rows["multiscale", "bf16", solver, side]) for side in sides]
        lines.append(f"| the same to 1e-3, as before, {solver} | {both[0]} | {both[1]} |")
    return "\n".join(lines) + "\n"


def _counted(row: dict) -> str:
    evaluations, residuals = (
        [row[f"{way}_{what}"] for way in ("forward", "backward")] for what in ("evaluations", "residual")
    )
    return f"{evaluations[0]} + {evaluations[1]} | {residuals[0]:.1e}, {residuals[1]:.1e} | {row['gradient_error']:.1e}"


def main() -> None:
    page = PAGE.read_text()
    for begin, end, table, file in ((BEGIN, END, tables, RECORDED), (BEGIN_COUNTS, END_COUNTS, counts, COUNTED)):
        before, _, rest = page.partition(begin)
        page = before + begin + table(json.loads(file.read_text())) + end + rest.partition(end)[2]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
