"""Whether a run's model and recipe can be given its data at all: said before the first step, not by a crash in it."""

import torch

from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.tasks.base import Task


@torch.no_grad()
def refuse_misfits(run: Run, task: Task) -> None:
    """Show two samples to an untrained model: it must take them, and have an answer for every class."""
    if task.many or task.checks_itself:
        return
    x, y = task.example(run.train_on)
    shift = max(run.recipe.shift, run.recipe.cutout)
    if x.ndim == 4 and shift >= min(x.shape[-2:]):
        size = " x ".join(map(str, x.shape[-2:]))
        raise KoopsimError(f"The recipe moves or blanks {shift} pixels of pictures of {size}; it must be fewer.")
    with torch.random.fork_rng(devices=[]):
        model = build(run.model).to(x.device).eval()
    try:
        outputs = model(task.inputs(x[:2]))
    except (RuntimeError, ValueError, IndexError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise KoopsimError(f"The model cannot be given this data: {first.rstrip('.')}.") from error
    classes = 0 if y.is_floating_point() or not task.labels else 1 + int(max(y.max(), task.example("test")[1].max()))
    if classes > outputs.shape[-1]:
        raise KoopsimError(
            f"The model has {outputs.shape[-1]} outputs and the data {classes} classes; set --model.outputs {classes}."
        )
