"""The page to play with computes what `analyze` computes: case, limit and orbit of a hundred matrices, by node."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from koopsim.spectral import analyze

SCRIPT = Path(__file__).parents[2] / "docs" / "javascripts" / "spectrum.js"
ASK = """
const S = require(process.argv[1]);
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map((blocks) => {
  const A = S.matrix(blocks), z = new Array(A.length).fill(0).map((_, i) => 1 / (1 + i));
  return { A, case: S.caseOf(blocks), limit: S.limit(blocks), orbit: S.orbit(A, z, 12) };
})));
"""


def drawn(random: np.random.Generator) -> list[dict]:
    """One to three blocks: inside, outside, on the circle, at 1 and at -1, some of them Jordan blocks."""
    found = []
    for _ in range(random.integers(1, 4)):
        kind = random.choice(["inside", "outside", "turning", "one", "minus one"], p=[0.4, 0.1, 0.2, 0.2, 0.1])
        r = {"inside": random.uniform(0.1, 0.9), "outside": random.uniform(1.05, 1.4)}.get(kind, 1.0)
        angle = {"one": 0.0, "minus one": np.pi}.get(kind, random.uniform(0.2, 2.9))
        real = kind in ("one", "minus one") or (random.random() < 0.3 and kind != "turning")
        re, im = (r * np.sign(np.cos(angle)), 0.0) if real else (r * np.cos(angle), r * np.sin(angle))
        found.append({"re": float(re), "im": float(im), "size": int(random.choice([1, 1, 1, 2]))})
    return found


@pytest.fixture(scope="module")
def answers():
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    random = np.random.default_rng(0)
    asked = [drawn(random) for _ in range(100)]
    command = ["node", "-e", ASK, str(SCRIPT)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return list(zip(asked, json.loads(done.stdout), strict=True))


def test_the_cases_are_those_of_analyze(answers):
    seen = set()
    for blocks, answer in answers:
        assert analyze(np.array(answer["A"])).case == answer["case"], blocks
        seen.add(answer["case"])
    assert seen == {"origin", "fixed-point", "invariant-set", "divergent"}


def test_the_limits_are_those_of_analyze(answers):
    compared = 0
    for _, answer in answers:
        limit = analyze(np.array(answer["A"])).limit
        assert (limit is None) == (answer["limit"] is None)
        if limit is not None:
            np.testing.assert_allclose(answer["limit"], limit, atol=1e-6)
            compared += 1
    assert compared > 20


def test_the_eigenvalues_are_the_dots(answers):
    for blocks, answer in answers:
        asked = []
        for b in blocks:
            z = complex(b["re"], b["im"])
            asked += ([z, z.conjugate()] if b["im"] > 0 else [z]) * b["size"]
        found = np.linalg.eigvals(np.array(answer["A"]))
        assert np.abs(np.poly(found) - np.poly(asked)).max() < 1e-6 * np.abs(np.poly(asked)).max()


def test_the_orbit_is_that_of_the_matrix(answers):
    for _, answer in answers:
        A, orbit = np.array(answer["A"]), np.array(answer["orbit"])
        last = np.linalg.matrix_power(A, len(orbit) - 1) @ orbit[0]
        np.testing.assert_allclose(orbit[-1], last, rtol=1e-8, atol=1e-9)
