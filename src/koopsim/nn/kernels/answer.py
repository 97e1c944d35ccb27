"""A few answers of a fused SIM at once, each in one CUDA kernel: `tcn.cu` and `vgg.cu`, for GPUs with clusters.

    sequence -> all layers of the TCN, relu, relu, output          image -> four convolutions, two poolings, the same

What a captured graph still does at batch 1, a dozen launches one after the other and a copy in and out, is one launch
here that reads the caller's tensor and writes the answer's. The twins are the modules of `fuse`, which answer
everything else: larger batches, other lifts, other GPUs. The kernels run without PyTorch's dispatcher: no transform and
no compiler sees them, for nothing but `koopsim.deploy` calls them, and that is no module.
"""

import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn.fuse import FusedTCN, FusedVGG
from koopsim.nn.kernels import tcn_cluster, vgg_cluster
from koopsim.nn.kernels.cuda import Kernel, Launch, kernel
from koopsim.nn.kernels.vgg_cluster import fours
from koopsim.nn.lift import residual_of

FEW = 8  # answers at once: about as many clusters as the chip has room for
HEAD = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


class Answering:
    """x (B, ...) -> y (B, ...), at most `FEW` at once, from any thread, on the caller's stream.

    blocks   of an input;   fixed, more: the kernel's arguments between x and y, and after them
    """

    most = FEW

    def __init__(
        self, kernel: Kernel, shape: tuple[int, int, int], fixed: list[Tensor], more: list[int], outputs: Sequence[int]
    ):
        self.kernel, (self.blocks, self.threads, self.shared) = kernel, shape
        self.fixed, self.more, self.outputs = fixed, more, outputs
        self.device, self.own = fixed[0].device, threading.local()

    def __call__(self, x: Tensor) -> Tensor:
        if x.device != self.device or x.dtype != torch.float32 or not x.is_contiguous():
            x = x.to(self.device, torch.float32).contiguous()
        y = x.new_empty(len(x), *self.outputs)
        launch = getattr(self.own, "launch", None) or self._launch(x, y)
        launch.values[0].value, launch.values[1 + len(self.fixed)].value = x.data_ptr(), y.data_ptr()
        if self.device.index == torch._C._cuda_getDevice():  # pyright: ignore[reportAttributeAccessIssue]
            launch((self.blocks * len(x),))
        else:
            with torch.cuda.device(self.device):
                launch((self.blocks * len(x),))
        return y

    def _launch(self, x: Tensor, y: Tensor) -> Launch:
        """This thread's own arguments; CUDA's context becomes this thread's too."""
        torch.cuda.synchronize(self.device)
        self.own.launch = Launch(self.kernel, self.threads, self.shared, [x, *self.fixed, y, *self.more])
        return self.own.launch


def answering(fused: nn.Sequential, shape: Sequence[int], device: torch.device) -> Answering | None:
    """For inputs of this shape (without the batch), or None where there is no kernel for the model or the device."""
    if os.environ.get("KOOPSIM_CLUSTERS") == "0" or not tcn_cluster.has_clusters(device):
        return None
    if any(p.dtype != torch.float32 for p in fused.parameters()):
        return None
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    lift, *rest = fused
    head = [layer for layer in rest if isinstance(layer, nn.Linear)]
    if [type(layer) for layer in rest] != HEAD:
        return None
    if isinstance(lift, FusedTCN) and len(shape) == (1 if lift.input_channels == 1 else 2):
        return _of_sequences(lift, head, shape[0], device)
    return _of_images(lift, head, shape, device) if isinstance(lift, FusedVGG) else None


def _of_sequences(lift: FusedTCN, head: list[nn.Linear], T: int, device: torch.device) -> Answering | None:
    W, b, top = (t.detach().to(device).contiguous() for t in (lift.W, lift.b, packed_head(head)))
    if W.ndim != 4 or not tcn_cluster.fits(torch.empty(1, 1, T, lift.input_channels, device=device), W[None]):
        return None
    hidden, outputs, (L, C, *_) = head[0].out_features, head[2].out_features, W.shape
    cluster = tcn_cluster.CLUSTER
    stretch = -(-T // cluster)
    shared = 4 * (W.numel() + len(top) + T * C + L * C + max(T * C, 2 * stretch * fours(hidden)))
    if head[0].in_features != C or shared > tcn_cluster.SHARED:
        return None
    residual = [t.detach().to(device).contiguous() for t in residual_of(lift.residual, W)]
    defines = tcn_cluster.sizes(W[None], lift.input_channels, cluster) | {"HIDDEN": hidden, "OUTPUTS": outputs}
    built = kernel(tcn_cluster.SOURCE, "temporal_answer", tuple(defines.items()), shared, device.index)
    more = [T, int(residual[0].numel() > 0)]
    return Answering(built, (cluster, tcn_cluster.THREADS, shared), [*residual, W, b, top], more, (T, outputs))


def _of_images(lift: FusedVGG, head: list[nn.Linear], shape: Sequence[int], device: torch.device) -> Answering | None:
    s = vgg_cluster.sizes(lift, head, shape)
    if s is None or s.shared_bytes() > tcn_cluster.SHARED:
        return None
    given, shared = tuple(s.defines().items()), s.shared_bytes()
    built = kernel(vgg_cluster.SOURCE, "image_answer", given, shared, device.index, large=s.blocks > 8)
    ready = vgg_cluster.packed(lift, head, s).to(device)
    return Answering(built, (s.blocks, s.threads, shared), [ready], [], (s.outputs,))


@torch.no_grad()
def packed_head(head: Sequence[nn.Linear]) -> Tensor:
    """Weights (in, out) and biases of the layers one after the other, outputs in fours."""
    pad = [(0, fours(layer.out_features) - layer.out_features) for layer in head]
    pairs = zip(head, pad, strict=True)
    return torch.cat([t for layer, p in pairs for t in (F.pad(layer.weight.mT, p).flatten(), F.pad(layer.bias, p))])
