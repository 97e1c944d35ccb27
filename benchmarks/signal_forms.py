"""Six sounds and six shapes in closed form, for signals.py: of different character, seeded, without files.

sound   (n,) in [0, 1] over t in [0, 1):                  chord, chirp, speech, string, clicks, noise
shape   (n, n, n) in [0, 1], 1 inside, a soft edge of two points: torus, bowl, stairs, gyroid, spring, pebbles
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TAU = 2 * np.pi


def chord(t: Array) -> Array:
    """Five notes whose pitch wavers, and two struck ones."""
    waver = 3e-4 * np.sin(TAU * 5 * t)
    y = sum(np.sin(TAU * f * (t + waver) + f) / (k + 2) for k, f in enumerate((110, 138.6, 164.8, 220, 440)))
    for start, f in ((0.3, 330), (0.7, 494)):
        y = y + _since(t, start, 12) * np.sin(TAU * f * np.maximum(t - start, 0))
    return np.asarray(y)


def chirp(t: Array) -> Array:
    """One note that rises from 20 to 500 cycles."""
    return np.sin(TAU * (20 + 240 * t) * t)


def speech(t: Array) -> Array:
    """Five syllables: harmonics of a wavering voice under two formants that move, and breath between them."""
    phase = 60 * t + 1.5 * np.sin(TAU * 3 * t)  # cycles
    first, second = 140 + 60 * np.sin(TAU * 2.3 * t), 380 + 90 * np.sin(TAU * 1.7 * t + 1)
    syllables = ((0.1, 0.06), (0.28, 0.04), (0.47, 0.08), (0.7, 0.05), (0.88, 0.06))
    loud = sum(np.exp(-(((t - middle) / width) ** 2)) for middle, width in syllables)
    y = np.zeros_like(t)
    for k in range(1, 10):
        f = 60 * k
        y += (np.exp(-(((f - first) / 80) ** 2)) + 0.5 * np.exp(-(((f - second) / 100) ** 2))) * np.sin(TAU * k * phase)
    return loud * y + 0.1 * (1.5 - loud) * _band(t, 300, 600, seed=1)


def string(t: Array) -> Array:
    """Four plucks of a string: harmonics that die out, the higher the sooner."""
    y = np.zeros_like(t)
    for start, f in ((0.03, 55), (0.27, 82.4), (0.5, 110), (0.74, 73.4)):
        for k in range(1, 7):
            y += _since(t, start, 5 * (1 + 0.4 * k)) * np.sin(TAU * f * k * (t - start)) / k
    return y


def clicks(t: Array) -> Array:
    """Forty pulses of either sign at irregular times, each six samples of 4,096 wide."""
    random = np.random.default_rng(2)
    at, height = np.sort(random.random(40)), random.choice((-1, 1), 40) * random.uniform(0.4, 1, 40)
    return sum((h * np.exp(-(((t - a) / 1.5e-3) ** 2)) for a, h in zip(at, height, strict=True)), np.zeros_like(t))


def noise(t: Array) -> Array:
    """Two hundred waves of up to 400 cycles, of random phase."""
    return _band(t, 0, 400, seed=3)


def torus(x: Array, y: Array, z: Array) -> Array:
    """A torus about a ball."""
    return np.minimum(np.hypot(np.hypot(x, y) - 0.3, z) - 0.1, np.sqrt(x**2 + y**2 + z**2) - 0.15)


def bowl(x: Array, y: Array, z: Array) -> Array:
    """A thin wall: a sphere's, open above."""
    return np.maximum(np.abs(np.sqrt(x**2 + y**2 + z**2) - 0.36) - 0.035, z - 0.12)


def stairs(x: Array, y: Array, z: Array) -> Array:
    """Three steps and a pillar: flat faces, edges and corners."""
    steps = [_box(x, y, z, (-0.25 + 0.25 * k, 0, -0.3 + 0.08 * k), (0.125, 0.35, 0.1 + 0.08 * k)) for k in range(3)]
    return np.min([*steps, _box(x, y, z, (-0.25, 0.2, 0.1), (0.07, 0.07, 0.35))], axis=0)


def gyroid(x: Array, y: Array, z: Array) -> Array:
    """The minimal surface, two periods a side: half of space is inside."""
    a, b, c = (2 * TAU * axis for axis in (x, y, z))
    return (np.sin(a) * np.cos(b) + np.sin(b) * np.cos(c) + np.sin(c) * np.cos(a)) / (2 * TAU * 1.2)


def spring(x: Array, y: Array, z: Array) -> Array:
    """A wire in three turns about an axis."""
    height = (z / 0.25 - np.arctan2(y, x) / TAU + 0.5) % 1 - 0.5  # turns from the nearest wire
    return np.maximum(np.hypot(np.hypot(x, y) - 0.28, 0.25 * height) - 0.065, np.abs(z) - 0.38)


def pebbles(x: Array, y: Array, z: Array) -> Array:
    """Fourteen balls of random size here and there."""
    random = np.random.default_rng(4)
    balls = zip(random.uniform(-0.38, 0.38, (14, 3)), random.uniform(0.07, 0.16, 14), strict=True)
    return np.min([np.sqrt((x - a) ** 2 + (y - b) ** 2 + (z - c) ** 2) - r for (a, b, c), r in balls], axis=0)


SOUNDS: tuple[Callable[[Array], Array], ...] = (chord, chirp, speech, string, clicks, noise)
SHAPES: tuple[Callable[[Array, Array, Array], Array], ...] = (torus, bowl, stairs, gyroid, spring, pebbles)
NAMES = tuple(form.__name__ for pair in zip(SOUNDS, SHAPES, strict=True) for form in pair)  # a sound, a shape, ...


def sampled(name: str, samples: int, side: int) -> tuple[str, Array, Array]:
    """What it is, "sound" or "shape"; the places of its samples in [0, 1)^d, (n, d); their values in [0, 1], (n,)."""
    for form in SOUNDS:
        if form.__name__ == name:
            t = np.arange(samples) / samples
            y = form(t)
            return "sound", t[:, None], (y - y.min()) / (y.max() - y.min())
    (shape,) = (form for form in SHAPES if form.__name__ == name)
    axis = np.arange(side) / side
    places = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    distance = shape(*(places - 0.5).T)
    return "shape", places, 1 / (1 + np.exp(np.clip(distance * side, -50, 50)))


def _since(t: Array, start: float, decay: float) -> Array:
    """The loudness of what is struck at `start` and dies out."""
    return np.where(t > start, 1.0, 0.0) * np.exp(-decay * np.maximum(t - start, 0))


def _band(t: Array, low: float, high: float, seed: int, waves: int = 200) -> Array:
    """Noise of these frequencies, of deviation 1."""
    random = np.random.default_rng(seed)
    f, phase = random.uniform(low, high, waves), random.uniform(0, TAU, waves)
    return np.sqrt(2 / waves) * np.sin(TAU * t[:, None] * f + phase).sum(1)


def _box(x: Array, y: Array, z: Array, middle: tuple[float, ...], half: tuple[float, ...]) -> Array:
    return np.max([np.abs(a - m) - h for a, m, h in zip((x, y, z), middle, half, strict=True)], axis=0)
