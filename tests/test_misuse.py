"""The library says what is wrong too, in one sentence, and never leaves it to torch or NumPy."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import koopsim
from koopsim import KoopsimError, Learning, Recipe, spectral
from koopsim.fitting import FitSettings
from koopsim.implicit import DEQ
from koopsim.sklearn import DEQRegressor, SIMClassifier, SIMRegressor

ROWS = np.random.default_rng(0).normal(size=(40, 3))
LABELS = ROWS[:, 0] > 0
PATH = np.cumprod(np.full((30, 2), 0.9), axis=0)
HIDDEN = np.ma.masked_array(ROWS, mask=ROWS > 1)


def sim(lift=None, lift_dim=8, outputs=2, **more):
    return koopsim.SIM(nn.Linear(4, 8) if lift is None else lift, lift_dim, outputs, **more)


def cell(z, x):
    return 0.5 * torch.tanh(z) + x


MISUSES = {
    "hidden is 0": lambda: sim(hidden=0),
    "hidden is '32'": lambda: sim(hidden="32"),
    "outputs is None": lambda: sim(outputs=None),
    "lift_dim is True": lambda: sim(lift_dim=True),
    "The lift is 3; expected a module": lambda: sim(lift=3),
    "fourier is 7; expected": lambda: sim(fourier=7),
    "The lift gives 8 numbers where lift_dim says 9": lambda: sim(lift_dim=9)(torch.ones(2, 4)),
    "x is ndarray; expected a tensor": lambda: sim()(ROWS),
    "x is NoneType; expected a tensor": lambda: sim()(None),
    "build was given None; expected": lambda: koopsim.build(None),
    "Did you mean 'copy/sim-single'": lambda: koopsim.build("copy/sim-singel"),
    "This is NoneType; expected a run directory": lambda: koopsim.load(None),
    "Did you mean 'mnist/sim-two'": lambda: koopsim.load("mnist/sim-tow"),
    "There is no device 'tpu'": lambda: koopsim.load("zoo:mnist/sim-two", "tpu"),
    "This is NoneType; expected a model": lambda: koopsim.deploy(None, [(1, 4)]),
    "deploy for are 4; expected": lambda: koopsim.deploy(sim(), 4),
    "deploy for are ..x..; expected": lambda: koopsim.deploy(sim(), ["x"]),
    "max_steps=2.5": lambda: DEQ(cell, max_steps=2.5),
    "tol='x'": lambda: DEQ(cell, tol="x"),
    "Did you mean 'anderson'": lambda: DEQ(cell, solver="andersen"),
    "rows of different lengths": lambda: spectral.analyze([[1, 2], [3]]),
    "got 'x'": lambda: spectral.analyze(np.eye(2), noise="x"),
    "analyze needs finite entries; 1 of 4": lambda: spectral.analyze(np.ma.masked_array(np.eye(2), [[1, 0], [0, 0]])),
    "chunk must be": lambda: spectral.EDMD(chunk=0).fit(PATH),
    "there is no device 'tpu'": lambda: spectral.EDMD(device="tpu").fit(PATH),
    "steps must be a whole number >= 0; got -1": lambda: spectral.EDMD().fit(PATH).forecast(PATH[0], -1),
    "steps must be a whole number >= 0; got 2.5": lambda: spectral.EDMD().fit(PATH).forecast(PATH[0], 2.5),
    "two embeddings have as many numbers": lambda: spectral.mmd(np.ones(3), np.ones(5)),
    "MLP width is None": lambda: SIMClassifier(width=None).fit(ROWS, LABELS),
    "MLP width is 3.5": lambda: SIMClassifier(width=3.5).fit(ROWS, LABELS),
    "max_steps is 0": lambda: DEQRegressor(max_steps=0).fit(ROWS, ROWS[:, 0]),
    "Input X contains NaN": lambda: SIMClassifier().fit(HIDDEN, LABELS),
    "Input y contains NaN": lambda: SIMRegressor().fit(ROWS, HIDDEN[:, 0]),
    "This is NoneType; expected a Run": lambda: koopsim.train(None),
    "This is int; expected a Run": lambda: koopsim.search(3),
    "The scale is 'tiny'": lambda: koopsim.train("copy/sim-single", scale="tiny"),
    "learning is int": lambda: koopsim.train(sim(), (torch.ones(5, 4), torch.zeros(5)), learning=3),
    "space is 3": lambda: koopsim.search("copy/sim-single", space=3),
    "space is 'x'": lambda: koopsim.search("copy/sim-single", space="x"),
    "epochs is 'x'": lambda: Recipe(epochs="x"),
    "epochs is 2.5": lambda: Recipe(epochs=2.5),
    "The learning rate is 'x'": lambda: Recipe(learning_rate="x"),
    "schedule is 'cosin'; expected constant": lambda: Recipe(schedule="cosin"),
    "loss is 'mse'": lambda: Learning(loss="mse"),
    "valid is 2.0": lambda: Learning(valid=2.0),
    "metrics is 0": lambda: Learning(metrics=[1]),
    "seed is -1": lambda: Learning(seed=-1),
    "recipe is 3": lambda: Learning(recipe=3),
    "This is ndarray; expected a picture": lambda: koopsim.fit(np.zeros((8, 8, 3))),
    "There is no file|no.png": lambda: koopsim.fit(Path("no.png")),
    "steps is 'x'": lambda: FitSettings(steps="x"),
}


@pytest.mark.parametrize("said", MISUSES)
def test_one_sentence(said):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((KoopsimError, ValueError), match=said):
            MISUSES[said]()


def test_a_masked_row_is_not_answered():
    fitted = SIMClassifier(epochs=1, random_state=0).fit(ROWS, LABELS)
    assert len(fitted.predict(np.ma.masked_array(ROWS, mask=False))) == len(ROWS)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted.predict(HIDDEN)
