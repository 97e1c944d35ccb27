"""Figures 1 and 3 are computed, so they can be wrong: the points in them are held to closed forms."""

import math

import numpy as np
import pytest
import torch

from koopsim.bridge.cells import LimitCycle, example_inputs
from koopsim.report.overview import Spiral, figure1, figure3, paths, ring_of_measure, spirals


def test_the_sim_of_figure_1_is_where_the_iteration_goes():
    walked, answer = spirals()
    further = torch.tensor(walked[:, 1])  # z_1 = x, as z_0 = 0
    there = paths(Spiral(), further, 300)[:, -1]
    assert np.allclose(answer, there, rtol=0, atol=1e-9)
    assert np.abs(walked[:, -1] - answer).max() > 1e-3  # the DEQ is still on its way


def test_the_ring_of_figure_3_is_the_cycle():
    x = example_inputs(300, 1).double()
    radius = math.sqrt(float(LimitCycle().parameters_of(x[:1])[0]))
    assert ring_of_measure(x) == pytest.approx(radius, rel=0.02)
    orbit = paths(LimitCycle(), x[:1], 400)[0]
    assert np.allclose(np.linalg.norm(orbit[200:], axis=1), radius, rtol=1e-6)


def test_both_are_drawn(tmp_path):
    files = figure1(tmp_path) + figure3(tmp_path)
    assert [file.name for file in files] == ["figure1.png", "figure1.svg", "figure3.png", "figure3.svg"]
    assert all(file.stat().st_size > 10_000 for file in files)
