"""What made data sets hold and files are read as, number by number: see kept_numbers.py."""

import numpy as np
import pytest
from kept_numbers import same

from koopsim.datasets import systems
from koopsim.datasets.row_splits import split_rows
from koopsim.datasets.series import read_series
from koopsim.datasets.table import read_table
from koopsim.datasets.table_learning import learn_inputs, learn_targets


@pytest.mark.parametrize("name", ["oscillator", "lorenz", "counts", "gestures", "phases"])
def test_numbers_of_systems(name):
    made = getattr(systems, name)(24, np.random.default_rng(4))
    same(f"systems/{name}", [[np.asarray(v, float) for v in made.values[:3]], made.lengths, made.labels, made.classes])
    same(f"systems/{name}, all", [np.concatenate(made.values), made.channels, made.names, made.tags])


def test_numbers_of_a_fortnight_of_counts():
    made = systems.counts(14 * 24, np.random.default_rng(4))
    same("systems/counts, a fortnight", [[np.asarray(v, float) for v in made.values], made.lengths])


TABLE = """a,b,colour,when,price
1.5,2,red,3,10
,4,blue,1,12
2.5,1e3,red,2,9
-1,0,,5,10
3,7,green,8,11
0.5,3,red,1,10
4,9,blue,2,14
2,5,red,4,13
"""


def test_numbers_of_a_table(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    table = read_table(tmp_path / "t.csv")
    rows = np.array([0, 1, 2, 4, 5, 6])
    targets = learn_targets(table, ["price"], None, rows)
    inputs = learn_inputs(table, targets, rows)
    same("table/inputs", inputs)
    same("table/targets", targets)
    same("table/encoded", [inputs.encode(table), inputs.encode_targets(table), inputs.width, inputs.outputs])


@pytest.mark.parametrize("sizes", [(40, 0.1, 0.2), (7, 0.2, 0.2), (101, 0.15, 0.3)])
def test_numbers_of_splits(sizes):
    count, valid, test = sizes
    strata = np.arange(count) % 3
    ways = [{}, {"strata": strata}, {"groups": np.arange(count) // 2}]
    same(f"splits/{count}", [split_rows(count, valid, test, 5, **way) for way in ways])


def test_numbers_of_a_series(tmp_path):
    t = np.arange(20) * 0.25
    lines = [f"{a:.2f},{np.sin(a):.5f},{'' if k == 7 else np.cos(a)}" for k, a in enumerate(t)]
    (tmp_path / "s.csv").write_text("\n".join(["time,x,y", *lines]))
    np.savez(tmp_path / "s.npz", x=np.stack([np.sin(t), np.cos(t)], 1), t=t)
    for name in ("s.csv", "s.npz"):
        found = read_series(tmp_path / name)
        same(f"series/{name}", {k: v for k, v in vars(found).items() if "path" not in k})


def test_numbers_of_splits_by_uneven_groups():
    groups = np.repeat(np.arange(9), [1, 5, 2, 8, 3, 1, 4, 6, 2])
    cases = [(0.2, 0.3), (0.0, 0.3), (0.2, 0.0), (0.45, 0.45)]
    same("splits/groups", [split_rows(32, *case, seed, groups=groups) for case in cases for seed in range(4)])
