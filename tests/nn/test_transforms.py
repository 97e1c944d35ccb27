"""Triton is imported ahead where a step will need it, and nowhere else."""

import threading

import pytest
import torch

from koopsim.nn import transforms


@pytest.mark.parametrize(("device", "triton", "begun"), [("cuda", True, 1), ("cuda", False, 0), ("cpu", True, 0)])
def test_kernels_are_imported_ahead_on_a_gpu_alone(device, triton, begun, monkeypatch):
    imported = []
    monkeypatch.setattr(transforms, "TRITON", triton)
    monkeypatch.setattr(
        transforms, "import_module", lambda name: imported.append((name, threading.current_thread().name))
    )
    transforms.import_ahead(torch.device(device))
    for thread in threading.enumerate():
        if thread.name == "koopsim-kernels":
            thread.join()
    assert imported == [("koopsim.nn.kernels.adam", "koopsim-kernels")] * begun
