"""One place says how tasks and models are named, ordered and judged; markup lives in templates, which escape."""

import ast
from pathlib import Path

import pytest
from made_runs import made

import koopsim
import koopsim.config as config
from koopsim.presets import PRESETS
from koopsim.registry import MODELS, TASKS
from koopsim.report.kinds import figures, model_kind_of, subject_of, task_kind_of
from koopsim.report.names import in_order, kind_of, looks
from koopsim.report.page import Card, Piece, Section, page

ROOM = Path(koopsim.__file__).parent / "report"
CLASSES = {name for name in dir(config) if name.endswith("Config")}


def texts(file: Path):
    tree = ast.parse(file.read_text())
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


@pytest.mark.parametrize("file", sorted(ROOM.glob("*.py")), ids=lambda f: f.name)
def test_no_class_names_and_no_markup_in_strings(file):
    assert not [text for text in texts(file) if text in CLASSES or "</" in text]


def test_every_task_and_model_is_known():
    assert set(TASKS) == set(config.TaskConfig.kinds)
    assert set(MODELS) == set(config.ModelConfig.kinds)
    assert {kind_of(name) for name in PRESETS} <= set(looks())


@pytest.mark.parametrize("name", ["copy/deq", "copy/sim-two", "cifar10/mondeq-multi", "svhn/sim-single"])
def test_a_preset_is_told_from_its_configuration(name):
    assert subject_of(made(name)["run"]) == name


def test_what_is_compared_with_what():
    assert model_kind_of(made("copy/deq")).has_solver
    assert model_kind_of(made("mnist/mondeq-single")).has_solver
    assert model_kind_of(made("copy/sim-single")).has_limit
    assert not model_kind_of(made("image/tancik")).has_limit
    stranger = made("copy/sim-single")
    stranger["run"]["model"]["kind"] = "SomebodysConfig"
    assert not model_kind_of(stranger).has_limit
    assert not model_kind_of(stranger).has_solver
    assert subject_of(stranger["run"]) == "copy/somebodys"


def test_how_each_task_is_judged():
    judged = {name: task_kind_of(made(name)).judged for name in ("copy/deq", "mnist/sim-two", "image/sim-rff")}
    assert [figure.key for figure in judged.values()] == ["loss", "accuracy", "psnr"]
    assert figures()["loss"].best({"a": 2.0, "b": 1.0}) == "b"
    assert figures()["psnr"].best({"a": 2.0, "b": 1.0}) == "a"


def test_the_papers_order():
    names = ["image/sim-rff", "mnist/sim-two", "cifar10/sim-two", "cifar10/mondeq-single", "copy/sim-two", "copy/deq"]
    assert [r["name"] for r in in_order([made(name) for name in names])] == names[::-1]


def test_the_page_escapes_what_it_is_given():
    bad = "<script>alert('x')</script>&"
    made_page = page([Section("a", bad, [Piece("words", bad), Piece("lines", [bad])])], [Card(bad, bad)], bad)
    assert "<script>alert" not in made_page
    assert made_page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;") == 7
