"""Answers as one deploys them: `koopsim.deploy` beside the plain model, exported files, and models with a solver.

One input at a time is waited for, as a caller does: the host's part counts. Many at once are a throughput. Weights are
the zoo's; a monDEQ has its inverse once. Every way of answering is compared with the plain model's answer first.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from koopsim.bench.inference import answer_note, inputs_for, settled_inverse
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, measure
from koopsim.deployment import deploy
from koopsim.errors import KoopsimError
from koopsim.export import FORMATS, export, load_exported
from koopsim.kinds import model_kind
from koopsim.presets import PRESETS

WORKS = {
    "copy/sim-single": ("copy/deq",),
    "copy/sim-two": ("copy/deq",),
    "cifar10/sim-single": ("cifar10/mondeq-single", "cifar10/mondeq-multi"),
    "mnist/sim-single": ("mnist/mondeq-single", "mnist/mondeq-multi"),
}
NEAR = {"float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}  # of the largest output
LONG = 256  # sequences at once: a DEQ's attention takes seconds for more
Answer = Callable[[Tensor], Tensor]


def deploy_rows(setting: Setting) -> Iterator[Comparison]:
    """`deploy` against every other way to answer, one input at a time and many."""
    for name, others in WORKS.items():
        if name.split("/")[0] not in ("copy", *setting.sizes.image_sets):
            continue
        plain = model_of(name, setting.device).eval()
        solved = {other: settled_inverse(model_of(other, setting.device).eval()) for other in others}
        with tempfile.TemporaryDirectory() as folder:
            files = _files(name, plain, setting, Path(folder))
            many = min(LONG, setting.sizes.large_batch) if name.startswith("copy") else setting.sizes.large_batch
            for batch in (1, many):
                with in_precision(setting.precision):
                    found = _rows(name, batch, setting, {name: plain, **files, **solved})
                yield from found


def _rows(name: str, batch: int, setting: Setting, ways: dict[str, Answer]) -> list[Comparison]:
    x, data = inputs_for(name, batch, setting)
    x = x.float()
    plain = ways[name]
    assert isinstance(plain, nn.Module)
    answers = {f"{name}, deployed": deploy(plain, [tuple(x.shape)], autocast=setting.autocast), **ways}
    makers: dict[str, Maker] = {}
    for way, answer in answers.items():
        cast = setting.autocast if isinstance(answer, nn.Module) else None
        if name in way:
            _agree(way, answer, plain, x, setting)
        makers[way] = _waited_for(answer, x, cast, wait=batch == 1)
    timings = measure(makers, setting.device, min(5, setting.sizes.turns))
    notes = {w: answer_note(t, batch, answers[w] if w in ways else plain) for w, t in timings.items()}  # pyright: ignore
    sides = {way: Side(way, timing, note=notes[way]) for way, timing in timings.items()}
    ours, *rest = sides.values()
    return [Comparison("deploy", f"an answer, {data}, batch {batch}", ours, other) for other in rest]


@torch.no_grad()
def _agree(way: str, answer: Answer, plain: nn.Module, x: Tensor, setting: Setting) -> None:
    few = x[: min(len(x), 16)]
    want, got = plain(few), answer(few)
    far = float((got - want).abs().max() / want.abs().max())
    if not far <= NEAR[setting.precision]:
        raise KoopsimError(f"{way} differs from the model by {far:.2g} of its largest answer: not measured.")


def _waited_for(answer: Answer, x: Tensor, autocast: torch.dtype | None, wait: bool) -> Maker:
    """An answer as its caller has it: nothing is opened around it that it does not need."""

    def plain() -> None:
        answer(x)
        if wait and x.is_cuda:
            torch.cuda.synchronize(x.device)

    @torch.no_grad()
    def of_a_module() -> None:
        with torch.autocast(x.device.type, dtype=autocast, enabled=autocast is not None):
            plain()

    return lambda: of_a_module if isinstance(answer, nn.Module) else plain


def _files(name: str, model: nn.Module, setting: Setting, folder: Path) -> dict[str, Answer]:
    """Exported forms that run on this device in this precision; one that cannot be made here is left out.

    On CUDA machine code by AOTInductor is left to `koopsim export`, which times it too: where it does not fit the
    machine it takes the process with it.
    """
    found: dict[str, Answer] = {}
    if setting.autocast is not None:
        return found
    for format, ending in FORMATS.items():
        if format in ("onnx", "aoti") and setting.device.type != "cpu":
            continue
        config = PRESETS[name].model
        x, axes = model_kind(config).example(config, 2, setting.sizes.horizon + 20, torch.Generator().manual_seed(0))
        try:
            file = export(model, x.to(setting.device), axes, folder / f"model{ending}", format)
            loaded = load_exported(file)
        except (KoopsimError, RuntimeError, OSError):  # no compiler, no toolkit
            continue
        if loaded is not None:
            found[f"{name}, {format}"] = loaded[0]
    return found
