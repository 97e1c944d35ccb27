"""The pages run, and the limit cycle does what its page says."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from koopsim.bridge import linearise, observe
from koopsim.implicit import DEQ, UnconvergedWarning

HOUSE = Path(__file__).parents[2]


def test_the_page_runs():
    page = HOUSE / "docs" / "bridge.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    exec(compile(block, str(page), "exec"), {"__name__": "page"})


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("limit_cycle", HOUSE / "benchmarks" / "bridge_limit_cycle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_limit_cycle(example):
    cell, x = example.StuartLandau(), example.inputs(6, 3)
    with pytest.warns(UnconvergedWarning):
        _, info = DEQ(cell, solver="picard", max_steps=100)(x)
    assert not info.converged.any()
    seen = observe(cell, x, steps=200)
    assert seen.case == "invariant-set"
    assert seen.agreement["agree"] == 1
    mu, gamma = cell.parameters_of(x)
    angles = [float(v.angles.max()) for v in seen.verdicts]
    assert np.allclose(angles, ((gamma - example.BETA * mu) * example.DT)[:, 0], atol=1e-6)
    assert not any(local.stable for local in linearise(cell, x))  # the centre, where it is found, repels


def test_sims_learn_the_orbit(example):
    cell, x, x_test = example.StuartLandau(), example.inputs(500, 1), example.inputs(100, 2)
    y, y_test = (torch.stack([m.sqrt(), torch.special.i0(m.sqrt())], 1) for m in (mu_of(cell, x), mu_of(cell, x_test)))
    measured = example.functionals(cell, x_test[:20], 500, 1000)
    assert torch.allclose(measured, y_test[:20], atol=5e-3)
    centre, spread = y.mean(0), y.std(0)
    for fourier in (None, example.FourierConfig(64, bandwidth=5.0)):
        sim = example.fit("test", fourier, x, (y - centre) / spread, epochs=60)
        with torch.no_grad():
            error = (sim(x_test.float()).double() * spread + centre - y_test).square().mean(0).sqrt() / y_test.std(0)
        assert error.max() < 0.1


def mu_of(cell, x):
    return cell.parameters_of(x)[0][:, 0]


@pytest.mark.parametrize("name", ["bridge-steps", "bridge-limit-cycle"])
def test_results_are_whole(name):
    result = json.loads((HOUSE / "results" / f"{name}.json").read_text())
    assert {"what", "environment"} <= result.keys()
