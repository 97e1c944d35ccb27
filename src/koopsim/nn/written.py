"""The gradient of a SIM of rows, written out: autograd's numbers in a third of its calls.

    a_i = relu(a_{i-1} M_i^T + m_i),  a_0 = x;            y = relu(relu(phi W^T + b) S^T + s) O^T + o
    single  phi = a_n                  W = N U V L        b = n + N U V l          L, l: the lift's last layer
    two     phi = waves(a_n (F L)^T + F l),  rff  phi = psi(x):   W = N U V        b = n          N, n: the first of nu
    O = h T,  o = h t + k              T, t: the last of nu;   h, k: the output

Backwards dO = dy^T a, dW = d^T phi, and so on; of a product of matrices, with G = dW L^T + db l^T,

    dL = (N U V)^T dW     dV = (N U)^T G     dU = N^T G V^T     dN = G V^T U^T

At batches of two hundred rows the products take less time than it takes to ask for them, and a tape asks three times.
The parameters are read, and their gradients written, where a trainer keeps them: in one vector each.
"""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from koopsim.nn.folded import foldable
from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.linear import Linear
from koopsim.nn.products import products
from koopsim.nn.readout import Output, StateReadout
from koopsim.nn.sim import SIM

_masked = torch.ops.aten.threshold_backward  # (d, a, 0): d where a > 0, else 0


def writable(model: nn.Module) -> bool:
    """Whether a model is one of these: a SIM of an MLP and waves on a CPU, all of it learnt, U and V free."""
    if type(model) is not SIM or not foldable(model) or model.limit.projector:
        return False
    own = type(model.nu) is StateReadout and type(model.h) is Output
    return own and all(p.requires_grad and p.device.type == "cpu" for p in model.parameters())


class _Layer:
    """x W^T + b, and where its gradient goes. Views of parameters are taken once: each costs as much as a product."""

    def __init__(self, layer: nn.Module, into: Mapping[int, Tensor]):
        W, b = cast(Linear, layer).weight, cast(Linear, layer).bias
        self.W, self.b, self.gW, self.gb = W.detach(), b.detach(), into[id(W)], into[id(b)]
        self.Wt = self.W.t()


class WrittenSIM:
    """Answers to rows, and then the gradient by them. `into`: where the gradient of each parameter is to be written."""

    def __init__(self, model: SIM, into: Mapping[str, Tensor]):
        places = {id(p): into[name] for name, p in model.named_parameters()}
        self.lift = [_Layer(m, places) for m in model.mu.modules() if isinstance(m, nn.Linear)]
        self.first, self.second, self.third, self.output = (_Layer(m, places) for m in (*[*model.nu][::2], model.h))
        U, V = model.limit.U, model.limit.V
        self.U, self.gU, self.V, self.gV = U.detach(), places[id(U)], V.detach(), places[id(V)]
        self.Ut, self.Vt = self.U.t(), self.V.t()
        self.widest = max(max(p.shape) for p in model.parameters())
        self.psi = cast(RandomFourierFeatures, model.psi) if type(model.psi) is not nn.Identity else None

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs), and what the way back needs is kept."""
        self.mm, self.linear = products(len(x) * self.widest**2)
        self.NU = self.mm(self.first.W, self.U)
        W, b = self.mm(self.NU, self.V), self.first.b
        self.NUVt = W.t()
        self.a = [x]
        for layer in self.lift[:-1]:
            self.a.append(self.linear(self.a[-1], layer.W, layer.b).relu_())
        if not self.lift:
            self.phi = cast(RandomFourierFeatures, self.psi)(x)
        elif self.psi is None:
            last = self.lift[-1]
            self.phi, W, b = self.a[-1], W @ last.W, torch.addmv(b, W, last.b)
        else:
            self.phi = self._waves(self.psi.frequencies)
        self.W, self.O = W, self.output.W @ self.third.W
        self.z1 = self.linear(self.phi, W, b).relu_()
        self.z2 = self.linear(self.z1, self.second.W, self.second.b).relu_()
        return self.linear(self.z2, self.O, torch.addmv(self.output.b, self.output.W, self.third.b))

    def _waves(self, F: Tensor) -> Tensor:
        last = self.lift[-1]
        self.FL = F @ last.W
        phase = self.linear(self.a[-1], self.FL, F @ last.b)
        return torch.cat([phase.sin(), phase.cos()], dim=1).div_(math.sqrt(len(F)))

    def backward(self, dy: Tensor) -> None:
        """Write the gradient down, from the gradient by the answers."""
        third, output = self.third, self.output
        dO = self.mm(dy.t(), self.z2)
        torch.sum(dy, 0, out=output.gb)
        torch.mm(dO, third.Wt, out=output.gW).addr_(output.gb, third.b)
        torch.mm(output.Wt, dO, out=third.gW)
        torch.mv(output.Wt, output.gb, out=third.gb)
        d = _masked(self.mm(dy, self.O), self.z2, 0)
        self._layer_back(self.second, d, self.z1)
        self._limit_back(_masked(self.mm(d, self.second.W), self.z1, 0))

    def _limit_back(self, d: Tensor) -> None:
        """`d`: by the outputs of W."""
        first = self.first
        G = self.mm(d.t(), self.phi)
        torch.sum(d, 0, out=first.gb)
        if self.lift and self.psi is None:
            last = self.lift[-1]
            torch.mm(self.NUVt, G, out=last.gW)
            torch.mv(self.NUVt, first.gb, out=last.gb)
            G = torch.mm(G, last.Wt).addr_(first.gb, last.b)
            self._lift_back(d, self.W)
        elif self.lift:
            self._waves_back(self.mm(d, self.W), cast(RandomFourierFeatures, self.psi).frequencies)
        self.mm(self.NU.t(), G, out=self.gV)
        G = self.mm(G, self.Vt)
        self.mm(first.Wt, G, out=self.gU)
        self.mm(G, self.Ut, out=first.gW)

    def _waves_back(self, d: Tensor, F: Tensor) -> None:
        """`d`: by phi. The derivative of a sine is the cosine beside it, and of the cosine minus the sine."""
        half, last = len(F), self.lift[-1]
        d = d[:, :half] * self.phi[:, half:] - d[:, half:] * self.phi[:, :half]
        torch.mm(F.t(), self.mm(d.t(), self.a[-1]), out=last.gW)
        torch.mv(F.t(), d.sum(0), out=last.gb)
        self._lift_back(d, self.FL)

    def _layer_back(self, layer: _Layer, d: Tensor, x: Tensor) -> None:
        """`d`: by what the layer gave for x."""
        self.mm(d.t(), x, out=layer.gW)
        torch.sum(d, 0, out=layer.gb)

    def _lift_back(self, d: Tensor, E: Tensor) -> None:
        """`d`: by the outputs of E, which the last hidden layer of the lift enters."""
        for layer, before, own in zip(self.lift[-2::-1], self.a[-2::-1], self.a[:0:-1], strict=True):
            d = _masked(self.mm(d, E), own, 0)
            self._layer_back(layer, d, before)
            E = layer.W
