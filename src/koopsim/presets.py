"""Every row of the paper by name, with the number of parameters it was published with.

    koopsim.build("copy/sim-single")        koopsim train copy/sim-single

A preset is a model, and where its task is built, the task and the recipe that trains it. Recipes hold the
hyper-parameters that our own search found on the validation split (results/ says how).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from koopsim.config import (
    CopyMemoryConfig,
    DEQConfig,
    FourierConfig,
    IdentityConfig,
    MLPConfig,
    Model,
    Recipe,
    Run,
    SIMConfig,
    SolverConfig,
    TCNConfig,
    VGGConfig,
)
from koopsim.errors import KoopsimError, did_you_mean


@dataclass(frozen=True)
class Preset:
    """A row of the paper. `model` is None where the model is not built yet."""

    model: Model | None
    paper_parameters: int | None
    run: Run | None = None
    note: str = ""


def _copy_memory(name: str, model: Model, parameters: int, recipe: Recipe) -> tuple[str, Preset]:
    return name, Preset(model, parameters, Run(model, CopyMemoryConfig(), recipe))


def _images(dataset: str, image: tuple[int, int, int], single: tuple[int, int], two: tuple[int, int]):
    """The two SIMs of Table 2 as (channels, published parameters)."""
    fourier = FourierConfig(features=104, bandwidth=10.0)
    yield f"{dataset}/sim-single", Preset(SIMConfig(VGGConfig(single[0], image), lift_dim=50), single[1])
    yield f"{dataset}/sim-two", Preset(SIMConfig(VGGConfig(two[0], image), lift_dim=50, fourier=fourier), two[1])


def _mondeq(dataset: str, single: int, multi: int):
    for kind, parameters in (("single", single), ("multi", multi)):
        yield f"{dataset}/mondeq-{kind}", Preset(None, parameters, note="not built yet")


# Adam with eps 1e-5 and clipping at 1.0 for the SIMs, at 0.25 for the DEQ: paper, Table of appendix B.1.
PRESETS: dict[str, Preset] = dict(
    [
        _copy_memory(
            "copy/sim-single",
            SIMConfig(TCNConfig(), lift_dim=32),
            17_294,
            Recipe(batch_size=1, learning_rate=1e-3, eps=1e-5, clip_norm=1.0),
        ),
        _copy_memory(
            "copy/sim-two",
            SIMConfig(TCNConfig(), lift_dim=32, fourier=FourierConfig(features=32, bandwidth=16.0)),
            17_294,
            Recipe(batch_size=1, learning_rate=2e-3, eps=1e-5, clip_norm=1.0),
        ),
        _copy_memory(
            "copy/deq",
            DEQConfig(forward=SolverConfig(max_steps=16), backward=SolverConfig(max_steps=16)),
            17_010,
            Recipe(batch_size=1, learning_rate=1.5e-3, schedule="cosine", warm_up=200, clip_norm=0.25),
        ),
        *_images("cifar10", (3, 32, 32), (38, 168_694), (36, 168_264)),
        *_mondeq("cifar10", 172_218, 170_194),
        *_images("svhn", (3, 32, 32), (38, 168_694), (36, 168_264)),
        *_mondeq("svhn", 172_218, 170_194),
        *_images("mnist", (1, 28, 28), (24, 81_480), (21, 80_466)),
        *_mondeq("mnist", 84_460, 81_394),
        ("image/sim-single", Preset(SIMConfig(MLPConfig(2, 256), lift_dim=256, hidden=256, outputs=3), None)),
        (
            "image/sim-two",
            Preset(SIMConfig(MLPConfig(2, 256), lift_dim=256, fourier=FourierConfig(256), hidden=256, outputs=3), None),
        ),
        (
            "image/sim-rff",
            Preset(
                SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(512, 0.016), hidden=256, outputs=3),
                None,
            ),
        ),
    ]
)


def preset(name: str) -> Preset:
    """The preset called `name`; an unknown name says which one was probably meant."""
    if name not in PRESETS:
        raise KoopsimError(f"There is no preset {name!r}." + did_you_mean(name, PRESETS))
    return PRESETS[name]


def run_of(name: str, scale: str = "paper") -> Run:
    """The run that trains preset `name`, at the paper's size or at one that ends in seconds."""
    found = preset(name)
    if found.run is None:
        raise KoopsimError(f"{name} can be built but not trained yet: its task is still to come.")
    return found.run if scale == "paper" else _smoke(found.run)


def _smoke(run: Run) -> Run:
    """The same code at a size that ends in seconds on two cores: a short horizon and large batches."""
    task = replace(run.task, horizon=20, train=900, valid=100, test=200)
    if isinstance(run.model, DEQConfig):
        model = replace(run.model, forward=SolverConfig(), backward=SolverConfig())
        recipe = replace(run.recipe, batch_size=5, epochs=4, learning_rate=3e-3, warm_up=100)
        return replace(run, model=model, task=task, recipe=recipe)
    return replace(run, task=task, recipe=replace(run.recipe, batch_size=20, epochs=20, learning_rate=2e-3))
