"""Cross-entropy of logits and classes, the mean over rows.

    loss = mean_r [ log sum_c exp x_rc - sum_c q_rc x_rc ],      q_rc = (1 - s) [c = y_r] + s / C

with s the label smoothing. PyTorch's is the readable twin and stands everywhere but in training on CUDA: there the
twin sums a few hundred losses in a single block of threads and takes four kernels, forward and back.
`kernels.cross_entropy` takes one, which leaves the gradient as well, a short sum, and a product.
"""

from importlib.util import find_spec
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.nn.transforms import differentiated

CLASSES = 64  # at most, in the kernel


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """(rows, C) logits and (rows,) classes -> the mean loss in nats."""
    if fused(logits, targets):
        return fused_loss(logits, targets, smoothing)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing)


def fused(logits: Tensor, targets: Tensor) -> bool:
    """Whether the Triton kernel can take the place of the twin: float32 logits in training on CUDA."""
    if not (logits.is_cuda and torch.is_grad_enabled() and find_spec("triton") is not None):
        return False
    kinds = logits.dtype == torch.float32 and targets.dtype == torch.int64 and targets.is_cuda
    shapes = logits.ndim == 2 and logits.shape[:1] == targets.shape and 0 < logits.shape[1] <= CLASSES
    plain = not torch.compiler.is_compiling() and not differentiated(logits)
    return kinds and shapes and plain and 0 < logits.numel() < 2**31


def fused_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The same by the kernel."""
    from koopsim.nn.kernels.cross_entropy import CrossEntropy

    one = (logits.unsqueeze(0), targets.unsqueeze(0))  # one model; under vmap it is many
    return cast(tuple[Tensor, ...], CrossEntropy.apply(*one, smoothing))[0].squeeze(0)
