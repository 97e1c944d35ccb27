"""Answers: SIMs beside DEQ and monDEQ, fused beside plain; one input at a time, and many at once."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from koopsim import zoo
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of, solver_note
from koopsim.bench.timing import Maker, Timing, Work, measure
from koopsim.bench.training import image_of
from koopsim.config import CopyMemoryConfig
from koopsim.engine.capture import Recorder
from koopsim.implicit.monotone import MonDEQ
from koopsim.nn import SIM
from koopsim.nn.fuse import fuse
from koopsim.tasks import CopyMemory

Function = Callable[[Tensor], Tensor]
ALIGNED = 8  # channels: what tensor cores take at a time


def answering(model: Function, x: Tensor, setting: Setting, capture: bool = False) -> Maker:
    """Builds the work of answering x once."""

    def make() -> Work:
        @torch.no_grad()
        def work() -> None:
            with torch.autocast(x.device.type, dtype=setting.autocast, enabled=setting.autocast is not None):
                model(x)

        return Recorder(x.device).record(work, dict).replay if capture else work

    return make


def inputs_for(name: str, batch: int, setting: Setting) -> tuple[Tensor, str]:
    """Inputs of the right kind, and what they are."""
    if name.startswith("copy"):
        config = CopyMemoryConfig(horizon=setting.sizes.horizon, train=batch, valid=1, test=1)
        return CopyMemory(config, setting.device).split("train")[0], f"copy memory T={config.horizon}"
    return torch.randn(batch, *image_of(name), device=setting.device), name.split("/")[0]


def model_groups(setting: Setting) -> list[tuple[list[str], bool]]:
    """Models on the same data, and whether the zoo has trained weights for all of them."""
    found = [["copy/sim-single", "copy/sim-two", "copy/deq"]]
    kinds = ("sim-single", "sim-two", "mondeq-single", "mondeq-multi")
    found += [[f"{dataset}/{kind}" for kind in kinds] for dataset in setting.sizes.image_sets]
    return [(names, all(name in zoo.cards() for name in names)) for names in found]


@torch.no_grad()
def settled_inverse(model: nn.Module) -> nn.Module:
    """A monDEQ with its operator and the inverse computed once, as one would deploy it; others as they are."""
    if isinstance(model, MonDEQ):
        W = model.operator.linear()
        step = model._step(W)
        model.operator.linear, model._step = lambda: W, lambda W: step
    return model


def inference_rows(setting: Setting) -> list[Comparison]:
    """Plain eval, as `koopsim.load` gives the models; what a monDEQ needs only once is not counted."""
    found = []
    for names, trained in model_groups(setting):
        models = {name: settled_inverse(model_of(name, setting.device, trained).eval()) for name in names}
        for batch in (1, setting.sizes.large_batch):
            x, data = inputs_for(names[0], batch, setting)
            with in_precision(setting.precision):
                makers = {name: answering(model, x, setting) for name, model in models.items()}
                timings = measure(makers, setting.device, setting.sizes.turns)
            sides = {n: Side(n, timings[n], note=answer_note(timings[n], batch, models[n])) for n in names}
            for other in (n for n in names if "/sim" not in n):
                for ours in (n for n in names if "/sim" in n):
                    work = f"inference, {data}, batch {batch}"
                    found.append(Comparison("inference", work, sides[ours], sides[other]))
    return found


def fuse_rows(setting: Setting) -> list[Comparison]:
    """Fused against plain; on CUDA also captured with padded channels, the form to deploy."""
    found = []
    for name in [name for names, _ in model_groups(setting) for name in names if "/sim" in name]:
        plain = model_of(name, setting.device).eval()
        assert isinstance(plain, SIM)
        fused = fuse(plain)
        for batch in (1, setting.sizes.large_batch):
            x, data = inputs_for(name, batch, setting)
            with in_precision(setting.precision):
                makers = {"plain": answering(plain, x, setting), "fused": answering(fused, x, setting)}
                if setting.capture:
                    makers["fused, captured"] = answering(fuse(plain, ALIGNED), x, setting, capture=True)
                timings = measure(makers, setting.device, setting.sizes.turns)
            sides = {n: Side(f"{name}, {n}", t, note=answer_note(t, batch, plain)) for n, t in timings.items()}
            for ours in [n for n in sides if n != "plain"]:
                work = f"inference, {data}, batch {batch}"
                found.append(Comparison("fuse", work, sides[ours], sides["plain"]))
    return found


def answer_note(timing: Timing, batch: int, model: nn.Module) -> str:
    rate = f"{batch / timing.seconds:,.0f}/s"
    return ", ".join(part for part in (rate, solver_note(model)) if part)
