"""The pages on equilibrium models run as they stand, and say what was measured."""

import importlib.util
import json
import re
import warnings
from pathlib import Path

import pytest

from koopsim.implicit import UnconvergedWarning

HOUSE = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["implicit", "coming-from-torchdeq"])
def test_the_page_runs(name):
    page = HOUSE / "docs" / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert blocks
    names = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        for block in blocks:
            exec(compile(block, str(page), "exec"), names)


def test_what_the_pages_say_was_measured():
    gradients = json.loads((HOUSE / "results" / "deq-gradients.json").read_text())
    assert gradients["worst_finite_difference"] <= 1.1e-10 * 1.01
    assert all(row.get("relative_error_to_unrolled", 0) <= 2e-15 for row in gradients["rows"])
    memory = {
        row["gradient"]: row["ratio"] for row in json.loads((HOUSE / "results" / "deq-memory.json").read_text())["rows"]
    }
    assert all(abs(ratio - 1) < 1e-3 for name, ratio in memory.items() if name != "unrolled")
    assert round(memory["unrolled"], 1) == 6.3
    page = (HOUSE / "docs" / "coming-from-torchdeq.md").read_text()
    measured = json.loads((HOUSE / "results" / "deq-torchdeq.json").read_text())
    spec = importlib.util.spec_from_file_location("page", HOUSE / "benchmarks" / "equilibrium_page.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.BEGIN + maker.tables(measured) + maker.END in page, "python benchmarks/equilibrium_page.py"
    counted = json.loads((HOUSE / "results" / "deq-evaluations.json").read_text())
    assert maker.BEGIN_COUNTS + maker.counts(counted) + maker.END_COUNTS in page, (
        "python benchmarks/equilibrium_page.py"
    )


def test_both_libraries_were_compared_at_the_same_backward_residual():
    """But where torchdeq ran out of steps; and what the page says of evaluations beside it."""
    rows = json.loads((HOUSE / "results" / "deq-evaluations.json").read_text())["rows"]
    sides = {(r["work"], r["precision"], r["solver"], r["side"]): r for r in rows}
    for (*work, solver, side), ours in sides.items():
        if side != "koopsim":
            continue
        theirs, slack = sides[*work, solver, "torchdeq"], 1.02 if work[1] == "float32" else 1.1
        for way in ("forward", "backward"):
            assert ours[f"{way}_residual"] <= 1.001 * slack * theirs[f"{way}_residual"]
            assert ours[f"{way}_evaluations"] <= theirs[f"{way}_evaluations"] + 1
        by_itself = sides[*work, solver, "koopsim, each part"]
        assert by_itself["backward_evaluations"] <= ours["backward_evaluations"] + 2
        if work != ["copy", "float32"]:
            assert ours["gradient_error"] < 2 * theirs["gradient_error"]


def test_every_call_of_torchdeq_has_a_place_and_no_other():
    """Public names by `dir`; `VariationalDropout1d`, `2d`, `3d` is three of them."""
    torchdeq = pytest.importorskip("torchdeq")
    whole = (HOUSE / "docs" / "coming-from-torchdeq.md").read_text()
    page = whole.partition("## Call by call")[2].partition("\n## ")[0]
    left = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    said = set(re.findall(r"`(\w+)", left)) | {
        f"{name}{n}d"
        for name, rest in re.findall(r"`(Variational\w+?)1d`((?:, `\dd`)*)", left)
        for n in re.findall(r"\d", rest)
    }
    named = {name for name in dir(torchdeq) if not name.startswith("_") and callable(getattr(torchdeq, name))}
    assert named <= said, named - said
    wrong = {name for name in said if re.match("[A-Z]|get_|register_|apply_|remove_|reset_", name)} - set(dir(torchdeq))
    assert not wrong, wrong
