"""Seven ordinary files, as people have them: seeded, and the case of each is known."""

import numpy as np
from scipy.integrate import solve_ivp


def spiral(rng, modulus, noise, m=240, angle=0.3, rest=(0.0, 0.0)):
    z = np.exp((np.log(modulus) + 1j * angle) * np.arange(m))
    clean = np.c_[z.real, z.imag] + rest
    return clean + noise * rng.standard_normal(clean.shape) if noise else clean


def flow(f, start, end, m):
    return solve_ivp(f, (0, end), start, t_eval=np.linspace(0, end, m), rtol=1e-9, atol=1e-9).y.T


def van_der_pol(t, z):
    return [z[1], (1 - z[0] ** 2) * z[1] - z[0]]


def lorenz(t, z):
    return [10 * (z[1] - z[0]), z[0] * (28 - z[2]) - z[1], z[0] * z[1] - 8 / 3 * z[2]]


def waves(rng, m=150, d=40, noise=0.02):
    """A snapshot matrix: two travelling waves."""
    x, l = np.linspace(0, 1, d), np.arange(m)[:, None]
    clean = np.cos(6 * x - 0.3 * l) + 0.5 * np.cos(15 * x + 0.7 * l)
    return clean + noise * rng.standard_normal(clean.shape) if noise else clean


def seven(seed):
    """{name: (array, case)}; of the Lorenz system nothing is asked but not to be wrong."""
    rng = np.random.default_rng(seed)
    start = rng.uniform(1, 2, 2)
    return {
        "spiral": (spiral(rng, 0.98, 0.0), "origin"),
        "noisy spiral": (spiral(rng, 0.98, 0.02), "origin"),
        "noisy spiral to a point": (spiral(rng, 0.97, 0.03, rest=(3.0, -1.0)), "fixed-point"),
        "noisy circle": (spiral(rng, 1.0, 0.05), "invariant-set"),
        "van der Pol, one column": (flow(van_der_pol, start, 60, 1200)[:, :1], "invariant-set"),
        "Lorenz": (flow(lorenz, [*start, 20], 30, 1500), "invariant-set"),
        "snapshots": (waves(rng), "invariant-set"),
    }
