"""Speed, proved side by side: every comparison a ratio within one run, every training step beside its floor.

    findings = bench.run(["train", "fuse"], device, quick=True)         koopsim bench train fuse --quick

Both sides get the same data and the same precision, are warmed up, and are measured in turns (timing.py); what the
machine could do at best is in machine.py and limit.py.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch

from koopsim.bench.deployed import deploy_rows
from koopsim.bench.edmd_peers import edmd_rows
from koopsim.bench.growth import draw_growth, growth_curves
from koopsim.bench.inference import fuse_rows, inference_rows
from koopsim.bench.machine import measured_machine
from koopsim.bench.paper import paper_rows
from koopsim.bench.peers import solver_rows
from koopsim.bench.result import BenchFindings, Comparison, GrowthCurve, Side, merged
from koopsim.bench.setting import Setting, Sizes, sizes_for
from koopsim.bench.stacks import picture_rows, stack_rows
from koopsim.bench.training import capture_rows, train_rows
from koopsim.errors import KoopsimError, did_you_mean

ROWS: dict[str, Callable[[Setting], Iterable[Comparison]]] = {
    "train": train_rows,
    "capture": capture_rows,
    "inference": inference_rows,
    "fuse": fuse_rows,
    "deploy": deploy_rows,
    "stack": stack_rows,
    "pictures": picture_rows,
    "solver": solver_rows,
    "edmd": edmd_rows,
    "paper": paper_rows,
}
GROWTH = "growth"


def run(
    rows: Sequence[str] = (),
    device: torch.device | str = "cpu",
    quick: bool = False,
    precision: str = "float32",
    listen: Callable[[str, BenchFindings], None] = lambda row, findings: None,
    sizes: Sizes | None = None,
) -> BenchFindings:
    """The comparisons of these rows, or of all; `listen` hears which one begins, and again what is found so far."""
    device = torch.device(device)
    every = [*ROWS, GROWTH]
    for row in rows:
        if row not in every:
            raise KoopsimError(f"There is no row {row!r}." + did_you_mean(row, every))
    machine = measured_machine(device)
    setting = Setting(device, machine, sizes or sizes_for(device, quick), precision)
    findings = BenchFindings(machine, precision)
    for row in [row for row in every if row in rows or not rows]:
        if row == "capture" and device.type != "cuda":
            findings.skipped[row] = "a step is captured on CUDA only"
            continue
        listen(row, findings)
        began = time.perf_counter()
        with _undisturbed():
            try:
                if row == GROWTH:
                    findings.curves += growth_curves(setting)
                else:
                    for comparison in ROWS[row](setting):
                        findings.comparisons.append(comparison)
                        findings.seconds[row] = time.perf_counter() - began
                        listen(row, findings)
            except (KoopsimError, torch.OutOfMemoryError) as error:
                findings.skipped[row] = (str(error).splitlines() or ["out of memory"])[0]
        findings.seconds[row] = time.perf_counter() - began
    return findings


def _undisturbed() -> AbstractContextManager:
    """Without warnings: an unconverged solve is in the notes of its row."""
    return warnings.catch_warnings(action="ignore")


__all__ = [
    "GROWTH",
    "ROWS",
    "BenchFindings",
    "Comparison",
    "GrowthCurve",
    "Setting",
    "Side",
    "Sizes",
    "draw_growth",
    "merged",
    "run",
    "sizes_for",
]
