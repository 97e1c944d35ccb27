"""Ten tables and the models that are compared on them, each with its defaults and with what a search may vary.

Four tables are scikit-learn's own; six are generated, their structure known: Friedman's two functions, Hastie's sphere,
two moons, classes of Gaussian clusters, and bands, a sum of steps along the axes, which is what a tree is. The defaults
of `koopsim.sklearn`, and what a search over a SIM or an MLP draws from, were chosen on other tables (table_tuning.py,
results/tables-tuning.json): of the wide ranges first tried each keeps the part that answered best there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import loguniform
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from koopsim.sklearn import SIMClassifier, SIMRegressor

Rows = tuple[np.ndarray, np.ndarray]


def bands(seed: int, rows: int = 1000) -> Rows:
    """y = 2 [x0 > 0.2] [x1 < 0.6] + [x2 > 0.5] - [x3 > 0.7] + noise, six columns besides that say nothing."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(rows, 10))
    y = 2.0 * (X[:, 0] > 0.2) * (X[:, 1] < 0.6) + (X[:, 2] > 0.5) - 1.0 * (X[:, 3] > 0.7)
    return X, y + 0.2 * random.normal(size=rows)


CLASSES: dict[str, Callable[[int], Rows]] = {
    "breast cancer": lambda seed: datasets.load_breast_cancer(return_X_y=True),
    "wine": lambda seed: datasets.load_wine(return_X_y=True),
    "digits": lambda seed: datasets.load_digits(return_X_y=True),
    "hastie": lambda seed: datasets.make_hastie_10_2(1500, random_state=seed),
    "moons": lambda seed: datasets.make_moons(600, noise=0.25, random_state=seed),
    "clusters": lambda seed: datasets.make_classification(
        1000, 20, n_informative=8, n_redundant=4, n_classes=3, n_clusters_per_class=2, random_state=seed
    ),
}
NUMBERS: dict[str, Callable[[int], Rows]] = {
    "diabetes": lambda seed: datasets.load_diabetes(return_X_y=True),
    "friedman 1": lambda seed: datasets.make_friedman1(1000, noise=1.0, random_state=seed),
    "friedman 2": lambda seed: datasets.make_friedman2(1000, noise=75.0, random_state=seed),
    "bands": bands,
}
TABLES = CLASSES | NUMBERS
MODELS = ("SIM", "MLP", "linear", "trees")


def classifies(table: str) -> bool:
    return table in CLASSES


def model(name: str, classes: bool, seed: int) -> Any:
    """With its defaults. Inputs of MLP and linear are scaled, and the MLP's targets too: a SIM does both by itself."""
    if name == "SIM":
        return (SIMClassifier if classes else SIMRegressor)(random_state=seed)
    if name == "trees":
        return (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(random_state=seed)
    if name == "linear":
        return make_pipeline(StandardScaler(), LogisticRegression() if classes else Ridge())
    if classes:
        return make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))
    inner = make_pipeline(StandardScaler(), MLPRegressor(random_state=seed))
    return TransformedTargetRegressor(inner, transformer=StandardScaler())


def space(name: str, classes: bool) -> dict[str, Any]:
    """What a search over the model draws from."""
    if name == "SIM":
        return {
            "tier": ["single", "single", "rff"], "width": [64, 128, 256], "hidden": [32, 64],
            "learning_rate": loguniform(4e-3, 1e-2), "weight_decay": loguniform(1, 5), "average": [0.9, 0.97],
        }  # fmt: skip
    if name == "trees":
        return {
            "learning_rate": loguniform(0.02, 0.3), "max_iter": [50, 100, 200], "max_leaf_nodes": [7, 15, 31],
            "min_samples_leaf": [5, 10, 20, 40], "l2_regularization": loguniform(1e-6, 10),
        }  # fmt: skip
    if name == "linear":
        return {"logisticregression__C" if classes else "ridge__alpha": loguniform(1e-4, 1e4)}
    prefix = "mlpclassifier__" if classes else "regressor__mlpregressor__"
    own = {
        "hidden_layer_sizes": [(100,), (200,), (100, 100)], "activation": ["relu", "tanh"],
        "alpha": loguniform(1e-4, 5), "learning_rate_init": loguniform(1e-3, 1.5e-2), "max_iter": [200, 400],
    }  # fmt: skip
    return {prefix + key: values for key, values in own.items()}
