"""How wrong are the answers and gradients of a monDEQ whose solves stop at a tolerance? By both kinds of residual.

    KOOPSIM_DATA=... PYTHONPATH=src python benchmarks/mondeq_convergence.py --out results/mondeq-convergence.json

    whole   || z - z_before || / || z || of the whole state, of which the last tier may be a small part
    tiers   the sum of those of the tiers, which is what koopsim takes

The trained models of the zoo on test images, against solves to 1e-6; in float32, on a CPU.
"""

import argparse
import time
import warnings
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

import koopsim
from koopsim.config import ClassificationConfig
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.monotone_operator import Chain
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task
from koopsim.tasks.classification import Classification


def solved(model: MonDEQ, x: Tensor, y: Tensor, tol: float) -> tuple[Tensor, Tensor, list[float]]:
    """Logits, all gradients in one vector, mean steps forward and backward."""
    model.tol = tol
    model.zero_grad()
    logits = model(x)
    F.cross_entropy(logits, y).backward()
    info = model.last_info
    assert info is not None
    assert info.backward is not None
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return logits.detach(), gradient, [float(i.steps.double().mean()) for i in (info, info.backward)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[f"{d}/mondeq-multi" for d in ("cifar10", "svhn", "mnist")])
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, began, plain = [], time.monotonic(), Chain.storage
    for name in arguments.models:
        model = koopsim.load(name)
        task = build_task(ClassificationConfig(name.split("/")[0]), torch.device("cpu"))
        assert isinstance(model, MonDEQ)
        assert isinstance(task, Classification)
        images, labels = task.split("test")
        x, y = task.inputs(images[: arguments.images]), labels[: arguments.images]
        want, slope, _ = solved(model.train(), x, y, 1e-6)
        for kind in ("whole", "tiers"):
            # one tier of all rows is the whole state
            storage = plain if kind == "tiers" else lambda *given: replace(plain(*given), tiers=())
            with patch.object(Chain, "storage", storage):
                logits, gradient, steps = solved(model, x, y, arguments.tol)
            size = torch.linalg.vector_norm
            row = {"name": name, "residual": kind, "tol": arguments.tol, "images": len(x)}
            row |= {"solver_steps": steps[0], "backward_solver_steps": steps[1]}
            row |= {"logits_error": float(size(logits - want) / size(want))}
            row |= {"gradient_error": float(size(gradient - slope) / size(slope))}
            row |= {"other_answers": float((logits.argmax(1) != want.argmax(1)).double().mean())}
            rows.append(row)
            print(row, flush=True)
    if arguments.out:
        write_json(arguments.out, {"rows": rows, "seconds": time.monotonic() - began, "environment": environment()})


if __name__ == "__main__":
    main()
