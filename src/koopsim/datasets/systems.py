"""Sequences made from a seed, of which one knows what there is to be learnt.

oscillator    z'' + 0.1 z' + z = noise, seen through noise: one channel, what is to come follows the last swings
lorenz        x' = 10 (y - x), y' = x (28 - z) - y, z' = x y - 8/3 z: three channels, chaotic
counts        Poisson counts of a day of 24 and a week of 7 with a slow drift: whole numbers
gestures      six families of two-channel curves, of lengths that differ, turned, stretched and noisy: to be named
phases        a walk that rests, runs or turns, a label a step
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.sequences import Sequences

Array = NDArray[np.float64]
DAY, WEEK = 24, 7


def oscillator(count: int, random: np.random.Generator) -> Sequences:
    """A damped oscillator that noise keeps going, a sample every 0.4, observed with noise."""
    dt, inner = 0.04, 10
    z, v = 1.0, 0.0
    early = 250  # until the start is forgotten
    seen = np.empty((count + early, 1))
    kicks = random.normal(size=(count + early, inner)) * 0.35 * np.sqrt(dt)
    for t in range(count + early):
        for k in range(inner):
            v += dt * (-0.1 * v - z) + kicks[t, k]
            z += dt * v
        seen[t, 0] = z
    seen = seen[early:]
    seen += 0.1 * random.normal(size=seen.shape)
    return _one("oscillator", seen, ("z",))


def lorenz(count: int, random: np.random.Generator) -> Sequences:
    """By Runge-Kutta, a sample every 0.05, from a random start on the attractor, observed with a little noise."""

    def rate(s: Array) -> Array:
        x, y, z = s
        return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    state, dt = np.array([1.0, 1.0, 25.0]) + random.normal(size=3), 0.01
    found = np.empty((count, 3))
    for t in range(-200, count):
        for _ in range(5):
            a = rate(state)
            b = rate(state + dt / 2 * a)
            c = rate(state + dt / 2 * b)
            d = rate(state + dt * c)
            state = state + dt / 6 * (a + 2 * b + 2 * c + d)
        if t >= 0:
            found[t] = state
    return _one("lorenz", found + 0.1 * random.normal(size=found.shape), ("x", "y", "z"))


def counts(count: int, random: np.random.Generator) -> Sequences:
    """Customers an hour."""
    t = np.arange(count)
    hour, day = t % DAY, t // DAY % WEEK
    drift = np.cumsum(random.normal(size=count)) * 0.01
    level = 2.2 + drift - drift.mean() + 1.1 * np.sin(2 * np.pi * (hour - 8) / DAY) + 0.5 * (day >= 5)
    level += 0.4 * np.sin(4 * np.pi * hour / DAY)
    return _one("counts", random.poisson(np.exp(np.clip(level, -2, 5)))[:, None], ("customers",))


def gestures(count: int, random: np.random.Generator) -> Sequences:
    """Circles, eights, zigzags, spirals, waves and bows."""
    classes = ("bow", "circle", "eight", "spiral", "wave", "zigzag")
    values, labels = [], random.integers(len(classes), size=count)
    for label in labels:
        T = int(random.integers(30, 61))
        s = np.linspace(0, 1, T) ** random.uniform(0.7, 1.4)
        turn = 2 * np.pi * s * random.uniform(0.85, 1.15)
        curve = {
            "bow": (s - 0.5, 1.6 * (s - 0.5) ** 2), "circle": (0.5 * np.cos(turn), 0.5 * np.sin(turn)),
            "eight": (0.5 * np.sin(turn), 0.35 * np.sin(2 * turn)),
            "spiral": (0.6 * s * np.cos(1.5 * turn), 0.6 * s * np.sin(1.5 * turn)),
            "wave": (s - 0.5, 0.2 * np.sin(2 * turn)),
            "zigzag": (s - 0.5, 0.2 * np.abs((4 * s) % 2 - 1) * 2 - 0.2),
        }[classes[label]]  # fmt: skip
        angle = random.uniform(-0.8, 0.8)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = np.stack(curve, axis=1) @ rotation * random.uniform(0.6, 1.4, size=2)
        values.append((points + random.normal(size=2) * 0.3 + 0.12 * random.normal(size=(T, 2))).astype(np.float32))
    return Sequences("gestures", values, ("x", "y"), _numbers(count), labels=labels.astype(np.int64), classes=classes)


def phases(count: int, random: np.random.Generator) -> Sequences:
    """Speeds of a walker: near nothing, large, or turning its sign, for a random while each."""
    classes, values, tags = ("rests", "runs", "turns"), [], []
    for _ in range(count):
        T = int(random.integers(50, 81))
        own: list[int] = []
        while len(own) < T:
            own += [int(random.integers(3))] * int(random.integers(8, 20))
        tag = np.array(own[:T], np.int64)
        t = np.arange(T)
        speed = np.select([tag == 0, tag == 1], [np.zeros(T), np.ones(T)], 0.8 * np.sin(t))
        values.append((speed + 0.35 * random.normal(size=T)).astype(np.float32)[:, None])
        tags.append(tag)
    return Sequences("phases", values, ("speed",), _numbers(count), tags=tags, classes=classes)


SYSTEMS: dict[str, Callable[[int, np.random.Generator], Sequences]] = {
    "oscillator": oscillator, "lorenz": lorenz, "counts": counts, "gestures": gestures, "phases": phases,
}  # fmt: skip


def _one(name: str, x: Array, channels: tuple[str, ...]) -> Sequences:
    return Sequences(name, [x.astype(np.float32)], channels, (name,))


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
