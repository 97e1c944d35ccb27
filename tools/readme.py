"""Writes the tables of the README and of docs/ from results/: `make readme`. --check: any drift?"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from koopsim.report import classification_table, collect, copy_memory_table
from koopsim.report.kinds import Result
from koopsim.report.names import title_of, variant_of
from koopsim.report.pictures import image_table
from koopsim.report.tables import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import studies  # noqa: E402

Row = list[str]
OWN = ("best", "even start", "without U V", "searched by steps")  # rows that the paper has not; the evidence page does
# What a row is called here: the first DEQ's solves did not all converge.
CALLED = {"DEQ": "DEQ, Anderson (unconverged)"}
SEEDS = {3: "", 2: "†", 1: "\\*"}  # how the README marks a row of Table 2
CHANGED_TREE = "‡"
UNLIKE = " (theirs: one picture, with the evaluation after each step; ours: a 16th of a step of 16 pictures, without)"
# Searches that had the GPU (almost) to themselves: those of copy memory that chose today's settings shared it.
ALONE = ("../earlier/searches/copy-sim-single@da1ff01", "../earlier/searches/copy-sim-two@da1ff01",
         "searches/cifar10-sim-single")  # fmt: skip


def read(file: Path) -> dict:
    return json.loads(file.read_text()) if file.exists() else {}


def best(rows: list[dict], **wanted: object) -> list[dict]:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def in_turns(folder: Path) -> Iterator[Row]:
    """The paper's public code beside ours, of one run (benchmarks/paper_code.py): nothing else stands in this table."""
    for row in read(folder / "paper-code.json").get("rows", []):
        theirs, ours = (f"{row[side]:.3g} {row['unit']}" for side in ("theirs", "ours"))
        unlike = UNLIKE if row["work"].startswith("a picture") else ""
        what = f"{row['work']}, {row['our_precision']} against {row['their_precision']}{unlike}"
        yield [what, theirs, ours, f"{row['times']:.0f}"]


def beside_the_papers(folder: Path) -> Table | None:
    """The same in one line, for a first look."""
    found = read(folder / "paper-code.json").get("rows", [])
    named = {"CIFAR-10's size": "CIFAR-10", "a picture of 512 x 512": "a picture (of 16)"}
    head, last = [], ""
    for row in found:
        what, _, rest = row["work"].partition(", ")
        batch = [part.partition(":")[0] for part in rest.split(", ") if part.startswith("batch")]
        head.append(", ".join([named.get(what, what)][what == last :] + batch))
        last = what
    rows = [["times as fast", *(f"{row['times']:.0f}" for row in found)]]
    return Table("Speed", ["training", *head], rows, words=1) if found else None


def training(folder: Path) -> Iterator[Row]:
    """What a training step, an epoch, a whole training takes."""
    race = read(folder / "time-to-accuracy.json")
    if race:
        seconds = [row["seconds"] for row in race["rows"]]
        reached = " / ".join(f"{100 * row['accuracy']:.1f}" for row in race["rows"])
        how = "with flips, shifts and weight decay, which the paper does without"
        what = f"CIFAR-10: training to the paper's 79.4%, {how} (reached: {reached})"
        yield [what, f"{sum(seconds) / len(seconds):.2f} s", "time-to-accuracy.json"]
    process = read(folder / "time-to-accuracy-process.json")
    if process:
        seconds = " / ".join(f"{row['process_seconds']:.1f}" for row in process["rows"])
        reached = " / ".join(f"{100 * row['accuracy']:.1f}" for row in process["rows"])
        what = f"the same from the start of the process to its end, kernels in the cache (reached: {reached})"
        yield [what, f"{seconds} s", "time-to-accuracy-process.json"]
    timing = read(folder / "image-timing.json")
    for row in best(timing.get("rows", []), precision="bf16"):
        what = f"{timing['pictures']} pictures, M = {timing['M']}, {timing['steps']:,} steps"
        took = f"{row['train_seconds']:.1f} s and {row['set_up_seconds']:.1f} s before the first step"
        yield [what, took, "image-timing.json"]


def searching(folder: Path) -> Iterator[Row]:
    """What a stack carries, what a whole search takes."""
    rows = best(read(folder / "search-stack.json").get("rows", []), kind="stack")
    if rows:
        row = max(rows, key=lambda r: r["model_steps_per_second"])
        what = f"copy memory, {row['models']} SIMs in a stack, batch 1: steps of a model"
        yield [what, f"{row['model_steps_per_second']:,.0f} /s", "search-stack.json"]
    for place in ALONE:
        found = read(folder / place / "result.json")
        if found:
            what = f"the paper's search for {found['name']}: {found['trials']} trials, {found['epochs']:,} epochs"
            yield [what, f"{found['seconds'] / 60:.1f} min", f"{place}/result.json"]


def compared(c: dict, precision: str, file: str) -> Row:
    """A ratio within one run, and what both sides said of themselves."""
    notes = [f" ({side['note']})" if side["note"] else "" for side in (c["ours"], c["other"])]
    what = f"{c['work']}, {precision}: {c['ours']['name']}{notes[0]} against {c['other']['name']}{notes[1]}"
    return [what, f"{c['ratio']:.1f}", file]


def beside_others(folder: Path) -> Iterator[Row]:
    """Ratios within one run of `koopsim bench`: trained weights on both sides, and of `fuse` the model itself."""
    single = ("copy/sim-single", "cifar10/sim-single")
    wanted = {
        ("bench-trained.json", "train"): single,
        ("bench-trained.json", "inference"): single,
        ("bench-bf16.json", "fuse"): ("cifar10/sim-single, fused, captured",),
    }
    for (file, row), names in wanted.items():
        found = read(folder / file)
        for c in best(found.get("comparisons", []), row=row):
            if c["ours"]["name"] in names and (row == "train" or not c["work"].endswith("batch 1")):
                yield compared(c, found["precision"], f"{file}, of {found['environment']['commit'][:7]}")


def speed_tables(folder: Path) -> dict[str, Table | None]:
    """Beside the paper's code in one run; ours alone; beside others, each a ratio within one run."""
    parts = {
        "speed-paper": (["training", "the paper's code", "koopsim", "times as fast"], [*in_turns(folder)]),
        "speed-own": (["koopsim alone", "took", "results/h200/"], [*training(folder), *searching(folder)]),
        "speed-others": (["koopsim beside others", "times as fast", "results/h200/"], [*beside_others(folder)]),
    }
    return {name: Table("Speed", head, rows) if rows else None for name, (head, rows) in parts.items()}


def latency_table(file: Path) -> Table | None:
    """`koopsim bench deploy`: milliseconds of an answer, and how many times `deploy`'s that is."""
    rows = []
    for c in read(file).get("comparisons", []):
        if c["row"] == "deploy":
            name, work = c["ours"]["name"].removesuffix(", deployed"), c["work"].removeprefix("an answer, ")
            ours, theirs = (1e3 * c[side]["seconds"] for side in ("ours", "other"))
            way = c["other"]["name"].removeprefix(f"{name}, ")
            way = "the model itself" if way == name else way
            figures = [
                f"{v:,.0f}" if v >= 100 else f"{v:.2g}" if v < 1 else f"{v:.3g}" for v in (ours, theirs, c["ratio"])
            ]
            rows.append([work, name, f"{figures[0]} ms", way, f"{figures[1]} ms", figures[2]])
    head = ["an answer", "model", "deployed", "beside", "takes", "times"]
    return Table("Latency", head, rows, words=4) if rows else None


def called(table: Table | None) -> Table | None:
    """The models by the names of these pages."""
    if table is None:
        return None
    at = list(table.head).index("model")
    names = [CALLED.get(row[at], row[at]) for row in table.rows]
    rows = [[*row[:at], name, *row[at + 1 :]] for name, row in zip(names, table.rows, strict=True)]
    return replace(table, rows=rows)


def marked(table: Table | None, results: Sequence[Result], column: str) -> Table | None:
    """Figures of rows that were recorded from a tree with uncommitted changes, with a mark."""
    if table is None:
        return None
    clean = re.compile("[0-9a-f]{7,40}")
    changed = [r for r in results if not clean.fullmatch(str(r["environment"].get("commit")))]
    models = {(title_of(r["name"]) + variant_of(r), r.get("set")) for r in changed}
    model, at = (list(table.head).index(name) for name in ("model", column))

    def row_of(row: Sequence[str]) -> Row:
        mine = (row[model], row[0] if model else None) in models
        return [cell + CHANGED_TREE * (mine and i == at) for i, cell in enumerate(row)]

    return replace(table, rows=[row_of(row) for row in table.rows])


def brief(table: Table | None, columns: list[str], rows: Callable[[Row], bool] = lambda row: True) -> Table | None:
    """Some columns of some rows, without the note: what fits a first look."""
    if table is None:
        return None
    at = [list(table.head).index(column) for column in columns]
    kept = [[row[i] for i in at] for row in table.rows if rows(list(row))]
    return Table(table.title, columns, kept, words=min(table.words, len(columns)))


def classified(table: Table | None) -> Table | None:
    """Table 2 with a row a data set: monDEQs, SIMs, the paper's figure in brackets, rows of one or two seeds marked."""
    if table is None:
        return None
    found: dict[str, dict[str, Row]] = {}
    for row in table.rows:
        found.setdefault(row[0], {})[row[1]] = list(row)
    accuracy, paper = (list(table.head).index(name) for name in ("accuracy %", "paper"))

    def figure(row: Row | None) -> str:
        if row is None:
            return "-"
        mean, published = row[accuracy].split(" ")[0], row[paper].split(" ")[0]
        n = re.search(r"\(n=(\d+)\)", row[accuracy])
        mean += SEEDS[int(n[1]) if n else 1]
        return f"{mean} ({published})" if published != "-" else mean

    models = ["monDEQ (single)", "monDEQ (multi)", "SIM (single)", "SIM (two)", "SIM (single) best"]
    rows = [[data, *(figure(of.get(model)) for model in models)] for data, of in found.items()]
    return Table(table.title, ["test accuracy %", *models], rows)


def tables() -> dict[Path, dict[str, str]]:
    """What stands between the marks `<!-- name -->` and `<!-- /name -->` of each file."""
    results, _ = collect([ROOT / "results" / "h200", ROOT / "results" / "cpu"])
    one, two, three = copy_memory_table(results), classification_table(results), image_table(results)
    whole = {"table1": called(one), "table2": two, "table3": called(three)}
    whole |= speed_tables(ROOT / "results" / "h200") | {"gap": studies.gap(), "bandwidths": studies.bandwidths()}
    drawn = {row[1] for row in three.rows if row[0] == "text"} if three else set()  # on pictures that others have
    first = {
        "brief1": brief(
            called(marked(one, results, "test loss")), ["model", "test loss", "paper"], lambda row: row[1] == "500"
        ),
        "brief2": classified(two),
        "brief4": beside_the_papers(ROOT / "results" / "h200"),
        "brief3": brief(
            called(marked(three, results, "PSNR dB")),
            ["pictures", "model", "PSNR dB", "paper"],
            lambda row: not row[1].endswith(OWN) and not (row[0] == "text16" and row[1] in drawn),
        ),
    }
    answers = {
        "latency-h200": latency_table(ROOT / "results" / "h200" / "bench-deploy.json"),
        "latency-cpu": latency_table(ROOT / "results" / "bench-deploy-cpu.json"),
    }
    claims = {"memory": studies.memory(), "starts": studies.starts()}
    peers = {"torchdeq": studies.torchdeq(), "beside-papers": studies.beside_papers()}
    peers |= {"bf16": studies.bf16(), "stacked": studies.stacked(), "pictures-cpu": studies.pictures_on_cpu()}
    peers |= {"mondeq-cpu": studies.mondeq_on_cpu()}
    places = {"README.md": first, "docs/evidence.md": whole, "docs/latency.md": answers}
    places |= {"docs/claims.md": claims, "docs/speed.md": peers}
    return {
        ROOT / file: {name: table.markdown() if table else "*not measured yet*" for name, table in found.items()}
        for file, found in places.items()
    }


def filled(text: str, found: dict[str, str]) -> str:
    for name, table in found.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check, drifted = parser.parse_args().check, 0
    for file, found in tables().items():
        old = file.read_text()
        new = filled(old, found)
        drifted |= int(old != new)
        if not check:
            file.write_text(new)
    return drifted if check else 0


if __name__ == "__main__":
    sys.exit(main())
