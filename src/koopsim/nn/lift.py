"""The lift: from an input to the space where the dynamics are linear.

    phi(z_0, x) ~ mu(x) in R^N                                  paper, section 3.4

The initial state is zero and is dropped. mu is the part that knows the task: an MLP for points (`mlp.py`), a small
VGG for images (`vgg.py`), a temporal convolutional network for sequences (`tcn.py`). Any nn.Module can stand in their
place.
"""

from koopsim.nn.mlp import MLP
from koopsim.nn.tcn import TCN, CausalConv, TemporalBlock, residual_of
from koopsim.nn.vgg import VGG

__all__ = ["MLP", "TCN", "VGG", "CausalConv", "TemporalBlock", "residual_of"]
