"""Doors of the library that are no verbs, as the campaign knocks at them: `@pickle FILE [KIND]`, `@unpickle FILE`,
`@save RUN FILE` (what `koopsim.load(FILE)` and `koopsim predict FILE` read again).

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
from koopsim.files.writing import write_atomically


def estimator(kind: str) -> Any:
    import koopsim.sklearn

    rows = np.random.default_rng(0).normal(size=(60, 3))
    y = rows[:, 0] > 0 if kind.endswith("Classifier") else rows[:, 0] - rows[:, 1]
    return getattr(koopsim.sklearn, kind)(epochs=2, random_state=0).fit(rows, y)


def cell(z: Any, x: Any) -> Any:
    """For `spectrum --cell doors:cell`."""
    return 0.5 * z.tanh() + x[..., :1]


def enter(argv: list[str]) -> int:
    """The status a verb would have: 0, or 2 and one line."""
    door, file = argv[0], Path(argv[-1])
    if door == "@save":
        import koopsim

        koopsim.load(argv[1]).save(file)
        return 0
    file = Path(argv[1])
    kind = argv[2] if len(argv) > 2 else "DEQRegressor" if file.name.startswith("deq") else "SIMClassifier"
    made = estimator(kind)
    state = made.__getstate__()
    if door == "@pickle":
        write_atomically(file, state["_tensors"])
        return 0
    other = type(made).__new__(type(made))
    try:
        other.__setstate__(state | {"_tensors": file.read_bytes()})
        answer = other.predict_proba if kind.endswith("Classifier") else other.predict
        answers = answer(np.random.default_rng(1).normal(size=(5, 3)))
    except (KoopsimError, ValueError) as error:  # scikit-learn's own are ValueErrors
        print(f"koopsim: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answers.round(9).tolist()))
    return 0
