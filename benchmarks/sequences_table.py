"""The table of docs/sequences.md from results/sequences.json, and its figure from the page's own run.

    python benchmarks/sequences_table.py            writes the table into the page
    python benchmarks/sequences_table.py --figure   runs the page's first part and draws docs/images/sequences.png
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sequences.md"
MARK = "<!-- sequences:table -->\n"
NAMES = {"sim-single": "SIM (single)", "sim-two": "SIM (two)", "gru": "GRU", "deq": "DEQ"}


def table(summary: dict) -> str:
    """Markdown: a row a model, a column a data set; the best of each in bold."""
    data = list(summary)
    keys = {d: "accuracy" if d == "gestures" else "rmse" for d in data}
    rows = list(dict.fromkeys(name for d in data for name in summary[d]))
    means = {d: {n: summary[d][n][keys[d]][0] for n in summary[d]} for d in data}
    best = {d: (max if keys[d] == "accuracy" else min)(means[d], key=means[d].__getitem__) for d in data}
    lines = ["| | " + " | ".join(f"{d}, {'right' if keys[d] == 'accuracy' else 'RMSE'}" for d in data) + " |"]
    lines.append("|---|" + "---|" * len(data))
    for name in rows:
        cells = []
        for d in data:
            if name not in summary[d]:
                cells.append("")
                continue
            mean, spread = summary[d][name][keys[d]]
            text = f"{mean:.1%} ± {spread:.1%}" if keys[d] == "accuracy" else f"{mean:.3f} ± {spread:.3f}"
            cells.append(f"**{text}**" if best[d] == name else text)
        lines.append(f"| {NAMES.get(name, name)} | " + " | ".join(cells) + " |")
    covered = []
    for d in data:
        if "coverage" in summary[d].get("sim-single", {}):
            covered.append(f"{d} {summary[d]['sim-single']['coverage'][0]:.1%}")
    said = f"The intervals of 90% of the SIM (single) held, in the last part: {', '.join(covered)}."
    return "\n".join([*lines, "", said, ""])


def figure() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]
    commands = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S)[0].splitlines()[:2]
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)
        exec(code, {})
        for command in commands:
            command = command.replace("--recipe.epochs 4", "--recipe.epochs 12")
            subprocess.run([sys.executable, "-m", *command.split()], check=True)
        os.chdir(here)
        shutil.copy(Path(folder) / "forecast" / "forecast.png", ROOT / "docs" / "images" / "sequences.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", action="store_true")
    if parser.parse_args().figure:
        return figure()
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(head + MARK + table(json.loads((ROOT / "results" / "sequences.json").read_text())["summary"]))
    return None


if __name__ == "__main__":
    main()
