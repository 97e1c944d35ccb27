"""The Koopman side: a matrix or trajectories in, "settles, oscillates or blows up" out."""

from .analysis import analyze
from .dictionary import Lift, Monomials, Nystrom, Observables, RandomFourier
from .edmd import EDMD
from .verdict import JordanBlock, Projector, Rotation, Verdict

__all__ = [
    "EDMD",
    "JordanBlock",
    "Lift",
    "Monomials",
    "Nystrom",
    "Observables",
    "Projector",
    "RandomFourier",
    "Rotation",
    "Verdict",
    "analyze",
]
