"""Small searches, trial by trial: see kept_numbers.py."""

import pytest
import torch
from kept_numbers import same
from small_search import tiny_search

from koopsim.searching.carrying_out import How, start_search
from koopsim.training import Session


@pytest.mark.parametrize("name", ["copy/sim-two"])
def test_numbers_of_searches(name, tmp_path):
    search = tiny_search(name, trials=3, confirm=1, confirm_seeds=1)
    result = start_search(search, tmp_path / "s", How(Session(torch.device("cpu"))))
    kept = {k: result[k] for k in ("best", "trials", "confirmed", "chosen", "figures", "valid", "test") if k in result}
    trials = (tmp_path / "s" / "trials.csv").read_text().splitlines()
    head = trials[0].split(",")
    wanted = [i for i, h in enumerate(head) if "second" not in h and "time" not in h]

    def number(cell):
        try:
            return float(cell)
        except ValueError:
            return cell

    same(f"search/{name}/head", [head[i] for i in wanted])
    cells = [[number(row.split(",")[i]) for i in wanted] for row in trials[1:]]
    same(f"search/{name}/trials", cells, rel=1e-3, near=1e-6)
    same(f"search/{name}/keys", sorted(kept))
