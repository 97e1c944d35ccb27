"""Who is known by name, who may join, and that nothing is imported that the user did not name or install."""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from koopsim import registry
from koopsim.config import LiftConfig, ModelConfig, Run, SIMConfig, SolverConfig, TaskConfig, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.kinds import LiftKind, ModelKind, lift_kind, model_kind, register, task_kind
from koopsim.models import build
from koopsim.presets import PRESETS, run_of
from koopsim.registry import DATASETS, LIFTS, MODELS, SOLVERS, TASKS, Registry, load_plugin

SOURCE = Path(registry.__file__).parent


# ---------------------------------------------------------------- what is built in


def test_every_kind_of_configuration_is_registered():
    assert set(MODELS) >= set(ModelConfig.kinds)
    assert set(TASKS) >= set(TaskConfig.kinds)
    assert set(LIFTS) >= set(LiftConfig.kinds)
    assert set(DATASETS) >= {"cifar10", "svhn", "mnist", "digits"}
    assert set(SOLVERS) >= {"picard", "anderson", "broyden"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_called_as_its_parts_say(name):
    run = PRESETS[name].run
    place = task_kind(run.task).slug(to_dict(run.task))
    called = f"{place}/{model_kind(run.model).slug(run.model)}"
    assert name == called or name.startswith(f"{called}-")  # "-large": one of several of a kind
    assert model_kind(run.model).look(run.model).title


def test_the_papers_presets_stand_in_its_order():
    first = list(dict.fromkeys(name.split("/")[0] for name in PRESETS))
    assert first[:6] == ["copy", "cifar10", "svhn", "mnist", "digits", "image"]


def test_a_configuration_is_read_without_torch():
    text = json.dumps([to_dict(run_of(name)) for name in ("copy/deq", "cifar10/sim-two", "image/tancik")])
    code = f"""
import json, sys
from koopsim.config import Run, from_dict
runs = [from_dict(Run, data) for data in json.loads({text!r})]
print(sorted(set(sys.modules) & {{"torch", "koopsim.tasks", "koopsim.nn"}}), runs[0].model.heads)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 8"


def _classes_asked_for(tree: ast.AST):
    """Configuration classes in isinstance and match; an assert only tells the type checker what is so."""
    told = {id(node) for top in ast.walk(tree) if isinstance(top, ast.Assert) for node in ast.walk(top)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance" and id(node) not in told:
            yield from (n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name))
            yield from (n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute))
        elif isinstance(node, ast.MatchClass):
            yield getattr(node.cls, "id", getattr(node.cls, "attr", ""))


def test_nobody_asks_which_class_a_configuration_is_of():
    known = {*ModelConfig.kinds, *TaskConfig.kinds, *LiftConfig.kinds}
    ladders = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in _classes_asked_for(ast.parse(path.read_text()))
        if name in known
    ]
    assert not ladders


# ---------------------------------------------------------------- who may join


def test_the_same_definition_again_takes_its_own_place_and_another_is_refused():
    registry = Registry("thing")

    def first():
        return 1

    def second():
        return 2

    registry.add("a", first)
    registry.add("a", first)
    assert registry["a"]() == 1
    with pytest.raises(KoopsimError, match=r"two of the thing 'a', test_registry\..*first and .*second"):
        registry.add("a", second)
    assert (registry.version, list(registry), len(registry), "b" in registry) == (2, ["a"], 1, False)


def test_a_guest_does_not_take_a_built_in_place_by_coming_first(tmp_path):
    (tmp_path / "impostor.py").write_text(
        "from koopsim.kinds import DatasetKind, register\n\n@register\nclass Fake(DatasetKind):\n    name = 'digits'\n"
    )
    words = [sys.executable, "-m", "koopsim", "train", "digits/sim-single", "--plugin", "impostor", "--out", "run"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "two of the data set 'digits', koopsim.datasets.digits.Digits and impostor.Fake" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_a_name_that_is_taken_is_refused():
    with pytest.raises(KoopsimError, match=r"test_registry defines SIMConfig, which koopsim\.config\.models does too"):

        @dataclass(frozen=True)
        class SIMConfig(ModelConfig):
            pass


@pytest.fixture
def guest(monkeypatch):
    """What registers during the test is gone after it."""
    for known in (MODELS, TASKS, LIFTS, DATASETS, SOLVERS):
        list(known)  # all that is built in is there before
        monkeypatch.setattr(known, "_entries", dict(known._entries))
    for base in (ModelConfig, TaskConfig, LiftConfig):
        monkeypatch.setattr(base, "kinds", dict(base.kinds))


def test_a_model_without_for_images_takes_the_images_it_was_written_for(guest):
    @dataclass(frozen=True)
    class FlatConfig(ModelConfig):
        width: int = 64

    @register
    class FlatKind(ModelKind):
        config = FlatConfig

        def build(self, config):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(config.width, 10))

    kind, before = model_kind(FlatConfig()), torch.get_rng_state()
    assert kind.for_images(FlatConfig(), (1, 8, 8), 10) == FlatConfig()
    assert torch.equal(torch.get_rng_state(), before)
    for shape, classes in (((1, 9, 9), 10), ((1, 8, 8), 3)):
        with pytest.raises(KoopsimError, match=rf"Flat does not look at .* in {classes} classes; .*for_images"):
            kind.for_images(FlatConfig(), shape, classes)
    smoke = run_of("digits/sim-single")
    smoke = task_kind(smoke.task).smoke("digits/flat", replace(smoke, model=FlatConfig()))
    assert smoke.model == FlatConfig()


def test_a_lift_of_ones_own(guest):
    @dataclass(frozen=True)
    class WaveConfig(LiftConfig):
        inputs: int = 3

    @register
    class WaveKind(LiftKind):
        config = WaveConfig

        def build(self, config, dim):
            return torch.nn.Sequential(torch.nn.Linear(config.inputs, dim), torch.nn.Tanh())

        def example(self, config, batch, length, random):
            return torch.randn(batch, config.inputs, generator=random), {0: "batch"}

    sim = SIMConfig(WaveConfig(5), lift_dim=8, hidden=4, outputs=2)
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(sim)))) == sim
    x, axes = model_kind(sim).example(sim, 6, 1, torch.Generator().manual_seed(0))
    assert axes == {0: "batch"}
    assert build(sim)(x).shape == (6, 2)
    with pytest.raises(KoopsimError, match="WaveConfig does not look at images"):
        model_kind(sim).for_images(sim, (1, 8, 8), 10)


def test_a_solver_of_ones_own(guest):
    from koopsim.implicit import picard

    calls = []

    @SOLVERS.register
    def counted(f, z0, max_steps, tol, **options):
        calls.append(max_steps)
        return picard(f, z0, max_steps=max_steps, tol=tol)

    deq = replace(run_of("copy/deq").model, forward=SolverConfig(method="counted", max_steps=7))
    assert from_dict(ModelConfig, to_dict(deq)) == deq
    with pytest.warns(UserWarning, match="7 steps of counted"):
        build(deq)(torch.zeros(1, 4, dtype=torch.uint8))
    assert calls == [7]
    with pytest.raises(KoopsimError, match="Did you mean 'counted'"):
        SolverConfig(method="countde")


def test_only_kinds_are_registered():
    with pytest.raises(KoopsimError, match="expected a subclass of ModelKind, LiftKind, TaskKind or DatasetKind"):
        register(dict)


def test_what_a_kind_does_not_say_is_refused_in_one_sentence():
    deq, tcn = run_of("copy/deq").model, run_of("copy/sim-single").model
    for ask, says in (
        (lambda: model_kind(deq).for_images(deq, (1, 8, 8), 10), "DEQ does not look at images"),
        (lambda: model_kind(deq).with_bandwidth(deq, 1.0), "no bandwidth"),
        (lambda: model_kind(deq).bytes_a_point(deq, 4, 4), "does not take points"),
        (lambda: model_kind(tcn).for_images(tcn, (1, 8, 8), 10), "TCNConfig does not look at images"),
        (lambda: lift_kind(tcn.lift).bytes_a_point(tcn.lift, 0, 4), "does not lift points"),
        (lambda: task_kind(run_of("copy/deq").task).on_own_data(run_of("copy/deq"), "copy/deq", "x"), "--data"),
    ):
        with pytest.raises(KoopsimError, match=says) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_kind_without_an_example_cannot_be_traced():
    class Bare(ModelKind):
        config = type(run_of("copy/deq").model)

    with pytest.raises(KoopsimError, match="has no example input"):
        Bare().example(None, 2, 3, None)


# ---------------------------------------------------------------- doors


def test_a_kind_that_nobody_knows_says_what_to_do():
    data = to_dict(run_of("copy/sim-single"))
    data["model"]["kind"] = "SIMConfg"
    with pytest.raises(KoopsimError, match=r"Did you mean 'SIMConfig'\? If it is a plugin's, .* --plugin MODULE"):
        from_dict(Run, data)


def test_reading_a_run_imports_nothing_it_names(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = to_dict(run_of("copy/sim-single"))
    for kind in ("evil", "evil.Config", "evil:Config"):
        data["model"]["kind"] = data["task"]["kind"] = kind
        with pytest.raises(KoopsimError, match="unknown kind"):
            from_dict(Run, data)
    assert "evil" not in sys.modules


def test_a_plugin_that_is_not_there_or_broken_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_plugin.py").write_text("import nothing_of_the_kind")
    (tmp_path / "worse_plugin.py").write_text("1 / 0")
    for name, says in (
        ("no_such_plugin", "There is no plugin 'no_such_plugin'"),
        ("broken_plugin", "The plugin 'broken_plugin' cannot be loaded: ModuleNotFoundError"),
        ("worse_plugin", "cannot be loaded: ZeroDivisionError"),
    ):
        with pytest.raises(KoopsimError, match=says):
            load_plugin(name)
    assert str(tmp_path) not in sys.path


def test_an_installed_plugin_that_is_broken_is_said_and_takes_nobody_down(monkeypatch):
    point = metadata.EntryPoint("theirs", "no_such_package", registry.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    monkeypatch.setattr(registry, "_opened", registry._opened - {"plugins"})
    with pytest.warns(UserWarning, match="The plugin 'theirs' .* cannot be loaded: ModuleNotFoundError"):
        assert "SIMConfig" in list(MODELS)
    assert "SIMConfig" in list(MODELS)  # and said once


def test_the_command_line_loads_what_is_named(tmp_path, monkeypatch, capsys):
    from koopsim.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["presets", "--plugin", "no_such_plugin"]) == 2
    assert main(["presets", "--plugin"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "There is no plugin 'no_such_plugin'" in lines[0]
    assert "--plugin needs the name of a module" in lines[1]


@pytest.mark.parametrize("own", [True, False])
def test_only_the_command_imports_rooms_without_looking_for_garbage(monkeypatch, own):
    """And collecting is afterwards what it was, whatever happened inside; what is imported is frozen."""
    import gc

    from koopsim import registry

    seen, frozen = [], []

    def imported(name):
        seen.append(gc.isenabled())
        raise ImportError(name)

    monkeypatch.setattr(registry.Process, "own", own)
    monkeypatch.setattr(registry, "_opened", set())
    monkeypatch.setattr(registry, "import_module", imported)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with pytest.raises(ImportError, match=r"koopsim\.nn"):
        registry.open_rooms("nn")
    assert seen == [not own]
    assert frozen == [False] * own
    assert gc.isenabled()
