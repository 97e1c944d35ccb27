"""What to know of a search before its answer is trusted, in sentences.

    stopped    the chosen trial was halved away: nobody has seen its last epochs
    falling    over the finished trials the figure is best before the end, by more than three standard errors
    edge       the best few lie at one end of a range: the best may lie beyond it

The choice stays as it was; these say what to try next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from koopsim.searching.results import ranked, value_of
from koopsim.searching.trial import Trial, length
from koopsim.spaces import LogUniform, SearchSpace, Uniform

FEW = 3  # trials that have to agree
ENOUGH = 12  # trials of which the best few say something of a range
ERRORS = 3  # standard errors by which a figure is better before the end
OUTER = 0.15  # share of a range that counts as its end


def doubts(trials: Sequence[Trial], space: SearchSpace, best: Trial, confirmed: bool = False) -> list[str]:
    """The sentences; none where there is nothing to say. `confirmed`: the choice was made by full trainings."""
    said = [] if confirmed else [_stopped(best, space)]
    said += [_falling(trials, space), *_edges(trials, space)]
    return [sentence for sentence in said if sentence]


def _stopped(best: Trial, space: SearchSpace) -> str | None:
    whole = length(best.run, space.max_t)
    if best.t >= whole:
        return None
    return (
        f"Trial {best.index} was stopped after {best.t} of {whole} epochs, so nobody has seen how it ends; "
        "--confirm 3 trains the best ones to their end before one is chosen."
    )


def _falling(trials: Sequence[Trial], space: SearchSpace) -> str | None:
    """Finished trials of the commonest length, compared epoch by epoch with their own end."""
    finished = [t for t in trials if t.status == "finished"]
    if not finished:
        return None
    last = Counter(t.t for t in finished).most_common(1)[0][0]
    costs = np.array([[space.cost(line[space.metric]) for line in t.curve] for t in finished if len(t.curve) == last])
    if len(costs) < FEW:
        return None
    gains = costs[:, -1:] - costs
    at = int(gains.mean(0).argmax())
    gain, error = gains[:, at].mean(), gains[:, at].std(ddof=1) / math.sqrt(len(gains))
    if at == last - 1 or not gain > ERRORS * error:
        return None
    worse = "falls" if space.mode == "max" else "rises"
    return (
        f"Over the {len(costs)} finished trials of {last} epochs validation {space.metric} is best after {at + 1} and "
        f"then {worse} by {gain:.2g}: a shorter training may do better."
    )


def _edges(trials: Sequence[Trial], space: SearchSpace) -> list[str]:
    said = []
    for path, parameter in space.parameters.items():
        if not isinstance(parameter, (LogUniform, Uniform)):
            continue
        scale = math.log if isinstance(parameter, LogUniform) else float
        low, high = scale(parameter.low), scale(parameter.high)
        values = [value_of(trial, path) for trial in ranked(trials, space)]
        places = [(scale(value) - low) / (high - low) for value in values]
        if len(places) < ENOUGH:
            continue
        best, end = places[:FEW], ""
        if max(best) < OUTER:
            end = f"{parameter.low:g}, the lower end: the best may lie below it."
        elif min(best) > 1 - OUTER:
            end = f"{parameter.high:g}, the upper end: the best may lie above it."
        said += [f"The best {FEW} have {path.rpartition('.')[2]} near {end}"] if end else []
    return said
