"""What an inner function says over a table of cases, in few words, and matrices to say it of."""

import re

import numpy as np

NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?i?")


def words(text):
    """A sentence without its numbers: it names the branch that was taken."""
    return NUMBER.sub("#", text)


def upper(n, seed, coupling=1.0, inside=1.0, real=False):
    """A triangular matrix with `inside` times the unit disc's eigenvalues, the same on every machine."""
    rng = np.random.default_rng(seed)
    N = rng.uniform(-1, 1, (n, n)) + (0 if real else 1j * rng.uniform(-1, 1, (n, n)))
    w = inside * rng.uniform(-1, 1, n) * (1.0 if real else np.exp(2j * np.pi * rng.uniform(0, 1, n)))
    return coupling * np.triu(N, 1) + np.diag(w)
