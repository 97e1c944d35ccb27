"""The way back: from the limit in the lifted space to the state, and from the state to the answer.

    z = nu(U V phi),   y = h(z)                                 paper, section 3.4 and appendix B

nu stands for the inverse of the lift without being invertible: Linear-ReLU, Linear-ReLU, Linear, all of width
H. h is linear; the softmax of a classifier lives in its loss.
"""

from koopsim.nn.lift import MLP
from koopsim.nn.linear import Linear


class StateReadout(MLP):
    """nu: (..., N) -> (..., H)."""

    def __init__(self, lifted: int, hidden: int):
        super().__init__(lifted, hidden, hidden, layers=2)


class Output(Linear):
    """h: (..., H) -> (..., outputs)."""
