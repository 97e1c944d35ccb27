"""Cross-entropy of logits and classes, the mean over rows.

    loss = mean_r [ log sum_c exp x_rc - sum_c q_rc x_rc ],      q_rc = (1 - s) [c = y_r] + s / C

with s the label smoothing. PyTorch's is the readable twin and stands everywhere but in training on CUDA: there the
twin sums a few hundred losses in a single block of threads and takes four kernels, forward and back.
`kernels.cross_entropy` takes one, which leaves the gradient as well, a short sum, and a product.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.nn.transforms import usable

CLASSES = 64  # at most, in the kernel


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """(rows, C) logits and (rows,) classes -> the mean loss in nats."""
    if fused(logits, targets):
        return fused_loss(logits, targets, smoothing)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing)


def fused(logits: Tensor, targets: Tensor) -> bool:
    """Whether the Triton kernel can take the place of the twin: float32 logits in training on CUDA."""
    if not (torch.is_grad_enabled() and usable(logits)):
        return False
    kinds = logits.dtype == torch.float32 and targets.dtype == torch.int64 and targets.is_cuda
    shapes = logits.ndim == 2 and logits.shape[:1] == targets.shape and logits.shape[1] <= CLASSES
    return kinds and shapes and 0 < logits.numel() < 2**31


def fused_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The same by the kernel."""
    from koopsim.nn.kernels.cross_entropy import losses

    return losses(logits.unsqueeze(0), targets.unsqueeze(0), smoothing)[0].squeeze(0)  # one model; many under vmap
