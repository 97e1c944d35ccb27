"""Doors of the library that are no verbs, as the campaign knocks at them: `@pickle FILE`, `@unpickle FILE`.

An estimator's pickle holds its settings and safetensors; the safetensors are what can be changed without a pickle's own
dangers (which nobody can defend against: unpickling runs what the file says).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.errors import KoopsimError


def estimator() -> Any:
    from koopsim.sklearn import SIMClassifier

    rows = np.random.default_rng(0).normal(size=(60, 3))
    return SIMClassifier(epochs=2, random_state=0).fit(rows, rows[:, 0] > 0)


def enter(argv: list[str]) -> int:
    """The status a verb would have: 0, or 2 and one line."""
    door, file = argv[0], Path(argv[1])
    made = estimator()
    state = made.__getstate__()
    if door == "@pickle":
        file.write_bytes(state["_tensors"])
        return 0
    other = type(made).__new__(type(made))
    try:
        other.__setstate__(state | {"_tensors": file.read_bytes()})
        answers = other.predict_proba(np.random.default_rng(1).normal(size=(5, 3)))
    except (KoopsimError, ValueError) as error:  # scikit-learn's own are ValueErrors
        print(f"koopsim: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answers.round(9).tolist()))
    return 0
