"""A bandwidth from the data: the median distance between lifted inputs.

    b = median_{i<j} | mu(x_i) - mu(x_j) |          over pairs of inputs that differ

The features sin(w.x/b), cos(w.x/b) tell two points apart when they lie about b from each other: much closer, they are
one point; much farther, they are noise. The lift's scale decides which, and with it where a search over
b in [1e-3, 1e3) finds anything at all. Here it is measured on the untrained lift, in the units psi has, and kept in the
trial's configuration as a number. A lift may grow a hundredfold while it learns; `fourier.normalise` follows it.
For psi on bare coordinates (RFF only) it is the picture's size, far too smooth: search a factor there.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.nn import SIM, RandomFourierFeatures
from koopsim.tasks import Task

SAMPLES = 64  # inputs looked at; a sequence or a picture brings many points each
POINTS = 1000
SAME = 1e-9  # of the largest distance: points that near are one


@torch.no_grad()
def median_bandwidth(model: nn.Module, x: Tensor) -> float:
    """The median distance between the points mu(x); x is a batch as the model sees it."""
    if not isinstance(model, SIM):
        raise KoopsimError(f"{type(model).__name__} has no lift; the median bandwidth is for SIMs with features.")
    lift = copy.deepcopy(model.mu).train()  # BatchNorm by the batch: the running averages have seen nothing yet
    points = lift(x)
    if isinstance(model.psi, RandomFourierFeatures):
        points = copy.deepcopy(model.psi).train().scaled(points)
    points = points.flatten(0, -2).double()
    keep = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:POINTS]
    distances = torch.pdist(points[keep.to(points.device)].cpu())
    apart = distances[distances > SAME * distances.max()] if len(distances) else distances
    if not len(apart):
        raise KoopsimError("All lifted inputs are the same point: there is no distance to take a bandwidth from.")
    return float(apart.median())


def with_median_bandwidth(run: Run, task: Task, factor: float, device: torch.device) -> Run:
    """The run with the bandwidth measured on its own untrained lift and the first training inputs, times `factor`."""
    kind = model_kind(run.model)
    kind.with_bandwidth(run.model, 1.0)  # a model without one says so first
    torch.manual_seed(run.seed)
    model = build(run.model).to(device)
    x = task.split(run.train_on)[0]
    spread = torch.linspace(0, len(x) - 1, min(POINTS if x.ndim == 2 else SAMPLES, len(x)), device=x.device).long()
    found = factor * median_bandwidth(model, task.inputs(x[spread]))
    return replace(run, model=kind.with_bandwidth(run.model, found))
