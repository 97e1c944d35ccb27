"""A search small enough for a test: a short horizon, a shallow lift, few sequences."""

from dataclasses import replace

import torch

from koopsim.config import to_dict
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.presets import run_of
from koopsim.searching.directory import Search
from koopsim.searching.space import base_of
from koopsim.spaces import Choice, LogUniform, SearchSpace

CPU = torch.device("cpu")


def tiny_run(name="copy/sim-two", precision="float64", **task):
    run = base_of(run_of(name, "smoke"))
    if name.startswith("copy"):
        sizes = {"horizon": 3, "train": 50, "valid": 12, "test": 12} | task
        run = replace(run, task=replace(run.task, **sizes))
        run = replace(run, model=replace(run.model, lift=replace(run.model.lift, levels=2)))
    elif name.startswith("digits"):
        run = replace(run, task=replace(run.task, train=150, test=50))
        run = replace(run, model=replace(run.model, lift=replace(run.model.lift, channels=4)))
    else:
        run = replace(run, task=replace(run.task, size=16, steps_an_epoch=5))
    return replace(run, precision=precision)


def tiny_search(name="copy/sim-two", trials=8, batches=(8, 16), rates=(1e-3, 3e-2), **more):
    run = tiny_run(name)
    parameters = {"recipe.batch_size": Choice(batches), "recipe.learning_rate": LogUniform(*rates)}
    if run.model.fourier:
        parameters["model.fourier.bandwidth"] = LogUniform(1.0, 100.0)
    space = SearchSpace(parameters, trials, max_t=4, grace=1)
    return Search(name, run, space, **more)


FOUND = {
    "name": "x", "metric": "psnr", "trials": 2, "ended": {}, "environment": {}, "pictures": [], "seconds": 1.0,
    "best": {"trial": 0, "t": 1, "psnr": 1.0, "values": {}},
}  # the least that a search's result.json says  # fmt: skip


def result_of_run(run, **more):
    """The least that a run's result.json says, and more."""
    least = {"name": "x", "run": to_dict(run), "environment": {}, "parameters": 1, "metrics": []}
    return least | {"train_seconds": 1.0, "milliseconds_per_step": 0.5} | more


def trained_alone(run, task, epochs, device=CPU):
    """(the trial by itself, its figures after each epoch)"""
    alone = Stacked([run], task, device, run.recipe.epochs, Way(capture=False))
    lines = []
    for _ in range(epochs):
        epoch(alone)
        lines.append(alone.figures(0))
    return alone, lines


def epoch(engine):
    engine.begin_epoch()
    engine.advance(0, engine.epoch_steps)
    engine.finish_epoch()
