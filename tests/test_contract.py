"""Every registered model on every task that has a preset for it, pictures included."""

from dataclasses import replace

import pytest
from contract import keeps_the_contract

from koopsim.presets import PRESETS, run_of

SMALL = {  # what is cut further than the smoke scale already does, by entries of the task's configuration
    "horizon": 5, "train": 300, "valid": 20, "test": 20, "size": 16, "count": 2, "steps_an_epoch": 6,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", list(PRESETS))
def test_contract(name):
    run = run_of(name, "smoke")
    own = {key: value for key, value in SMALL.items() if isinstance(getattr(run.task, key, None), int)}
    keeps_the_contract(replace(run, task=replace(run.task, **own)))
