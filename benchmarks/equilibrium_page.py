"""The tables of docs/coming-from-torchdeq.md from results/deq-torchdeq.json.

python benchmarks/equilibrium_page.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, RECORDED = ROOT / "docs" / "coming-from-torchdeq.md", ROOT / "results" / "deq-torchdeq.json"
BEGIN, END = "<!-- deq-torchdeq:tables -->\n", "<!-- deq-torchdeq:end -->\n"
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


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(json.loads(RECORDED.read_text())) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
