from dataclasses import replace

import pytest
from contract import keeps_the_contract

from koopsim.config import CopyMemoryConfig
from koopsim.presets import PRESETS, run_of


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.run])
def test_contract(name):
    run = run_of(name, "smoke")
    keeps_the_contract(replace(run, task=CopyMemoryConfig(horizon=5, train=200, valid=20, test=10)))
