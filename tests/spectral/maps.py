"""Maps of the interval and the plane whose invariant densities are known in closed form."""

import numpy as np

GOLDEN = (1 + 5**0.5) / 2


def orbit(f, start, steps):
    out = np.empty(steps + 1)
    out[0] = start
    for k in range(steps):
        out[k + 1] = f(out[k])
    return out


def logistic(x):
    return 4 * x * (1 - x)


def uniform(t):
    return np.ones_like(t)


def golden_density(t):
    """Of x -> GOLDEN x mod 1 (Renyi, Parry): constant on both sides of 1 / GOLDEN, the left one GOLDEN times higher."""
    right = 1 / (1 / GOLDEN * GOLDEN + (1 - 1 / GOLDEN))
    return np.where(t < 1 / GOLDEN, GOLDEN * right, right)


PIECEWISE = {
    "tent": (lambda x: 1 - np.abs(1 - 2 * x), uniform),
    "doubling": (lambda x: 2 * x % 1, uniform),
    "rotation": (lambda x: (x + 2**0.5 - 1) % 1, uniform),
    "golden": (lambda x: GOLDEN * x % 1, golden_density),
    "gauss": (lambda x: 1 / x % 1, lambda t: 1 / (np.log(2) * (1 + t))),
}
