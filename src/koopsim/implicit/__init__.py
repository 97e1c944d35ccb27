"""What SIMs stand in for: models defined by a fixed point z* = f(z*, x), and how to solve and train them."""

from koopsim.implicit.base import SolverModel
from koopsim.implicit.gradient import DEQ
from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.solvers import anderson, broyden, picard
from koopsim.implicit.transformer import TransformerDEQ, UniversalTransformerCell
from koopsim.registry import SOLVERS

__all__ = [
    "DEQ",
    "SOLVERS",
    "DEQInfo",
    "Info",
    "MonDEQ",
    "SolverModel",
    "TransformerDEQ",
    "UnconvergedWarning",
    "UniversalTransformerCell",
    "anderson",
    "broyden",
    "picard",
]
