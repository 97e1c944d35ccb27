"""How many members fit on a device."""

import torch

from koopsim.files.memory import free_memory

SHARE = 0.8  # of the memory, that members may take


def fitting_groups(count: int, bytes_each: int, device: torch.device, at_once: int | None = None) -> list[range]:
    """0..count-1 cut into runs of equal length, as long as memory allows, or at most `at_once`."""
    number = -(-count // (at_once or fitting(bytes_each, device)))
    return cut(count, number)


def cut(count: int, number: int) -> list[range]:
    """0..count-1 in so many runs of equal length."""
    return [range(count * i // number, count * (i + 1) // number) for i in range(number)]


def fitting(bytes_each: int, device: torch.device) -> int:
    """How many of this size fit into the device's memory, at least one."""
    return max(1, int(SHARE * device_memory(device)) // max(bytes_each, 1))


def device_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device; on a CPU half of what this process may still take."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return free_memory() // 2
