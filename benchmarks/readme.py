"""Writes the README's tables from results/: `make readme`. With --check it only says whether they drifted."""

import argparse
import sys
from pathlib import Path

from speed_figures import speed_table

from koopsim.report import classification_table, collect, copy_memory_table
from koopsim.report.pictures import image_table

ROOT = Path(__file__).resolve().parent.parent


def tables() -> dict[str, str]:
    """What stands between the marks `<!-- name -->` and `<!-- /name -->`."""
    results, _ = collect([ROOT / "results" / "h200"])
    found = {"table1": copy_memory_table(results), "table2": classification_table(results)}
    found |= {"table3": image_table(results), "speed": speed_table(ROOT / "results" / "h200")}
    return {name: table.markdown() if table else "*not measured yet*" for name, table in found.items()}


def filled(text: str) -> str:
    for name, table in tables().items():
        before, rest = text.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = filled(old)
    if parser.parse_args().check:
        return int(old != new)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
