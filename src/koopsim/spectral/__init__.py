"""Koopman and Perron-Frobenius: a matrix or trajectories in, "settles, oscillates or blows up" and where to, out."""

from .almost_invariant import AlmostInvariantSets
from .analysis import analyze
from .continuous import ModeTable
from .delays import Delays
from .dictionary import Identity, Lift, Monomials, Nystrom, Observables, RandomFourier
from .edmd import EDMD
from .invariant_density import InvariantDensity, invariant_density
from .learned import LearnedDictionary
from .markov import MarkovChain, markov_chain
from .mean_embedding import embedding_of_density, mean_embedding, mmd
from .optimised_dmd import OptimisedDMD
from .perron_frobenius import PerronFrobenius, perron_frobenius
from .sampling import Regular, regular, without_gaps
from .verdict import JordanBlock, Projector, Rotation, Verdict

__all__ = [
    "EDMD",
    "AlmostInvariantSets",
    "Delays",
    "Identity",
    "InvariantDensity",
    "JordanBlock",
    "LearnedDictionary",
    "Lift",
    "MarkovChain",
    "ModeTable",
    "Monomials",
    "Nystrom",
    "Observables",
    "OptimisedDMD",
    "PerronFrobenius",
    "Projector",
    "RandomFourier",
    "Regular",
    "Rotation",
    "Verdict",
    "analyze",
    "embedding_of_density",
    "invariant_density",
    "markov_chain",
    "mean_embedding",
    "mmd",
    "perron_frobenius",
    "regular",
    "without_gaps",
]
