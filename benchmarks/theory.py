"""What the paper says of SIMs beside its tables, tried: memory against depth (section 3.4), and the data they need.

python benchmarks/theory.py memory [--device cuda] [--out results/theory-memory.json]
python benchmarks/theory.py draw     # docs/images/theory-memory.png and, where measured, theory-samples.png
python benchmarks/theory.py samples [--dataset cifar10] [--out results/h200/theory-samples.json]     # a GPU, minutes

memory   the most bytes of a training step of copy memory (T = 500, batch 20) above the model, its data and gradients:
         the two SIMs; the DEQ with 10 to 40 solver steps; the DEQ's cell unrolled to as many layers
samples  accuracy on the test split of SIM and monDEQ trained on 1/16 ... 1/1 of the pictures for as many *steps* as the
         whole takes, so that fewer pictures are not less training; the recipes of Table 2, nothing searched
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from equilibrium import measured_peak
from torch.nn import functional as F
from verbs import trained, write

import koopsim
from koopsim.presets import run_of

STEPS = (10, 20, 40)
SHARES = (16, 8, 4, 2, 1)
HERE = Path(__file__).parents[1]
TITLE = "copy memory, T = 500, batch 20: models of 17,000 parameters"
MODELS = ("sim-single", "mondeq-single")


def memory(arguments: argparse.Namespace) -> dict:
    device = torch.device(arguments.device)
    tokens = torch.randint(1, 9, (20, 520), device=device)
    rows = []

    def measure(name: str, model: torch.nn.Module, answer, depth: int | None) -> None:
        def step() -> None:
            F.cross_entropy(answer(tokens).flatten(0, 1), tokens.flatten()).backward()

        step()  # gradients are there from now on
        parameters = sum(p.numel() for p in model.parameters())
        rows.append({"model": name, "depth": depth, "parameters": parameters, "bytes": measured_peak(step, device)})
        print(rows[-1], flush=True)

    for name in ("copy/sim-single", "copy/sim-two"):
        model = koopsim.build(name).to(device)
        measure(name, model, model, None)
    run = run_of("copy/deq")
    for steps in STEPS:
        solver = replace(run.model.forward, max_steps=steps, tolerance=1e-30)
        deq = koopsim.build(replace(run.model, forward=solver, backward=solver)).to(device)
        measure("copy/deq", deq, deq, steps)
        measure("copy/deq, unrolled", deq, lambda t, deq=deq, steps=steps: unrolled(deq, t, steps), steps)
    return {"rows": rows, "device": str(device)}


def unrolled(deq, tokens: torch.Tensor, steps: int) -> torch.Tensor:
    """The same weight-tied layer, so many times over, as a plain network."""
    embedded = F.embedding(tokens, deq.embedding) * deq.embedding.shape[1] ** 0.5
    injected = deq.injection(embedded)
    z = embedded.new_zeros(embedded.shape)
    for _ in range(steps):
        z = deq.deq.cell(z, injected)
    return deq.read(z)


def samples(arguments: argparse.Namespace) -> dict:
    from koopsim.datasets import load_images

    count, rows = len(load_images(arguments.dataset).train[0]), []
    for share in SHARES:
        for model in MODELS:
            name = f"{arguments.dataset}/{model}"
            run = run_of(name)
            words = ["--task.train", count // share, "--recipe.epochs", run.recipe.epochs * share]
            if run.recipe.schedule == "step":
                words += ["--recipe.step-size", run.recipe.step_size * share]
            began = time.perf_counter()
            result = trained(name, *words)
            row = {"model": name, "train": count // share, "share": 1 / share, "test": result["test"]}
            rows.append(row | {"train_seconds": result["train_seconds"], "seconds": time.perf_counter() - began})
            print(rows[-1], flush=True)
            write(arguments.out, {"rows": rows, "seed": 0})
    return {"rows": rows, "seed": 0}


def draw(arguments: argparse.Namespace) -> None:
    """The figures of docs/claims.md from what is in results/."""
    from matplotlib import pyplot as plt

    rows = json.loads((HERE / "results" / "theory-memory.json").read_text())["rows"]
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, marker in (("copy/deq, unrolled", "s-"), ("copy/deq", "o-")):
        own = [row for row in rows if row["model"] == name]
        axis.plot([row["depth"] for row in own], [row["bytes"] / 2**20 for row in own], marker, label=name)
    for colour, row in zip(("C2", "C3"), [row for row in rows if row["depth"] is None], strict=True):
        axis.axhline(row["bytes"] / 2**20, ls="--", color=colour, label=row["model"])
    axis.set(yscale="log", xlabel="solver steps, or layers", ylabel="MiB of a training step", title=TITLE)
    axis.legend(fontsize=8)
    figure.savefig(HERE / "docs" / "images" / "theory-memory.png", dpi=90)
    file = HERE / "results" / "h200" / "theory-samples.json"
    if file.exists():
        rows = json.loads(file.read_text())["rows"]
        figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
        for name in dict.fromkeys(row["model"] for row in rows):
            own = sorted((row["train"], 100 * row["test"]["accuracy"]) for row in rows if row["model"] == name)
            axis.plot(*zip(*own, strict=True), "o-", label=name)
        axis.set(xscale="log", xlabel="pictures trained on", ylabel="test accuracy, %")
        axis.legend(fontsize=8)
        figure.savefig(HERE / "docs" / "images" / "theory-samples.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "samples", "draw"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.what == "draw":
        return draw(arguments)
    write(arguments.out, (memory if arguments.what == "memory" else samples)(arguments))


if __name__ == "__main__":
    main()
