"""Whoever calls a training finds PyTorch's settings as they were, also where it fails."""

import numpy as np
import pytest
import torch
from small_search import CPU, tiny_run, tiny_search

import koopsim
from koopsim.engine.as_it_was import torch_as_it_was
from koopsim.fitting import FitSettings
from koopsim.pictures import Picture
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.training import Session, start_run


@pytest.fixture
def settings():
    """Settings of somebody's own, which no training of ours chooses."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = False
    yield lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def test_after_a_training(settings, tmp_path):
    start_run(tiny_run(precision="float32"), tmp_path / "run", "a run", Session(CPU))
    assert settings() == ("medium", False)


def test_after_a_search(settings, tmp_path):
    search = tiny_search(trials=2, batches=(16,))
    LocalSearch(search, SearchDirectory.create(tmp_path / "search", search), Session(CPU)).run()
    assert settings() == ("medium", False)


def test_after_a_fit(settings):
    picture = Picture("dots", np.zeros((8, 8, 3), np.uint8))
    koopsim.fit(picture, FitSettings(features=4, hidden=4, steps=2), device="cpu", progress=False)
    assert settings() == ("medium", False)


def test_after_a_failure(settings):
    with pytest.raises(ZeroDivisionError), torch_as_it_was():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        raise ZeroDivisionError
    assert settings() == ("medium", False)
