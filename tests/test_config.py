import json
from dataclasses import replace

import pytest

from koopsim.config import FourierConfig, Recipe, Run, SIMConfig, TCNConfig, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS, preset, run_of

RUNS = [name for name, p in PRESETS.items() if p.run]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_a_run_survives_json(name, scale):
    run = run_of(name, scale)
    assert from_dict(Run, json.loads(json.dumps(to_dict(run)))) == run


def test_a_mondeq_of_before_has_the_scale_it_had():
    """A file says which scale its A has; one that was written before there were two has the first."""
    run = run_of("mnist/mondeq-multi")
    free = replace(run, model=replace(run.model, scale="free"))
    assert from_dict(Run, json.loads(json.dumps(to_dict(free)))) == free
    before = to_dict(run)
    del before["model"]["scale"]
    assert from_dict(Run, before) == run
    before["model"]["scale"] = "log"
    with pytest.raises(KoopsimError, match=r"scale.*log"):
        from_dict(Run, before)


NOT_NEGATIVE = ("shift", "rotate", "cutout", "weight_decay", "warm_up")
SHARES = ("label_smoothing", "average", "zoom")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FourierConfig(features=31), "must be even"),
        (lambda: FourierConfig(bandwidth=-1.0), "must be positive"),
        (lambda: SIMConfig(rank=40), "between 1 and the lifted dimension 32"),
        (lambda: TCNConfig(levels=0), "at least 1"),
        (lambda: Recipe(learning_rate=0.0), "must be positive"),
        (lambda: Recipe(clip_norm=0.0), "must be positive"),
        *((lambda name=name: Recipe(**{name: -1}), "must not be negative") for name in NOT_NEGATIVE),
        *((lambda name=name, x=x: Recipe(**{name: x}), r"lies in \[0, 1\)") for name in SHARES for x in (-0.1, 1.0)),
        (lambda: replace(run_of("copy/deq").model, model_dim=41), "even"),
        (lambda: preset("copy/sim-singel"), "Did you mean 'copy/sim-single'"),
        (lambda: run_of("cifar10/mondeq-single:best"), "no second recipe"),
    ],
)
def test_bad_values_are_refused_in_one_line(make, says):
    with pytest.raises(KoopsimError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def broken(change):
    data = to_dict(run_of("copy/sim-two"))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["recipe"].update(learning_rat=1.0), "Did you mean 'learning_rate'"),
        (lambda d: d["model"].update(kind="SIMConfg"), "Did you mean 'SIMConfig'"),
        (lambda d: d["model"].update(hidden="32"), "expected int"),
        (lambda d: d["recipe"].update(schedule="sometimes"), "expected one of"),
        (lambda d: d.update(task=3), "expected an object"),
        (lambda d: d["recipe"].update(epochs=True), "expected int"),
        (lambda d: d.update(precision="fp16"), "which is for pictures; use bf16 or tf32"),
    ],
)
def test_a_broken_configuration_is_refused_by_name(change, says):
    with pytest.raises(KoopsimError, match=says):
        from_dict(Run, broken(change))


def test_reading_a_good_configuration_builds_no_sentence(monkeypatch):
    def called(*_):
        raise AssertionError("a sentence was made though nothing is wrong")

    monkeypatch.setattr("koopsim.config.values.did_you_mean", called)
    for room in ("values", "checks", "kinds_of"):
        monkeypatch.setattr(f"koopsim.config.{room}.KoopsimError", called)
    run = run_of("cifar10/sim-two")
    assert from_dict(Run, to_dict(run)) == run


def test_short_precisions_are_a_gpus():
    from koopsim.config import resolve_precision

    for precision in ("float32", "float64", "tf32", "bf16", "fp16"):
        assert resolve_precision(precision, "cuda") == precision
        for device in ("cpu", "mps"):
            assert resolve_precision(precision, device) == ("float64" if precision == "float64" else "float32")
