"""Times that can be divided by each other.

    ratio = median seconds of the other / median seconds of ours

Everything in a comparison is built, warmed up, and then measured in turns within one process: a machine that slows
down slows down for all of them. A turn lasts long enough for the clock; a comparison has at least three of them.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], None]
Maker = Callable[[], Work]  # builds what is to be measured; its memory is counted from before to after its first run
TURN = 0.02  # seconds: a shorter work is repeated within a turn
REST = 0.02  # seconds before a turn: by then idle threads of another process have gone to sleep (apart.py)


@dataclass(frozen=True)
class Timing:
    """One side of a comparison."""

    seconds: float  # median over the turns, of one unit of work
    spread: float  # longest turn less the shortest
    turns: int
    peak_bytes: int | None  # of device memory; on a CPU there is no honest count


def measure(
    makers: Mapping[str, Maker], device: torch.device, turns: int = 5, units: Mapping[str, float] | None = None
) -> dict[str, Timing]:
    """The timing of each work. `units`: how many units of work one call is, 1 unless told."""
    works, peaks, calls = {}, {}, {}
    for name, make in makers.items():
        works[name], peaks[name] = _built(make, device)  # which ran it once; the next run sets the number of calls
        once = _seconds(works[name], 1, device)
        calls[name] = max(1, min(1000, round(TURN / max(once, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(max(3, turns)):
        for name, work in works.items():
            times[name].append(_seconds(work, calls[name], device) / (units or {}).get(name, 1))
    return {name: Timing(statistics.median(t), max(t) - min(t), len(t), peaks[name]) for name, t in times.items()}


def _seconds(work: Work, calls: int, device: torch.device) -> float:
    """Seconds a call."""
    time.sleep(REST)
    _wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        work()
    _wait(device)
    return (time.perf_counter() - began) / calls


def _built(make: Maker, device: torch.device) -> tuple[Work, int | None]:
    """The work after its first run, and the most memory that took. A captured graph allocates while it is built."""
    if device.type != "cuda":
        work = make()
        work()
        return work, None
    _wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work = make()
    work()
    _wait(device)
    return work, torch.cuda.max_memory_allocated(device) - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
