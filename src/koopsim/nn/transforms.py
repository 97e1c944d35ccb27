"""Whether hand-written kernels can take the place of their twins, which PyTorch's transforms and exporters all know."""

import functools
from importlib import import_module
from importlib.util import find_spec
from threading import Thread

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether Triton kernels can be used with these: on CUDA, and neither for an exporter nor under torch.func.grad.

    What is exported must run where this package is not. A compiler sees an operator and asks no more.
    """
    if not TRITON or not tensors[0].is_cuda or torch.compiler.is_exporting():
        return False
    return torch.compiler.is_compiling() or not differentiated(*tensors)


def import_ahead(device: torch.device) -> None:
    """Begin to import Triton where a step will need it, while the host reads, copies to the GPU and hashes.

    They need no lock of the interpreter's. Whoever imports it too waits for the rest.
    """
    if TRITON and device.type == "cuda":
        Thread(target=import_module, args=("koopsim.nn.kernels.adam",), name="koopsim-kernels").start()


def on_cpu(x: Tensor) -> bool:
    """Whether what is fast on a CPU can be used with x: nobody looks at each operation, who knows the twins alone."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not _watched()


def _watched() -> bool:
    """Whether a transform, whatever tensors it is of, a tracer, or a mode that counts operations is at work."""
    transforms = torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
    modes = torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
    return transforms or modes > 0 or torch.jit.is_tracing()


def differentiated(*tensors: Tensor) -> bool:
    """Whether torch.func.grad is at work on one of them.

    Its backward pass runs inside the function, where a vmap around it would hand a kernel an axis that it does not
    know. The other way round, vmap inside and the gradient outside, is what the kernels' own vmap rules are for.
    """
    known = torch._C._functorch.is_gradtrackingtensor  # pyright: ignore[reportAttributeAccessIssue]
    return any(known(t) for t in tensors)


def vmapped(x: Tensor) -> bool:
    """Whether torch.func.vmap is at work on x: hand-written kernels do not know its batch axis."""
    return torch._C._functorch.is_batchedtensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def transformed(x: Tensor) -> bool:
    """Whether torch.func is at work on x, be it vmap or grad."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def has_room(device: torch.device, size: int) -> bool:
    """Whether a thread block can have so many bytes of shared memory: newer GPUs than Hopper may have half of its."""
    known = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(known, "shared_memory_per_block_optin", size) >= size
