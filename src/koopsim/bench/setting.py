"""Under which conditions a comparison is made: the same for both sides."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from koopsim import zoo
from koopsim.bench.machine import Machine
from koopsim.models import build


@dataclass(frozen=True)
class Sizes:
    """How large the works are."""

    turns: int = 5
    horizon: int = 500  # T of copy memory, the paper's
    copy_batches: tuple[int, ...] = (1, 20)
    solver_batch: int = 20
    solver_steps: int = 4  # in a turn of a solver's row on CUDA
    solvers: tuple[str, ...] = ("anderson", "broyden", "picard")
    image_sets: tuple[str, ...] = ("mnist", "cifar10")
    image_batch: int = 128
    large_batch: int = 256  # of inference
    trials: int = 16  # in a stack
    pictures: int = 16
    picture_size: int = 128
    edmd: tuple[tuple[int, int, int], ...] = ((2, 8, 20_000), (4, 4, 50_000))  # states, degree, samples
    growth_horizons: tuple[int, ...] = (100, 250, 500, 1000, 2000)
    growth_lifted: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    growth_pictures: tuple[int, ...] = (1, 2, 4, 8)
    growth_trials: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    points: int = 1024  # of a batch in the curve over N
    growth_solver: int = 2000  # the DEQ is drawn beside the SIM up to this T: attention takes T^2 a solver step


QUICK = Sizes(
    turns=3,
    horizon=100,
    copy_batches=(10,),
    solver_batch=2,
    solvers=("anderson", "broyden"),
    image_sets=("mnist",),
    image_batch=16,
    large_batch=16,
    trials=8,
    pictures=4,
    picture_size=32,
    edmd=((2, 6, 5_000),),
    growth_horizons=(100, 200, 400),
    growth_lifted=(32, 128, 512),
    growth_pictures=(1, 2, 4),
    growth_trials=(1, 4, 8),
    points=256,
)
CUDA = Sizes(
    turns=7,
    image_batch=512,
    large_batch=4096,
    trials=256,
    picture_size=512,
    growth_horizons=(100, 200, 500, 1000, 2000, 5000, 10_000),
    growth_lifted=(32, 64, 128, 256, 512, 1024, 2048, 4096),
    growth_pictures=(1, 2, 4, 8, 16, 32, 64),
    growth_trials=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    points=16_384,
)


def sizes_for(device: torch.device, quick: bool) -> Sizes:
    """The paper's sizes; smaller ones that two cores finish in a minute or so."""
    return QUICK if quick else CUDA if device.type == "cuda" else Sizes()


@dataclass(frozen=True)
class Setting:
    """Device, precision and sizes of a run of the benchmark."""

    device: torch.device
    machine: Machine
    sizes: Sizes
    precision: str = "float32"

    @property
    def capture(self) -> bool:
        return self.device.type == "cuda"

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16" else None


@contextlib.contextmanager
def in_precision(precision: str) -> Iterator[None]:
    """Matrix products and convolutions as `precision` has them, then as they were."""
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    choosing = torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = convolutions, choosing


def model_of(name: str, device: torch.device, trained: bool = True) -> nn.Module:
    """A preset's model, with the weights of the zoo: a solver's work depends on them."""
    if trained and name in zoo.cards():
        return zoo.load(name, device)
    torch.manual_seed(0)
    return build(name).to(device)


def solver_note(model: nn.Module) -> str:
    """What a model with a solver says of its last solve; nothing for others."""
    report = getattr(model, "diagnostics", dict)()
    if "solver_steps" not in report:
        return ""
    missed = float(report["unconverged"])
    return f"{float(report['solver_steps']):.0f} solver steps" + (f", {missed:.0%} unconverged" if missed else "")
