"""ASHA's decisions: by hand, against recorded ones of Ray's scheduler, and against the scheduler itself."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.errors import KoopsimError
from koopsim.searching.asha import ASHA

RECORDED = Path(__file__).parent / "asha_decisions.json"  # made by this file, run as a program where Ray is installed
SETTINGS = [
    (6, 3, 2, "min"),
    (80, 5, 2, "max"),
    (100, 5, 2, "max"),
    (27, 1, 3, "min"),
    (10, 1, 1.5, "max"),
    (4, 4, 2, "min"),
]


def stream(max_t, seed, trials=40):
    """Reports (trial, t, metric) as a cluster would send them: a few trials at a time, in a random interleaving.

    Yields a report and expects to be sent whether that trial goes on. Some trials end by themselves (t is then
    negative), some values are equal.
    """
    generator = np.random.default_rng(seed)
    waiting, running = list(range(trials)), {}
    while waiting or running:
        while waiting and len(running) < 7:
            running[waiting.pop(0)] = 0
        trial = list(running)[generator.integers(len(running))]
        running[trial] += 1
        t = running[trial]
        metric = float(round(generator.normal() + trial % 5 + 0.1 * t, 1))
        goes_on = yield trial, t, metric
        own_end = max_t if trial % 4 else max(1, max_t // 2)
        if not goes_on or t >= own_end:
            del running[trial]
            if goes_on:
                yield trial, -t, metric


def decisions(judge, max_t, seed):
    """What `judge(trial, t, metric)` answers along the stream it shapes by its answers."""
    reports, answers = stream(max_t, seed), []
    report = next(reports)
    try:
        while True:
            answers.append(judge(*report))
            report = reports.send(answers[-1])
    except StopIteration:
        return answers


def ours(max_t, grace, reduction, mode):
    asha = ASHA(max_t, grace, reduction, mode)

    def judge(trial, t, metric):
        if t < 0:
            asha.complete(trial, -t, metric)
            return True
        return asha.report(trial, t, metric)

    return judge


def rays(max_t, grace, reduction, mode):
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler

    scheduler = ASHAScheduler(
        time_attr="t", metric="m", mode=mode, max_t=max_t, grace_period=grace, reduction_factor=reduction
    )

    class Named:
        def __init__(self, trial):
            self.trial_id = str(trial)

    known = {}

    def judge(trial, t, metric):
        if trial not in known:
            known[trial] = Named(trial)
            scheduler.on_trial_add(None, known[trial])
        if t < 0:
            scheduler.on_trial_complete(None, known[trial], {"t": -t, "m": metric})
            return True
        return scheduler.on_trial_result(None, known[trial], {"t": t, "m": metric}) != TrialScheduler.STOP

    return judge


def test_by_hand():
    asha = ASHA(max_t=4, grace=1, reduction=2, mode="min")
    assert asha.milestones == [4, 2, 1]
    assert asha.report(0, 1, 5.0)  # the first at a rung is always among the best
    assert not asha.report(1, 1, 6.0)  # above the median of {5}
    assert asha.report(2, 1, 5.5)  # equal to the median of {5, 6}: goes on
    assert asha.report(0, 2, 4.0)
    assert asha.report(0, 3, 9.0)  # between rungs nobody is judged
    assert not asha.report(2, 2, 4.1)
    assert not asha.report(0, 4, 0.0)  # max_t ends even the best


@pytest.mark.parametrize("case", range(len(SETTINGS)))
def test_recorded_decisions_of_ray(case):
    recorded = json.loads(RECORDED.read_text())[case]
    assert recorded["settings"] == list(SETTINGS[case])
    for seed, answers in enumerate(recorded["answers"]):
        assert decisions(ours(*SETTINGS[case]), SETTINGS[case][0], seed) == [a == "1" for a in answers]
    assert "0" in "".join(recorded["answers"])


@pytest.mark.parametrize("case", range(len(SETTINGS)))
def test_ray_itself_where_it_is_installed(case):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    pytest.importorskip("ray.tune", exc_type=ImportError)
    for seed in range(100, 110):
        max_t = SETTINGS[case][0]
        assert decisions(ours(*SETTINGS[case]), max_t, seed) == decisions(rays(*SETTINGS[case]), max_t, seed)


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_a_saved_state_goes_on_with_the_same_verdicts(seed, cut):
    asha, count = [ASHA(20, 2, 2, "max")], 0

    def judge(trial, t, metric):
        nonlocal count
        count += 1
        if count == cut:
            state = json.loads(json.dumps(asha[0].state()))
            asha[0] = ASHA(20, 2, 2, "max")
            asha[0].load(state)
        if t < 0:
            asha[0].complete(trial, -t, metric)
            return True
        return asha[0].report(trial, t, metric)

    assert decisions(judge, 20, seed) == decisions(ours(20, 2, 2, "max"), 20, seed)


def test_what_cannot_be_is_refused():
    with pytest.raises(KoopsimError, match="grace is 5"):
        ASHA(4, 5)
    with pytest.raises(KoopsimError, match="reduction"):
        ASHA(4, 1, 1)
    with pytest.raises(KoopsimError, match="diverged has no metric"):
        ASHA(4, 1).report(0, 1, float("nan"))
    with pytest.raises(KoopsimError, match="3 rungs and this one 1"):
        ASHA(4, 4).load([{}, {}, {}])


if __name__ == "__main__":
    rows = []
    for settings_ in SETTINGS:
        found = [decisions(rays(*settings_), settings_[0], seed) for seed in range(5)]
        rows.append({"settings": settings_, "answers": ["".join("01"[a] for a in answers) for answers in found]})
    RECORDED.write_text(json.dumps(rows, indent=1) + "\n")
