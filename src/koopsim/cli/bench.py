"""koopsim bench: how fast, beside peers and beside what the machine could do at best."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse

MIB = 2**20


@dataclass(frozen=True)
class Arguments:
    """Measure speed side by side: every comparison a ratio in one run, every training step beside its floor.

    Rows: train, capture, inference, fuse, deploy, stack, pictures, solver, edmd, paper, growth; all unless named. The
    paper's code is found by KOOPSIM_PAPER_CODE, a folder that has sim/net.py.
    """

    rows: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
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
    from koopsim.engine.drive import pick_device
    from koopsim.files import folders
    from koopsim.files.json import json_text
    from koopsim.runs import read_run_json, write_json

    device = pick_device(arguments.device)
    with contextlib.ExitStack() as stack:
        if arguments.out is not None:
            stack.enter_context(folders.held(arguments.out))
            folders.claim(arguments.out, "bench", ("bench.json", "growth.png"), arguments.overwrite)
        findings = bench.run(arguments.rows, device, arguments.quick, arguments.precision, _say)
        if arguments.out is not None:
            file, found = arguments.out / "bench.json", findings.as_dict()
            write_json(file, bench.merged(read_run_json(file), found) if file.exists() else found)
            if findings.curves:
                bench.draw_growth(findings.curves, findings.machine.name, arguments.out / "growth.png")
    if arguments.json:
        print(json_text(findings.as_dict()))
        return 0
    show_findings(findings)
    if arguments.out is not None:
        print(f"written to {arguments.out}/")
    return 0


def _say(row: str) -> None:
    print(f"koopsim bench: {row}", file=sys.stderr, flush=True)


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
        console.print(comparison_table(findings.comparisons))
    floors = floor_table(findings.comparisons)
    if floors.row_count:
        console.print(floors)
    for curve in findings.curves:
        console.print(curve_table(curve))
    for what, why in findings.skipped.items():
        console.print(f"left out {what}: {why}", highlight=False, markup=False)


def comparison_table(comparisons):
    """Ours, the other, and how many times longer the other takes."""
    table = _table("Side by side: times faster = the other's median / ours", "work", "ours", "against")
    memory = any(c.ours.timing.peak_bytes is not None for c in comparisons)
    for column in ("ms", "other's ms", "faster", *(("MiB", "other's MiB") if memory else ())):
        table.add_column(column, justify="right", no_wrap=True)
    last = None
    for c in comparisons:
        sides = [_named(side) for side in (c.ours, c.other)]
        times = [f"{1e3 * side.timing.seconds:.3g}" for side in (c.ours, c.other)]
        peaks = [f"{(side.timing.peak_bytes or 0) / MIB:,.0f}" for side in (c.ours, c.other)] if memory else []
        table.add_row("" if c.work == last else c.work, *sides, *times, f"{c.ratio:.2f}x", *peaks)
        last = c.work
    return table


def floor_table(comparisons):
    """Each training step beside the least it could take."""
    title = "The limit: a training step beside its floor, max(flops / peak, bytes / bandwidth)"
    table = _table(title, "work", "step")
    for column in ("ms", "by arithmetic", "by bytes", "above floor"):
        table.add_column(column, justify="right", no_wrap=True)
    seen = set()
    for c in comparisons:
        for side in (c.ours, c.other):
            if side.floor is not None and (c.work, side.name) not in seen:
                seen.add((c.work, side.name))
                numbers = [f"{1e3 * s:.3g}" for s in (side.timing.seconds, side.floor.arithmetic, side.floor.memory)]
                table.add_row(c.work, side.name, *numbers, f"{side.above_floor:.3g}x")
    return table


def curve_table(curve):
    """Milliseconds along the axis."""
    from koopsim.bench.growth import exponent

    table = _table(f"Growth with {curve.axis}: {curve.what}, in ms", curve.axis)
    for point in curve.points:
        table.add_column(f"{point:,}", justify="right")
    table.add_column("grows as", justify="right")
    for name, seconds in curve.seconds.items():
        power = exponent(curve.points, seconds)
        ends = "-" if power is None else f"{curve.axis}^{power:.1f}"
        table.add_row(name, *("-" if s is None else f"{1e3 * s:.3g}" for s in seconds), ends)
    if curve.floors:
        table.add_row("floor", *(f"{1e3 * s:.3g}" for s in curve.floors), "")
    return table


def _table(title: str, *words: str):
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for word in words:
        table.add_column(word)
    return table


def _named(side) -> str:
    from rich.markup import escape

    return escape(side.name) + (f"\n[dim]{escape(side.note)}[/]" if side.note else "")
