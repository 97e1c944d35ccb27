"""The GPU's context, begun while Python still imports PyTorch, which finds it there.

    cuInit -> the first device -> its primary context        0.3 s in which the interpreter's lock is free

The calls are the CUDA driver's own. Where there is no driver, or it refuses, nothing has happened: PyTorch will say so.
"""

import ctypes
import os
from threading import Thread


def wake_gpu() -> None:
    """Begin with the context of the first GPU that this process may see."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch sets it before it begins
    Thread(target=_first_context, name="koopsim-waking", daemon=True).start()


def _first_context() -> bool:
    """Whether there is one now."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    refused = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    return not (refused or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
