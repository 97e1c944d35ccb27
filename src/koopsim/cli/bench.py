"""koopsim bench: how fast, beside peers and beside what the machine could do at best."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.terminal import show_table

MIB = 2**20
SIDE_BY_SIDE = "Side by side: times faster = the other's median / ours"
LIMIT = "The limit: a training step beside its floor, max(flops / peak, bytes / bandwidth)"


@dataclass(frozen=True)
class Arguments:
    """Measure speed side by side: every comparison a ratio in one run, every training step beside its floor.

    Rows: train, capture, inference, fuse, deploy, stack, pictures, solver, edmd, paper, growth; all unless named. The
    paper's code is found by KOOPSIM_PAPER_CODE, a folder that has sim/net.py.
    """

    rows: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[ROW ...]")] = ()
    """Which rows."""
    quick: bool = False
    """Small sizes: a minute or so on two cores."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of all models alike."""
    out: Path | None = None
    """Write bench.json and growth.png into this folder; rows that an earlier call measured there are kept."""
    overwrite: bool = False
    """Also replace files of the same names that koopsim did not write."""
    json: bool = False
    """Print the findings as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "bench")
    from koopsim import bench
    from koopsim.bench.result import WRITTEN
    from koopsim.engine.drive import pick_device
    from koopsim.files import folders
    from koopsim.files.json import json_text
    from koopsim.files.shapes import require_shape
    from koopsim.runs import read_run_json, write_json

    device = pick_device(arguments.device)
    file, before, said = (arguments.out or Path()) / "bench.json", None, set()

    def listen(row: str, findings: bench.BenchFindings) -> None:
        """Say which row begins; write down what is found, so that a row that is stopped is not lost."""
        if row not in said:
            said.add(row)
            print(f"koopsim bench: {row}", file=sys.stderr, flush=True)
        if arguments.out is not None:
            found = findings.as_dict()
            write_json(file, found if before is None else bench.merged(before, found))

    with contextlib.ExitStack() as stack:
        if arguments.out is not None:
            stack.enter_context(folders.held(arguments.out))
            folders.claim(arguments.out, "bench", ("bench.json", "growth.png"), arguments.overwrite)
            if file.exists():
                before = read_run_json(file)
                require_shape(before, WRITTEN, file, "what koopsim bench writes")
        findings = bench.run(arguments.rows, device, arguments.quick, arguments.precision, listen)
        for row in said:
            listen(row, findings)
        if arguments.out is not None and findings.curves:
            bench.draw_growth(findings.curves, findings.machine.name, arguments.out / "growth.png")
    if arguments.json:
        print(json_text(findings.as_dict()))
        return 0
    show_findings(findings)
    if arguments.out is not None:
        print(f"written to {arguments.out}/")
    return 0


def show_findings(findings) -> None:
    """The comparisons, the floors and the curves as tables."""
    from rich.console import Console

    console = Console()
    machine = findings.machine
    console.print(
        f"{machine.name}, {findings.precision}; limits ({machine.source}): "
        f"{machine.flops[findings.precision] / 1e12:.3g} TFLOP/s, {machine.bandwidth / 1e9:,.0f} GB/s",
        highlight=False,
    )
    if findings.comparisons:
        show_table(SIDE_BY_SIDE, *comparison_rows(findings.comparisons), words=3)
    floors = floor_rows(findings.comparisons)
    if floors[1]:
        show_table(LIMIT, *floors, words=2)
    for curve in findings.curves:
        show_table(f"Growth with {curve.axis}: {curve.what}, in ms", *curve_rows(curve))
    for what, why in findings.skipped.items():
        console.print(f"left out {what}: {why}", highlight=False, markup=False)


def comparison_rows(comparisons) -> tuple[list[str], list[list[str]]]:
    """Ours, the other, and how many times longer the other takes; memory last, where it was counted."""
    memory = any(c.ours.timing.peak_bytes is not None for c in comparisons)
    head = ["work", "ours", "against", "faster", "ms", "other's ms", *(("MiB", "other's MiB") if memory else ())]
    rows, last = [], None
    for c in comparisons:
        sides = [side.name + (f"\n{side.note}" if side.note else "") for side in (c.ours, c.other)]
        times = [f"{1e3 * side.timing.seconds:.3g}" for side in (c.ours, c.other)]
        peaks = [f"{(side.timing.peak_bytes or 0) / MIB:,.0f}" for side in (c.ours, c.other)] if memory else []
        rows.append(["" if c.work == last else c.work, *sides, f"{c.ratio:.2f}x", *times, *peaks])
        last = c.work
    return head, rows


def floor_rows(comparisons) -> tuple[list[str], list[list[str]]]:
    """Each training step beside the least it could take."""
    rows, seen = [], set()
    for c in comparisons:
        for side in (c.ours, c.other):
            if side.floor is not None and (c.work, side.name) not in seen:
                seen.add((c.work, side.name))
                numbers = [f"{1e3 * s:.3g}" for s in (side.timing.seconds, side.floor.arithmetic, side.floor.memory)]
                rows.append([c.work, side.name, *numbers, f"{side.above_floor:.3g}x"])
    return ["work", "step", "ms", "by arithmetic", "by bytes", "above floor"], rows


def curve_rows(curve) -> tuple[list[str], list[list[str]]]:
    """Milliseconds along the axis."""
    from koopsim.bench.growth import exponent

    rows = []
    for name, seconds in curve.seconds.items():
        power = exponent(curve.points, seconds)
        ends = "-" if power is None else f"{curve.axis}^{power:.1f}"
        rows.append([name, *("-" if s is None else f"{1e3 * s:.3g}" for s in seconds), ends])
    if curve.floors:
        rows.append(["floor", *(f"{1e3 * s:.3g}" for s in curve.floors), ""])
    return [curve.axis, *(f"{point:,}" for point in curve.points), "grows as"], rows
