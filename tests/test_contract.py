from dataclasses import replace

import pytest
from contract import keeps_the_contract

from koopsim.config import ClassificationConfig, CopyMemoryConfig
from koopsim.presets import PRESETS, run_of


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", [name for name, p in PRESETS.items() if p.run and not name.startswith("image/")])
def test_contract(name):
    run = run_of(name, "smoke")
    tasks = {
        CopyMemoryConfig: CopyMemoryConfig(horizon=5, train=200, valid=20, test=10),
        ClassificationConfig: ClassificationConfig("digits", train=300, test=20),
    }
    keeps_the_contract(replace(run, task=tasks[type(run.task)]))
