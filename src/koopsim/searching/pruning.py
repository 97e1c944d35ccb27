"""Whether trials are pruned at all.

    nobody is pruned   <=   max_t = grace = epochs of the longest trial: ASHA (asha.py) has no rung before the end

Of many settings drawn from wide ranges most are no good, and an early look is enough to say so. A short list given by
hand is another matter: its settings are all near the best, an early look cannot tell them apart, and all of it was
meant to be tried; and its first is never stopped, for nobody was at a rung before it. So where everything that is
searched over is listed, and the trials asked for are enough for the whole list, nobody is pruned unless max_t, grace or
reduction say when. It stays in search.json as max_t and grace.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from koopsim.config import Run
from koopsim.searching.trial import draw_trials
from koopsim.spaces import Choice, Listed, SearchSpace

HALVING = ("max_t", "grace", "reduction")  # of a space: when ASHA stops a trial


def unpruned(space: SearchSpace, base: Run, seed: int) -> SearchSpace:
    """The same space, every trial of which runs to the end of its recipe."""
    longest = max(trial.run.recipe.epochs for trial in draw_trials(base, space, seed))
    return replace(space, max_t=longest, grace=longest)


def whole_list(space: SearchSpace, given: Collection[str]) -> bool:
    """Whether this is a list given by hand and all of it is to be tried; `given`: what the user said of the space."""
    searched = [p for p in space.parameters.values() if not (isinstance(p, Choice) and len(p.values) == 1)]
    lists = [p for p in searched if isinstance(p, Listed)]
    if not lists or len(lists) < len(searched) or any(name in given for name in HALVING):
        return False
    return "trials" in given and space.trials >= max(len(p.values) for p in lists)
