"""CUDA C++ kernels, compiled when first used by the compiler that PyTorch brings along (NVRTC), kept across processes.

For what Triton has no words for: thread block clusters that write into each other's shared memory. The machine code
goes to `kernels/` in the cache folder, named by a hash of all it depends on: a second process only reads a file.
"""

import ctypes
import functools
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from koopsim.datasets.cache import data_folder
from koopsim.errors import KoopsimError

MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
CLUSTERS = Path(__file__).with_name("cluster.cu")

Defines = tuple[tuple[str, int], ...]  # of the compiler's command line


@dataclass(frozen=True)
class Kernel:
    function: ctypes.c_void_p
    name: str

    def __call__(self, grid: tuple[int, ...], threads: int, shared: int, arguments: list[Tensor | int]) -> None:
        """Launch on the current stream. Tensors are passed as pointers, integers as int."""
        Launch(self, threads, shared, arguments)(grid)


class Launch:
    """A kernel with its arguments in place; `values` may be changed from launch to launch, by one thread."""

    def __init__(self, kernel: Kernel, threads: int, shared: int, arguments: list[Tensor | int]):
        self.kernel, self.threads, self.shared = kernel, threads, shared
        self.values = [_pointer(a, kernel) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments]
        self.places = (ctypes.c_void_p * len(self.values))(*(ctypes.addressof(v) for v in self.values))
        self.start = _driver().cuLaunchKernel

    def __call__(self, grid: tuple[int, ...]) -> None:
        """On the current device's current stream."""
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))  # pyright: ignore
        x, y, z = (*grid, 1, 1)[:3]
        function, places = self.kernel.function, self.places
        launched = self.start(function, x, y, z, self.threads, 1, 1, self.shared, stream, places, None)
        if launched:
            _check(launched, self.kernel.name)


def _pointer(tensor: Tensor, kernel: Kernel) -> ctypes.c_void_p:
    if not tensor.is_cuda:
        raise KoopsimError(f"koopsim's kernel {kernel.name} was given a tensor on {tensor.device}; expected CUDA's.")
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def kernel(
    source: Path | tuple[Path, ...],
    name: str,
    defines: Defines,
    shared: int,
    device: int,
    large: bool = False,
    beside: bool = False,
) -> Kernel:
    """The kernel `name` of a file or of several (behind cluster.cu) for a device, with so many bytes of shared memory.

    large    its clusters have more than the eight blocks that every GPU with clusters takes
    beside   several blocks are to share a multiprocessor: as much of its cache as there is becomes shared memory
    """
    files = source if isinstance(source, tuple) else (source,)
    code, module, function = _machine_code(files, defines, device), ctypes.c_void_p(), ctypes.c_void_p()
    driver = _driver()
    with torch.cuda.device(device):  # a module is of the context that is current
        torch.cuda.current_stream(device)  # PyTorch makes its context the current one
        _check(driver.cuModuleLoadData(ctypes.byref(module), code), name)
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
        _check(driver.cuFuncSetAttribute(function, MAX_SHARED, shared), name)
        if beside:
            _check(driver.cuFuncSetAttribute(function, CARVEOUT, 100), name)
        if large:
            _check(driver.cuFuncSetAttribute(function, LARGE_CLUSTERS, 1), name)
    return Kernel(function, name)


def build_ahead(wanted: list[tuple[tuple[Path, ...], Defines]], device: int) -> None:
    """Compile side by side what is not in the cache: the compiler leaves Python's lock to others."""
    with ThreadPoolExecutor(thread_name_prefix="koopsim-builds") as threads:
        list(threads.map(lambda each: _machine_code(*each, device), wanted))


@functools.cache
def _machine_code(files: tuple[Path, ...], defines: Defines, device: int) -> bytes:
    """From the cache, or compiled and put there."""
    major, minor = torch.cuda.get_device_capability(device)
    options = (f"-arch=sm_{major}{minor}", "-std=c++17", *(f"-D{key}={value}" for key, value in defines))
    source = "".join(file.read_text() for file in (CLUSTERS, *files))
    version = f"{torch.version.cuda} {' '.join(options)}\n{source}"
    file = data_folder() / "kernels" / f"{hashlib.sha256(version.encode()).hexdigest()[:32]}.cubin"
    if file.exists():
        return file.read_bytes()
    code = _compiled(source, options)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")  # each writer's own
        part.write_bytes(code)
        part.replace(file)
    except OSError:
        pass  # a cache that cannot be written to costs a second in each process, nothing else
    return code


def _compiled(source: str, options: tuple[str, ...]) -> bytes:
    rtc, program = _runtime_compiler(), ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    _check(rtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    try:
        if rtc.nvrtcCompileProgram(program, len(options), given):
            log = _text(rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog, program)
            raise KoopsimError(f"NVRTC cannot compile koopsim's kernel for this GPU: {log.decode(errors='replace')}")
        return _text(rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN, program)
    finally:
        rtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of, get, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)), "NVRTC")
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer), "NVRTC")
    return buffer.raw


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _runtime_compiler() -> ctypes.CDLL:
    """The library that is loaded with PyTorch, whatever folder it came from."""
    major = str(torch.version.cuda).split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    from torch.cuda import _utils

    return _utils._get_nvrtc_library()


def _check(result: int, name: str) -> None:
    if result:
        raise KoopsimError(
            f"CUDA error {result} with koopsim's kernel {name}; set KOOPSIM_CLUSTERS=0 to do without it."
        )
