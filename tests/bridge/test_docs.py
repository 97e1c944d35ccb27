"""The pages run, and what is recorded is whole."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from koopsim.bridge import linearise, observe
from koopsim.bridge.cells import BETA, STEP, LimitCycle, example_inputs
from koopsim.bridge.distill import DistillWarning
from koopsim.implicit import DEQ, UnconvergedWarning

HOUSE = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["bridge", "invariant-sets"])
def test_the_page_runs(name):
    page = HOUSE / "docs" / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert blocks
    names = {"__name__": "page"}
    with warnings.catch_warnings():
        if name == "invariant-sets":
            warnings.simplefilter("ignore", DistillWarning)  # what the page tells of
        for block in blocks:
            exec(compile(block, str(page), "exec"), names)


def test_limit_cycle():
    cell, x = LimitCycle(), example_inputs(6, 3)
    with pytest.warns(UnconvergedWarning):
        _, info = DEQ(cell, solver="picard", max_steps=100)(x)
    assert not info.converged.any()
    seen = observe(cell, x, steps=200)
    assert seen.case == "invariant-set"
    assert seen.agreement["agree"] == 1
    mu, gamma = cell.parameters_of(x)
    angles = [float(v.angles.max()) for v in seen.verdicts]
    assert np.allclose(angles, ((gamma - BETA * mu) * STEP)[:, 0], atol=1e-6)
    assert not any(local.stable for local in linearise(cell, x))  # the centre, where it is found, repels


@pytest.mark.parametrize("name", ["bridge-steps", "invariant-sets"])
def test_results_are_whole(name):
    result = json.loads((HOUSE / "results" / f"{name}.json").read_text())
    assert {"what", "environment"} <= result.keys()


def test_the_recorded_densities_reach_what_was_asked():
    result = json.loads((HOUSE / "results" / "invariant-sets.json").read_text())
    for row in result["logistic"]:
        assert row["points"] == 100_000
        assert row["l1_error"] <= 0.02
        assert row["seconds"] < 2
    assert [row["target"] for row in result["cells"]] == ["invariant-set"] * 3 + ["equilibrium"]
