"""A density of a chain that is written down."""

import numpy as np
from scipy.sparse import csr_matrix

from koopsim.spectral.boxes import Boxes
from koopsim.spectral.invariant_density import InvariantDensity
from koopsim.spectral.markov import markov_chain
from koopsim.spectral.ulam import Transitions


def chain(P, samples, edges=None):
    """A density of a chain that is written down."""
    n = len(P)
    boxes = Boxes((np.arange(n + 1.0) if edges is None else np.asarray(edges),))
    found = Transitions(boxes, np.arange(n), csr_matrix(np.asarray(P, float)), np.asarray(samples), 0.0)
    return InvariantDensity(found, markov_chain(found.matrix), "counts")
