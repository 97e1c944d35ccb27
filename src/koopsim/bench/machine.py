"""What a machine could do at best: products a second, and bytes a second.

Of a GPU the maker's figures, dense, without sparsity; of a CPU what a large product and a large copy reach here and
now, with the threads torch has.
"""

import os
import time
from dataclasses import dataclass, field

import torch

from koopsim.runs import environment

# floating-point operations a second by precision, and bytes of memory a second: sustained figures, rounded down
DEVICES: dict[str, tuple[dict[str, float], float]] = {
    "H200": ({"bf16": 790e12, "tf32": 395e12, "float32": 60e12}, 4.8e12),
    "H100": ({"bf16": 790e12, "tf32": 395e12, "float32": 60e12}, 3.35e12),
    "A100": ({"bf16": 312e12, "tf32": 156e12, "float32": 19.5e12}, 1.55e12),
    "L40S": ({"bf16": 362e12, "tf32": 183e12, "float32": 91e12}, 0.86e12),
    "RTX 4090": ({"bf16": 165e12, "tf32": 82e12, "float32": 82e12}, 1.0e12),
    "T4": ({"bf16": 8.1e12, "tf32": 8.1e12, "float32": 8.1e12}, 0.32e12),
}


@dataclass(frozen=True)
class Machine:
    """Where a number was measured, and the machine's two limits."""

    name: str
    flops: dict[str, float]  # a second, by precision
    bandwidth: float  # bytes a second
    source: str  # "table" or "measured"
    threads: int | None  # of a CPU
    environment: dict = field(default_factory=dict, repr=False)


def measured_machine(device: torch.device, seconds: float = 0.3) -> Machine:
    """The machine of a device. One that no table knows is measured, for `seconds` each."""
    where = environment()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for key, (flops, bandwidth) in DEVICES.items():
            if key in name:
                return Machine(name, flops, bandwidth, "table", None, where)
        flops = {p: measured_flops(device, p, seconds) for p in ("float32", "tf32", "bf16")}
        return Machine(name, flops, measured_bandwidth(device, seconds), "measured", None, where)
    flops = {p: measured_flops(device, p, seconds) for p in ("float32", "bf16")}
    flops["tf32"] = flops["float32"]
    name = f"{where['cpu']}, {torch.get_num_threads()} of {os.cpu_count()} threads"
    return Machine(name, flops, measured_bandwidth(device, seconds), "measured", torch.get_num_threads(), where)


def measured_flops(device: torch.device, precision: str, seconds: float, size: int = 1024) -> float:
    """The best of a few square products, in operations a second."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    try:
        return 2 * size**3 / _best(lambda: torch.mm(a, b), device, seconds)
    finally:
        torch.set_float32_matmul_precision(before)


def measured_bandwidth(device: torch.device, seconds: float, size: int = 2**26) -> float:
    """The best of a few copies, larger than caches, in bytes read and written a second."""
    a = torch.ones(size, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * size / _best(lambda: b.copy_(a), device, seconds)


def _best(work, device: torch.device, seconds: float) -> float:
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
