"""Tables that are always there: scikit-learn's own, by name; and any file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.table import read_table

NAMED = {"breast-cancer": "load_breast_cancer", "wine": "load_wine", "iris": "load_iris", "diabetes": "load_diabetes"}
TARGET = "target"


def load_table(what: str, needed: Sequence[str] = ()) -> DataTable:
    """A table by its name or its path."""
    if what not in NAMED:
        return read_table(Path(what), needed)
    from sklearn import datasets

    found: Any = getattr(datasets, NAMED[what])()
    columns = [Column(name, found.data[:, j].astype(np.float64)) for j, name in enumerate(found.feature_names)]
    if "target_names" in found:
        words = tuple(map(str, found.target_names))
        return DataTable(what, [*columns, Column(TARGET, found.target.astype(np.int32), words)])
    return DataTable(what, [*columns, Column(TARGET, found.target.astype(np.float64))])
