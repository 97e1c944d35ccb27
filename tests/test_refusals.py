"""What is refused, and in which words: every setting of every configuration at its edges, kept in kept_numbers.json.

A bound that moves by one, a check that is turned round, a sentence about another value: each is noticed.
"""

import dataclasses

import numpy as np
import pytest
from kept_numbers import same
from sklearn.base import clone

from koopsim.config import Recipe
from koopsim.errors import KoopsimError
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.reversible import Reversible
from koopsim.presets import PRESETS
from koopsim.sklearn import DEQClassifier, MonDEQClassifier, SIMClassifier, SIMRegressor
from koopsim.spaces import Choice, LogUniform, SearchSpace, Uniform
from koopsim.spectral import EDMD, Delays, Monomials, Nystrom, RandomFourier

NUMBERS = (-1, 0, 1, 2, 3, 10, 0.0, 0.5, 0.999, 1.0, 1.5, -0.5, 1e-12)


def edges(value):
    """Values of the same kind at which checks may turn."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [n for n in NUMBERS if isinstance(n, int)]
    if isinstance(value, float):
        return [float(n) for n in NUMBERS]
    if isinstance(value, str):
        return ["", "nothing"]
    if isinstance(value, tuple):
        return [(), value[:1], value + value, tuple(0 if isinstance(v, int | float) else "" for v in value)]
    return [1, 0.5, 0] if value is None else []


def tried(change):
    try:
        change()
    except (KoopsimError, ValueError, UserWarning) as error:  # a warning is an error in tests, and said once
        return str(error)[:160]
    except (TypeError, AttributeError) as error:  # of a kind that the command line does not let through
        return type(error).__name__
    return "taken"


def of_config(config):
    found = {}
    for field in dataclasses.fields(config):
        if field.init:
            for value in edges(getattr(config, field.name)):
                found[f"{field.name}={value!r}"] = tried(lambda: dataclasses.replace(config, **{field.name: value}))  # noqa: B023
    return found


def test_refusals_of_configurations():
    seen, found = set(), {}
    for preset in PRESETS.values():
        run = preset.run
        for config in (run.model, run.task, getattr(run.model, "lift", None), getattr(run.model, "fourier", None)):
            if dataclasses.is_dataclass(config) and type(config) not in seen:
                seen.add(type(config))
                found[type(config).__name__] = of_config(config)
    found["Recipe"] = of_config(Recipe())
    for name, refused in found.items():
        same(f"refusals/{name}", refused)


@pytest.mark.parametrize("kind", [SIMClassifier, SIMRegressor, DEQClassifier, MonDEQClassifier])
def test_refusals_of_estimators(kind):
    rows = np.random.default_rng(0).normal(size=(12, 2))
    labels = rows[:, 0] if kind is SIMRegressor else rows[:, 0] > 0
    found = {}
    for name, value in kind().get_params().items():
        if name not in ("device", "epochs", "verbose", "random_state"):
            for edge in edges(value)[:7]:
                if not isinstance(edge, int | float) or edge <= 2:
                    model = kind(**{"epochs": 1, "random_state": 0} | {name: edge})
                    found[f"{name}={edge!r}"] = tried(lambda: model.fit(rows, labels))  # noqa: B023
    same(f"refusals/{kind.__name__}", found)


SPECTRAL = {
    "edmd": EDMD(), "delays": EDMD(Delays(1)), "monomials": EDMD(Monomials(1)), "rff": EDMD(RandomFourier(4)),
    "nystrom": EDMD(Nystrom(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECTRAL)
def test_refusals_of_spectral_fits(name):
    z = np.stack([np.cos(np.arange(20) / 3), np.sin(np.arange(20) / 3)], axis=1)
    found = {}
    for key, value in SPECTRAL[name].get_params().items():
        for edge in edges(value) if key != "device" else ():
            model = clone(SPECTRAL[name])
            found[f"{key}={edge!r}"] = tried(lambda: model.set_params(**{key: edge}).fit(z))  # noqa: B023
    data = {"short": z[:1], "two": z[:2], "one column": z[:, 0], "nan": np.where(z > 0.9, np.nan, z), "cube": z[None]}
    for said, part in data.items():
        found[said] = tried(lambda: clone(SPECTRAL[name]).fit(part))  # noqa: B023
    same(f"refusals/spectral {name}", found)


def test_blocks_of_one_pair_are_the_same_fit():
    z = np.stack([np.cos(np.arange(20) / 3), 0.9 ** np.arange(20)], axis=1)
    whole, small = EDMD(Monomials(1)).fit(z), EDMD(Monomials(1), chunk=1).fit(z)
    np.testing.assert_allclose(np.sort_complex(small.eigenvalues_), np.sort_complex(whole.eigenvalues_), atol=1e-9)
    whole, small = EDMD().fit(z), EDMD(chunk=1).fit(z)
    np.testing.assert_allclose(np.abs(small.predict(z)), np.abs(whole.predict(z)), atol=1e-7)


def test_refusals_of_pieces():
    found = {}
    for n in NUMBERS:
        found[f"tolerance {n}"] = tried(lambda: Tolerance(float(n)))  # noqa: B023
        found[f"reversible {n}"] = tried(lambda: Reversible(float(n)))  # noqa: B023
        found[f"log {n}"] = tried(lambda: LogUniform(float(n), 2.0))  # noqa: B023
        found[f"uniform {n}"] = tried(lambda: Uniform(float(n), 2.0))  # noqa: B023
        for key in ("trials", "max_t", "grace", "reduction"):
            space = {"trials": 4, "max_t": 4, "grace": 1} | {key: n}
            found[f"space {key} {n}"] = tried(lambda: SearchSpace({"recipe.batch_size": Choice((1, 2))}, **space))  # noqa: B023
    same("refusals/pieces", found)
