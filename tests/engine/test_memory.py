"""How many members fit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.engine.memory import device_memory, fitting_groups


@given(count=st.integers(1, 200), each=st.integers(1, 10**12), at_once=st.none() | st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_groups_cover_everything_once_and_fit(count, each, at_once):
    cpu = torch.device("cpu")
    parts = fitting_groups(count, each, cpu, at_once)
    assert [p for part in parts for p in part] == list(range(count))
    longest = max(map(len, parts))
    assert longest - min(map(len, parts)) <= 1
    assert longest <= (at_once or max(1, device_memory(cpu) // each))
