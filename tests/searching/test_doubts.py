"""What a search says of its own answer: on trials written by hand."""

from dataclasses import replace

from small_search import tiny_run

from koopsim.searching.doubts import doubts
from koopsim.searching.results import best_trial
from koopsim.searching.space import with_values
from koopsim.searching.trial import Trial
from koopsim.spaces import Choice, LogUniform, SearchSpace, Uniform

RATE = "recipe.learning_rate"
RUN = with_values(tiny_run("copy/sim-single"), {"recipe.epochs": 4})
SPACE = SearchSpace({RATE: LogUniform(1e-4, 1e-1)}, trials=4, max_t=4, grace=1)


def trial(index, losses, rate=3e-3, status="finished"):
    curve = [{"t": t + 1, "seconds": 1.0, "train_loss": 1.0, "loss": loss} for t, loss in enumerate(losses)]
    return Trial(index, {RATE: rate}, with_values(RUN, {RATE: rate}), status, "", curve)


def said(trials, space=SPACE, confirmed=False):
    return doubts(trials, space, best_trial(trials, space), confirmed)


def test_nothing_is_said_of_a_search_that_went_well():
    assert said([trial(i, [4.0, 3.0, 2.0, 1.0 + i / 10]) for i in range(5)]) == []


def test_a_choice_that_was_stopped_is_named_unless_it_was_confirmed():
    trials = [trial(0, [3.0, 2.0, 1.9, 1.8]), trial(1, [2.5, 1.0], status="pruned")]
    (sentence,) = said(trials)
    assert "Trial 1 was stopped after 2 of 4 epochs" in sentence
    assert "--confirm" in sentence
    assert said(trials, confirmed=True) == []


def test_a_figure_that_gets_worse_before_the_end_is_named_with_its_epoch():
    trials = [trial(i, [4.0, 1.0 + i / 100, 1.2, 1.5 + i / 50]) for i in range(4)]
    (sentence,) = said(trials)
    assert "best after 2 and then rises by 0.5" in sentence
    falling = [replace(t, curve=[line | {"loss": -line["loss"]} for line in t.curve]) for t in trials]
    (sentence,) = said(falling, replace(SPACE, mode="max"))
    assert "best after 2 and then falls by 0.5" in sentence
    assert said(trials[:2]) == []  # two are no evidence


def test_noise_is_no_fall():
    ends = [1.3, 0.8, 1.2, 0.9]
    assert said([trial(i, [4.0, 1.0, 1.4, end]) for i, end in enumerate(ends)]) == []


def test_only_trials_of_one_length_are_compared():
    trials = [trial(i, [4.0, 1.0, 1.2, 1.5 + i / 50]) for i in range(2)]
    longer = with_values(RUN, {"recipe.epochs": 5})
    trials.append(replace(trial(2, [4.0, 1.0, 1.2, 1.5, 1.4]), run=longer))
    assert said(trials, replace(SPACE, max_t=5)) == []


def test_the_best_few_at_one_end_of_a_range_are_named():
    def at(rates):
        return [trial(i, [4.0, 3.0, 2.0, 1.0 + i / 10], rate) for i, rate in enumerate(rates)]

    middle = [1e-2] * 9
    (high,) = said(at([9e-2, 8e-2, 7e-2, *middle]))
    assert "learning_rate near 0.1, the upper end" in high
    (low,) = said(at([1.1e-4, 1.2e-4, 1.3e-4, *middle]))
    assert "learning_rate near 0.0001, the lower end" in low
    assert said(at([9e-2, 8e-2, 1e-2, *middle])) == []
    assert said(at([9e-2, 8e-2, 7e-2])) == []  # too few to tell


def test_three_that_agree_are_enough_and_a_level_curve_is_no_fall():
    (sentence,) = said([trial(i, [4.0, 1.0 + i / 100, 1.2, 1.5 + i / 50]) for i in range(3)])
    assert sentence.startswith("Over the 3 finished trials of 4 epochs validation loss is best after 2 and then rises")
    assert said([trial(i, [1.0, 1.0, 1.0, 1.0]) for i in range(5)]) == []


def test_a_fall_counts_from_three_standard_errors():
    """Four gains 0.5 - a, 0.5 - a, 0.5 + a, 0.5 + a: their mean is sqrt(3) / 2a of its standard errors."""

    def gains(errors):
        a = 3**0.5 / (2 * errors)
        return [trial(i, [4.0, 1.0, 3.0, 1.5 + a * sign]) for i, sign in enumerate((-1, -1, 1, 1))]

    assert len(said(gains(3.3))) == 1
    assert said(gains(2.8)) == []


def test_an_end_is_the_outer_seventh_of_a_range():
    """Places 0.14 and 0.86 are its ends, 0.17 and 0.83 are not; in a range that is even as in one of powers."""

    def at(place, count=12, even=False):
        rate = 1e-4 + place * (1e-1 - 1e-4) if even else 10 ** (-4 + 3 * place)
        middle = [5e-2 if even else 3e-3] * (count - 3)
        trials = [trial(i, [4.0, 3.0, 2.0, 1.0 + i / 10], r) for i, r in enumerate([rate] * 3 + middle)]
        space = replace(SPACE, parameters={RATE: Uniform(1e-4, 1e-1)}) if even else SPACE
        return said(trials, space)

    for even in (False, True):
        assert ["the best may lie below it" in s for s in at(0.14, even=even)] == [True]
        assert ["the best may lie above it" in s for s in at(0.86, even=even)] == [True]
        assert at(0.17, even=even) == at(0.83, even=even) == at(0.14, 11, even) == []


def test_a_choice_has_no_ends():
    space = replace(SPACE, parameters={"recipe.batch_size": Choice((1, 2)), **SPACE.parameters})
    trials = [trial(i, [4.0, 3.0, 2.0, 1.0 + i / 10], 9e-2 if i < 3 else 1e-2) for i in range(12)]
    assert len(said(trials, space)) == 1


def test_exactly_an_end_is_not_within_it():
    space = replace(SPACE, parameters={RATE: Uniform(0.0, 1.0)})
    for rate, near in ((0.15, 0), (0.1499, 1), (0.85, 0), (0.8501, 1)):
        trials = [trial(i, [4.0, 3.0, 2.0, 1.0 + i / 10], rate if i < 3 else 0.5) for i in range(12)]
        assert len(said(trials, space)) == near
