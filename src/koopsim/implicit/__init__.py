"""What SIMs stand in for: models defined by a fixed point z* = f(z*, x), and how to solve and train them."""

from koopsim.implicit.base import SolverModel
from koopsim.implicit.continued import Continued
from koopsim.implicit.deq import DEQ, GRADIENTS, Backward
from koopsim.implicit.gradient import Neumann, Phantom
from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning
from koopsim.implicit.iteration import Tolerance, iterate
from koopsim.implicit.monotone import MonDEQ, Splitting
from koopsim.implicit.multiscale import MultiscaleCell, MultiscaleDEQ
from koopsim.implicit.penalties import correction_loss, jacobian_penalty, spectral_radius
from koopsim.implicit.reversible import Reversible
from koopsim.implicit.solvers import anderson, broyden, newton, picard, relaxed
from koopsim.implicit.stabilise import VariationalDropout, denormalise, normalise
from koopsim.implicit.transformer import TransformerDEQ, UniversalTransformerCell
from koopsim.registry import SOLVERS

__all__ = [
    "DEQ",
    "GRADIENTS",
    "SOLVERS",
    "Backward",
    "Continued",
    "DEQInfo",
    "Info",
    "MonDEQ",
    "MultiscaleCell",
    "MultiscaleDEQ",
    "Neumann",
    "Phantom",
    "Reversible",
    "SolverModel",
    "Splitting",
    "Tolerance",
    "TransformerDEQ",
    "UnconvergedWarning",
    "UniversalTransformerCell",
    "VariationalDropout",
    "anderson",
    "broyden",
    "correction_loss",
    "denormalise",
    "iterate",
    "jacobian_penalty",
    "newton",
    "normalise",
    "picard",
    "relaxed",
    "spectral_radius",
]
