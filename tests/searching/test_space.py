"""What is drawn, and that nothing but a trial's number decides it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS, run_of
from koopsim.searching.space import base_of, path_of, space_of, trial_run, with_values
from koopsim.searching.space_text import (
    overridden,
    parameter_text,
    parse_parameter,
    read_space,
    space_from_arguments,
    space_to_dict,
)
from koopsim.spaces import BANDWIDTH, Choice, LogUniform, Median, SearchSpace, Uniform

TWO = base_of(run_of("copy/sim-two"))


def test_the_papers_searches():
    copy = space_of(TWO)
    assert (copy.trials, copy.max_t, copy.grace, copy.reduction, copy.metric, copy.mode) == (
        100,
        6,
        3,
        2,
        "loss",
        "min",
    )
    assert copy.parameters == {
        "recipe.batch_size": Choice((1, 2, 5, 10, 20)),
        "recipe.learning_rate": LogUniform(1e-4, 0.05),
        BANDWIDTH: LogUniform(1e-3, 1e3),
    }
    images = space_of(base_of(run_of("cifar10/sim-single")))
    assert (images.trials, images.max_t, images.grace, images.metric, images.mode) == (200, 80, 5, "accuracy", "max")
    assert images.parameters["recipe.step_size"] == Choice((5, 10, 15, 20, 25, 30, 35, 40, 45, 50))
    assert images.parameters["recipe.epochs"] == Choice((20, 40, 60, 80))
    assert BANDWIDTH not in images.parameters
    pictures = space_of(base_of(run_of("image/sim-rff")))
    assert (pictures.trials, pictures.max_t, pictures.grace, pictures.metric) == (200, 100, 5, "psnr")
    assert set(pictures.parameters) == {"recipe.learning_rate", "model.fourier.features", BANDWIDTH}


def test_a_pictures_hundred_iterations_are_its_two_thousand_steps():
    run = base_of(run_of("image/sim-two"))
    assert run.recipe.epochs * run.task.steps_an_epoch == 2000
    assert run.recipe.epochs == space_of(run).max_t


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.run])
@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_every_preset_has_a_search_whose_trials_are_runs(name, scale):
    base = base_of(run_of(name, scale))
    space = space_of(base, scale)
    runs = [trial_run(base, space.sample(0, i), i) for i in range(20)]
    assert len(set(map(repr, runs))) == 20
    assert all(run.train_on == "train" for run in runs)


@given(seed=st.integers(0, 10**6), index=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_a_trial_is_its_number_and_stays_in_its_ranges(seed, index):
    space = space_of(TWO)
    values = space.sample(seed, index)
    assert values == replace(space, trials=3).sample(seed, index)
    assert values["recipe.batch_size"] in (1, 2, 5, 10, 20)
    assert 1e-4 <= values["recipe.learning_rate"] < 0.05
    assert 1e-3 <= values[BANDWIDTH] < 1e3


def test_fixing_one_parameter_leaves_the_others_draws():
    space = space_of(TWO)
    fixed = replace(space, parameters=space.parameters | {"recipe.batch_size": Choice((7,))})
    for index in range(10):
        free, bound = space.sample(3, index), fixed.sample(3, index)
        assert bound["recipe.batch_size"] == 7
        assert free["recipe.learning_rate"] == bound["recipe.learning_rate"]


def test_log_uniform_is_even_in_the_logarithm():
    space = SearchSpace({"x": LogUniform(1e-3, 1e3)}, 1, 1, 1)
    logs = [math.log10(space.sample(0, i)["x"]) for i in range(2000)]
    counts = [sum(k <= v < k + 1 for v in logs) for k in range(-3, 3)]
    assert sum(counts) == 2000
    assert all(abs(c - 2000 / 6) < 5 * math.sqrt(2000 / 6) for c in counts)


numbers = st.floats(1e-6, 1e6, allow_nan=False)
parameters = st.one_of(
    st.lists(st.integers(0, 50) | st.sampled_from(["step", "cosine"]), min_size=1).map(lambda v: Choice(tuple(v))),
    st.tuples(numbers, numbers).filter(lambda p: p[0] < p[1]).map(lambda p: LogUniform(*p)),
    st.tuples(numbers, numbers).filter(lambda p: p[0] < p[1]).map(lambda p: Uniform(*p)),
    st.tuples(numbers, numbers).filter(lambda p: p[0] <= p[1]).map(lambda p: Median(*p)),
)


@given(parameter=parameters)
@settings(max_examples=80, deadline=None)
def test_text_and_back(parameter):
    assert parse_parameter("p", parameter_text(parameter)) == parameter


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("1,2,5", Choice((1, 2, 5))),
        ("cosine", Choice(("cosine",))),
        ("0.1", Choice((0.1,))),
        ("log 1e-4 0.05", LogUniform(1e-4, 0.05)),
        ("log(1e-4, 0.05)", LogUniform(1e-4, 0.05)),
        ("log 1e-4, 0.05", LogUniform(1e-4, 0.05)),
        ("median", Median(1, 1)),
        ("median 0.1 10", Median(0.1, 10)),
        ([1, "2", "x"], Choice((1, 2, "x"))),
        (3, Choice((3,))),
    ],
)
def test_what_people_write(text, parameter):
    assert parse_parameter("p", text) == parameter


def test_the_last_word_of_a_path_is_enough():
    assert path_of(TWO, "learning_rate") == "recipe.learning_rate"
    assert path_of(TWO, "bandwidth") == BANDWIDTH
    with pytest.raises(KoopsimError, match=r"Did you mean 'recipe\.learning_rate'"):
        path_of(TWO, "recipe.lerning_rate")
    with pytest.raises(KoopsimError, match=r"'kernel' could be model.lift.kernel or model.fourier.kernel"):
        path_of(TWO, "kernel")


def test_values_are_placed_and_checked():
    run = with_values(TWO, {"recipe.batch_size": 3, BANDWIDTH: 2})
    assert run.recipe.batch_size == 3
    assert run.model.fourier.bandwidth == 2.0
    with pytest.raises(KoopsimError, match=r"run.recipe.batch_size is 'x'; expected int"):
        with_values(TWO, {"recipe.batch_size": "x"})
    with pytest.raises(KoopsimError, match="must be positive"):
        with_values(TWO, {"recipe.learning_rate": -1.0})


SPACE = {"trials": 7, "parameters": {"learning_rate": "log 1e-3 1e-2", "batch_size": [1, 2]}}


def test_files_of_three_kinds_say_the_same(tmp_path):
    (tmp_path / "s.json").write_text(
        '{"trials": 7, "parameters": {"learning_rate": "log 1e-3 1e-2", "batch_size": [1, 2]}}'
    )
    (tmp_path / "s.toml").write_text('trials = 7\n[parameters]\nlearning_rate = "log 1e-3 1e-2"\nbatch_size = [1, 2]\n')
    (tmp_path / "s.yaml").write_text("trials: 7\nparameters:\n  learning_rate: log 1e-3 1e-2\n  batch_size: [1, 2]\n")
    wanted = overridden(space_of(TWO), TWO, SPACE, "here")
    assert wanted.trials == 7
    assert wanted.max_t == 6
    assert wanted.parameters["recipe.batch_size"] == Choice((1, 2))
    for kind in ("json", "toml"):
        assert overridden(space_of(TWO), TWO, read_space(tmp_path / f"s.{kind}"), "a file") == wanted
    try:
        import yaml  # noqa: F401
    except ImportError:
        with pytest.raises(KoopsimError, match="PyYAML"):
            overridden(space_of(TWO), TWO, read_space(tmp_path / "s.yaml"), "a file")
    else:
        assert overridden(space_of(TWO), TWO, read_space(tmp_path / "s.yaml"), "a file") == wanted


def test_a_space_written_down_is_the_space():
    for name in ("copy/sim-two", "cifar10/sim-two", "image/sim-single"):
        base = base_of(run_of(name))
        space = space_of(base)
        assert overridden(SearchSpace({}, 1, 1, 1), base, space_to_dict(space), "x") == space


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("learning_rate",), "expected NAME=VALUES"),
        (("learning_rate=log 1 0.1",), "both ends must be positive"),
        (("learning_rate=log 1",), "its two ends"),
        (("batch_size=0,1",), "batch_size is 0; it must be at least 1"),
        (("schedule=cosinus",), "expected one of"),
        (("batch_size=median",), "only the bandwidth can"),
        (("nothing=1",), "no entry 'nothing'"),
        (("learning_rate=",), "is empty"),
    ],
)
def test_bad_overrides_are_refused_before_anything_runs(arguments, says):
    with pytest.raises(KoopsimError, match=says):
        space_from_arguments(space_of(TWO), TWO, arguments)


def test_a_model_without_features_has_no_bandwidth():
    single = base_of(run_of("copy/sim-single"))
    with pytest.raises(KoopsimError, match="no Fourier features"):
        space_from_arguments(space_of(single), single, ("bandwidth=1,2",))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"grace": 7}, "grace is 7"),
        ({"reduction": 1}, "reduction"),
        ({"mode": "x"}, "mode"),
    ],
)
def test_impossible_searches_are_refused(changes, says):
    with pytest.raises(KoopsimError, match=says):
        replace(space_of(TWO), **changes)


def test_a_median_has_no_factor_one_or_two():
    assert parse_parameter("b", "median") == Median()
    assert parse_parameter("b", "median 0.5") == Median(0.5, 0.5)
    assert parse_parameter("b", "median 0.5 2") == Median(0.5, 2.0)
    assert parse_parameter("b", "uniform 1 3") == Uniform(1.0, 3.0)
    with pytest.raises(KoopsimError, match="two ends"):
        parse_parameter("b", "log 1")
    with pytest.raises(KoopsimError, match="two ends"):
        parse_parameter("b", "median 1 2 3")
