"""From columns to what a model sees: by hand, from the training rows alone, and back from JSON."""

import json
import warnings

import numpy as np
import pytest

from koopsim.config import IdentityConfig, from_dict
from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.table import read_table
from koopsim.datasets.table_inputs import CategoryInput, NumberInput, TableInputs, Target
from koopsim.datasets.table_learning import learn_inputs, learn_targets
from koopsim.errors import KoopsimError

ROWS = "a,c,y\n1,red,0\n,blue,1\n3,,0\n5,red,1\n100,green,1\n"


@pytest.fixture
def given(tmp_path) -> DataTable:
    (tmp_path / "t.csv").write_text(ROWS)
    return read_table(tmp_path / "t.csv")


def learnt(table: DataTable) -> TableInputs:
    rows = np.arange(4)  # the last row is not for training
    return learn_inputs(table, learn_targets(table, ["y"], None, rows), rows)


def test_by_hand(given):
    inputs = learnt(given)
    filled = np.array([1, 3, 3, 5.0])
    assert inputs.columns == (
        NumberInput("a", 3.0, 3.0, filled.std(), True), CategoryInput("c", ("blue", "red"), True),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="1 words that were not in training, the first is 'green'"):
        x = inputs.encode(given)
    scaled = (np.array([1, 3, 3, 5, 100]) - 3) / filled.std()
    expected = np.stack([scaled, [0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0]], axis=1)
    np.testing.assert_allclose(x, expected, rtol=1e-6)
    assert x.dtype == np.float32
    assert inputs.blocks == {"a": slice(0, 2), "c": slice(2, 5)}
    assert inputs.meaning == "classification"
    np.testing.assert_array_equal(inputs.encode_targets(given), [0, 1, 0, 1, 1])
    assert inputs.missing() == {"a": "median 3, and a flag", "c": "a category of its own"}


def test_json_and_back(given):
    inputs = learnt(given)
    assert TableInputs.from_dict(json.loads(json.dumps(inputs.as_dict())), "f") == inputs
    with pytest.raises(KoopsimError, match="'targets' names no target"):
        TableInputs.from_dict(inputs.as_dict() | {"targets": []}, "f")


def test_other_tables(given):
    inputs = learnt(given)
    more = DataTable("m.csv", [Column("z", np.zeros(2)), given["c"].take([0, 1]), given["a"].take([0, 1])])
    np.testing.assert_array_equal(inputs.encode(more), inputs.encode(given.take([0, 1])))
    for table, message in [
        (given.without(["a"]), "no column 'a', which the model was trained on; it has: c, y"),
        (DataTable("w.csv", [given["c"], Column("a", np.zeros(5, np.int32), ("x",))]), "holds words such as 'x'"),
        (DataTable("i.csv", [given["c"], Column("a", np.full(5, np.inf))]), "infinite in row 1"),
    ]:
        with pytest.raises(KoopsimError, match=message):
            inputs.encode(table)
    with pytest.raises(KoopsimError, match="says '7', which was no class"):
        inputs.encode_targets(DataTable("o.csv", [Column("y", np.array([0.0, 7]))]))


def test_a_gap_that_training_did_not_have_is_filled_and_said():
    table = DataTable("t", [Column("a", np.array([1.0, 2, 4])), Column("y", np.array([0.5, 1, 2]))])
    inputs = learn_inputs(table, learn_targets(table, ["y"], None, np.arange(3)), np.arange(3))
    with pytest.warns(UserWarning, match="1 rows have no 'a'.*median 2"):
        x = inputs.encode(DataTable("n", [Column("a", np.array([np.nan, 2]))]))
    assert x[0] == x[1]
    assert x.shape == (2, 1)


def test_what_a_target_means(tmp_path):
    rows = np.arange(100)

    def target(values, meaning=None) -> Target:
        return learn_targets(DataTable("t", [Column("y", values)]), ["y"], meaning, rows)[0]

    assert target(rows % 3.0).classes == ("0", "1", "2")
    assert target(rows % 3 + 0.5).classes is None
    assert target(rows * 1.0).classes is None
    number = target(rows % 3.0, "regression")
    assert (number.classes, number.mean, number.deviation) == (None, (rows % 3).mean(), (rows % 3).std())
    np.testing.assert_allclose(number.encode(Column("y", rows % 3.0), "t").std(), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert target(np.ones(100), "regression").deviation == 1  # one that never changes is a number, too


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,2\n", "no column 'target'"),
        ("a,target\n1,x\n2,\n3,y\n", "1 of 3 rows have no 'target', the target; the first is line 3"),
        ("a,target\n1,x\n2,x\n3,x\n", "is 'x' in every row; expected two classes"),
        ("a,target\n1,2024-01-02\n2,2024-01-03\n3,2024-01-03\n4,2024-01-03\n", "holds dates such as '2024-01-02'"),
        ("day,target\n2024-01-02,1.5\n2024-01-03,2\n", "'day' holds dates such as '2024-01-02'"),
        ("a,target\ninf,1.5\n2,2\n", "'a' is infinite in line 2"),
        ("a,target\n1,1.5\n1e300,2\n", r"'a' is beyond 3.4e\+38 in line 3"),
        ("a,target\n1,1.5\n2,-1e39\n", r"'target' is beyond 3.4e\+38 in line 3"),
        ("a,target\n,1.5\n,2\n", "'a' is empty in all training rows"),
        ("target\n1.5\n2\n", "no column besides the target"),
        ("id,target\n" + "".join(f"p{i},{i % 2}\n" for i in range(60)), "60 different words in 60 rows"),
        ("a,target\n" + "".join(f"{i if i % 9 else 'ERR'},{i % 2}\n" for i in range(60)), "such as 'ERR': no numbers"),
        ("a,target\n" + "".join(f"{i},w{i}\n" for i in range(30)), "30 classes in 30 rows"),
    ],
)
def test_refusals(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    table = read_table(tmp_path / "t.csv")
    rows = np.arange(len(table))
    with pytest.raises(KoopsimError, match=message) as error:
        learn_inputs(table, learn_targets(table, ["target"], None, rows), rows)
    assert "\n" not in str(error.value)


def test_several_targets_are_numbers():
    table = DataTable("t", [Column("a", np.arange(3.0)), Column("b", np.arange(3.0) / 7), Column("c", np.ones(3))])
    targets = learn_targets(table, ["b", "c"], "regression", np.arange(3))
    inputs = learn_inputs(table, targets, np.arange(3))
    assert inputs.encode_targets(table).shape == (3, 2)
    assert inputs.outputs == 2
    with pytest.raises(KoopsimError, match="2 targets; a classifier has one"):
        learn_targets(table, ["c", "b"], None, np.arange(3))


def test_a_description_that_lacks_an_entry_is_refused():
    with pytest.raises(KoopsimError, match=r"lacks the entry 'fill'"):
        from_dict(NumberInput, {"name": "a", "mean": 0.0, "deviation": 1.0, "flagged": False}, "inputs.json")
    with pytest.raises(KoopsimError, match="at least 1"):
        IdentityConfig(0)


def test_a_class_too_rare_to_be_split_is_named():
    words = Column("kind", np.array([0] * 10 + [1] * 10 + [2], np.int32), ("u", "v", "odd"))
    table = DataTable("t", [Column("a", np.arange(21.0)), words])
    with pytest.warns(UserWarning, match="class 'odd' of 'kind' has 1 of 21 rows, 0 of them to learn.*leave it out"):
        learn_targets(table, ["kind"], None, np.arange(20))
    with pytest.warns(UserWarning, match="class 'odd' of 'kind' has 1 of 21 rows, 1 of them to learn from"):
        learn_targets(table, ["kind"], None, np.arange(21))
    with pytest.warns(UserWarning, match=r"class 'odd' .* learnt and tested \(as 1 more\); give more"):
        learn_targets(table, ["kind"], None, np.arange(10))
