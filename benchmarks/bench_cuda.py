"""`koopsim bench` without its command line, for machines that have no tyro; rows can be measured in several calls.

    PYTHONPATH=src python benchmarks/bench_cuda.py train capture --precision bf16 --out results/h200/bench-bf16.json

A row that is measured again takes the place of the old one in --out; growth.png is drawn beside it.
"""

import argparse
import json
import traceback
from pathlib import Path

from koopsim import bench
from koopsim.runs import write_json
from koopsim.train import pick_device


def merged(old: dict, new: dict, row: str) -> dict:
    """`old` with what `new` says of this row."""
    kept = [c for c in old.get("comparisons", []) if c["row"] != row]
    curves = new["curves"] if row == bench.GROWTH else old.get("curves", [])
    skipped = {k: v for k, v in old.get("skipped", {}).items() if k != row} | new["skipped"]
    seconds = old.get("row_seconds", {}) | new["row_seconds"]
    return new | {
        "comparisons": kept + new["comparisons"], "curves": curves, "skipped": skipped, "row_seconds": seconds
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=[*bench.ROWS, bench.GROWTH])
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    found = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    for row in arguments.rows:
        try:
            findings = bench.run([row], device, arguments.quick, arguments.precision)
        except Exception:  # the next row is another matter
            traceback.print_exc()
            continue
        found = merged(found, findings.as_dict(), row)
        for c in findings.comparisons:
            ours, other = (f"{1e3 * s.timing.seconds:.4g} ms {s.name} {s.note}" for s in (c.ours, c.other))
            print(f"{row}  {c.work}: {ours} | {other} | {c.ratio:.2f}x", flush=True)
        for curve in findings.curves:
            print(f"{row}  {curve.axis} {curve.points}: {json.dumps(curve.seconds)}", flush=True)
        print(f"{row}  {findings.seconds.get(row, 0):.1f} s {findings.skipped}", flush=True)
        if arguments.out:
            write_json(arguments.out, found)
            if findings.curves:
                bench.draw_growth(findings.curves, findings.machine.name, arguments.out.with_name("growth.png"))


if __name__ == "__main__":
    main()
