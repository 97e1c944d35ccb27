"""Table 1, copy memory: its models and recipes, what the paper has, what a run takes.    paper, section 5.1

Recipes hold hyper-parameters found on the validation split: the SIMs' by the paper's search of 100 trials, confirmed
(results/h200/searches), the DEQ's by the one trial of six that ended (docs/evidence.md). Adam's eps and clipping are
the paper's (appendix B.1).
"""

from koopsim.config import (
    CopyMemoryConfig,
    DEQConfig,
    FourierConfig,
    ModelConfig,
    Recipe,
    Run,
    SIMConfig,
    SolverConfig,
    TCNConfig,
)
from koopsim.kinds import Preset

PUBLISHED = {"copy/deq": 2.24e-09, "copy/sim-single": 7.03e-09, "copy/sim-two": 5.06e-08}  # test cross-entropy in nats
# Of a run as measured: at the paper's size, alone on an H200 (results/), at the smoke scale on one core.
SECONDS = {"copy/sim-single": 52, "copy/sim-two": 53, "copy/deq": 529}
SMOKE_SECONDS = {"copy/sim-single": 16, "copy/sim-two": 12, "copy/deq": 47}


def _row(model: ModelConfig, parameters: int, recipe: Recipe) -> Preset:
    return Preset(Run(model, CopyMemoryConfig(), recipe), parameters)


PRESETS = {
    "copy/sim-single": _row(
        SIMConfig(TCNConfig(), lift_dim=32),
        17_294,
        Recipe(batch_size=1, learning_rate=0.00041721327868547394, eps=1e-5, clip_norm=1.0),
    ),
    "copy/sim-two": _row(
        SIMConfig(TCNConfig(), lift_dim=32, fourier=FourierConfig(features=32, bandwidth=724.4812978718213)),
        17_294,
        Recipe(batch_size=1, learning_rate=0.003763469858008591, eps=1e-5, clip_norm=1.0),
    ),
    "copy/deq": _row(
        DEQConfig(forward=SolverConfig(max_steps=16), backward=SolverConfig(max_steps=16)),
        17_010,
        Recipe(batch_size=1, learning_rate=1.5e-3, schedule="cosine", warm_up=200, clip_norm=0.25),
    ),
}
