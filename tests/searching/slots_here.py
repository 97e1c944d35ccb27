"""Slots whose trials have trained already: they say what is written, and nothing is trained.

    Telling(runs, epochs)     Telling.loss(trial, epoch): a figure, or the error that comes instead; a trial is its seed

What they were told is in `said`: ("open", seeds, epochs), the seeds of each epoch by slot, ("compact", slots).
"""

import torch

from koopsim.engine.slots import Slots

MOST_SAID = 200  # a search that goes on and on is stopped


class Telling(Slots):
    """One stack."""

    loss = staticmethod(lambda trial, t: 1.0)
    most = 99  # more at a time do not fit
    epoch_steps = 3
    sparse = property(lambda self: 2 * sum(r is not None for r in self.runs) <= len(self.runs))

    def __init__(self, runs, epochs, said=None):
        if len(runs) > self.most:
            raise torch.OutOfMemoryError("too many")
        self.runs, self.ages, self.said = list(runs), [0] * len(runs), [] if said is None else said
        self.taken = 0  # steps of this epoch
        self.said.append(("open", [r.seed for r in runs], epochs))

    def warm_up(self): ...
    def describe(self): ...

    def start(self, slot, run):
        assert self.runs[slot] is None
        self.runs[slot], self.ages[slot] = run, 0

    def add(self, run):
        self.runs.append(run)
        self.ages.append(0)

    def stop(self, slot):
        self.runs[slot] = None

    def begin_epoch(self):
        self.taken = 0
        self.said.append([None if r is None else r.seed for r in self.runs])
        assert len(self.said) < MOST_SAID, "it goes on and on"

    def advance(self, first, last):
        assert first == self.taken < last
        self.taken = last

    def figures(self, slot):
        assert self.taken == self.epoch_steps, "the epoch is not over"
        found = self.loss(self.runs[slot].seed, self.ages[slot])
        if isinstance(found, Exception):
            raise found
        return {"train_loss": 0.5, "loss": found}

    def compact(self, keep):
        self.said.append(("compact", list(keep)))
        self.runs, self.ages = [self.runs[i] for i in keep], [self.ages[i] for i in keep]

    def state(self):
        return {"ages": torch.tensor(self.ages)}

    def load(self, state, ages):
        assert state["ages"].tolist() == list(ages)
        self.ages = list(ages)


class Beside(Telling):
    """Side by side."""
