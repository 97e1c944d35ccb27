"""cuDNN tries out kernels where steps are many: not for a pass over a split, nor for an epoch's last batch."""

import pytest
import torch

from koopsim.nn.trials import no_trials


@pytest.mark.parametrize("before", [True, False])
def test_the_setting_comes_back(monkeypatch, before):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    with no_trials(False):
        assert torch.backends.cudnn.benchmark is before
    with pytest.raises(ValueError, match="inside"), no_trials():
        assert torch.backends.cudnn.benchmark is False
        raise ValueError("inside")
    assert torch.backends.cudnn.benchmark is before


def test_who_tries(monkeypatch):
    """A graph of the epoch's own batch is captured with trials, the last one's without, and no evaluation has any."""
    from koopsim.config import ClassificationConfig
    from koopsim.engine import part
    from koopsim.engine.stacked import Stacked
    from koopsim.presets import run_of
    from koopsim.tasks import build_task

    seen = {}
    run, device = run_of("digits/sim-single"), torch.device("cpu")
    task = build_task(ClassificationConfig("digits", train=80, test=20), device)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    slots = Stacked([run], task, device, 1)
    assert torch.backends.cudnn.benchmark  # the engine's choice

    class Recorder:
        def __init__(self, device):
            pass

        def record(self, step, state, rehearse):
            seen[slots.part.size] = torch.backends.cudnn.benchmark

    monkeypatch.setattr(part, "Recorder", Recorder)
    for size in (slots.part.feed.size_at(0), 7):
        slots.part.size = size
        slots.part.graph()
    assert seen == {slots.part.feed.size_at(0): True, 7: False}
    model, looked = slots.part.members.model(0), []
    model.register_forward_pre_hook(lambda *words: looked.append(torch.backends.cudnn.benchmark))
    task.evaluate(model, "test")
    assert looked == [False]
