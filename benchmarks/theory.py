"""What the paper says of SIMs beside its tables, tried: memory against depth (section 3.4), and the data they need.

python benchmarks/theory.py memory [--device cuda] [--out results/theory-memory.json]
python benchmarks/theory.py draw     # docs/images/theory-memory.png and, where measured, theory-samples.png
python benchmarks/theory.py samples [--dataset cifar10] [--out results/h200/theory-samples.json]     # a GPU, minutes
python benchmarks/theory.py starts --seeds 20 [--out results/theory-starts.json]                     # z_0, minutes

memory   the most bytes of a training step of copy memory (T = 500, batch 20) above the model, its data and gradients:
         the two SIMs; the DEQ with 10 to 40 solver steps; the DEQ's cell unrolled to as many layers
samples  accuracy on the test split of SIM and monDEQ trained on 1/16 ... 1/1 of the pictures for as many *steps* as the
         whole takes, so that fewer pictures are not less training; the recipes of Table 2, nothing searched. A seed is
         that of the start, the batches and the choice of pictures. On a CPU --dataset digits --seeds 10
         (results/theory-samples-digits.json), --dataset mnist --like digits --size 8 8 --whole 1437 --seeds 5
         (theory-samples-mnist.json): models and recipes of the digits, as many pictures as theirs as the whole
starts   other starts than z_0 = 0 (section 3.4), scikit-learn's digits, one recipe: a learnt vector, the
         answer from zero once more, and, as the authors of DEQ's code does it, the states of the step before
"""

import argparse
import itertools
import json
import statistics
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

    like, rows = arguments.like or arguments.dataset, []
    count = arguments.whole or len(load_images(arguments.dataset).train[0])
    for seed, share, model in itertools.product(range(arguments.seeds), arguments.shares, MODELS):
        run = run_of(name := f"{like}/{model}")
        words = ["--task.dataset", arguments.dataset, "--task.train", count // share, "--task.seed", seed]
        words += ["--recipe.epochs", run.recipe.epochs * share, "--seed", seed]
        if arguments.size:
            words += ["--task.size", *arguments.size]
        if run.recipe.schedule == "step":
            words += ["--recipe.step-size", run.recipe.step_size * share]
        began = time.perf_counter()
        result = trained(name, *words)
        row = {"model": name, "set": arguments.dataset, "seed": seed, "train": count // share, "share": 1 / share}
        row |= {"test": result["test"]}
        rows.append(row | {"train_seconds": result["train_seconds"], "seconds": time.perf_counter() - began})
        print(rows[-1], flush=True)
        write(arguments.out, {"rows": rows})
    return {"rows": rows}


def starts(arguments: argparse.Namespace) -> dict:
    from koopsim.config import SIMConfig
    from koopsim.datasets import load_images
    from koopsim.nn.sim import build_sim

    images = load_images("digits")
    data = {split: (torch.tensor(x).float() / 255, torch.tensor(y)) for split, (x, y) in
            (("train", images.train), ("test", images.test))}  # fmt: skip
    config, rows = run_of("digits/sim-single").model, []
    assert isinstance(config, SIMConfig)
    for name in ("zero", "learnt", "again", "previous"):
        z0 = "again" if name == "previous" else name
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            model = build_sim(replace(config, z0=z0))
            found = started(model, data, name == "previous")
            rows.append({"z0": name, "seed": seed, **found})
            print(rows[-1], flush=True)
        write(arguments.out, {"rows": rows, "epochs": EPOCHS})
    return {"rows": rows, "epochs": EPOCHS}


EPOCHS = 12


def started(model: torch.nn.Module, data: dict, previous: bool) -> dict:
    """Train on digits with Adam and a cosine; with `previous` a step begins at the states of the step before."""
    (x, y), batch = data["train"], 32
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(x) // batch))
    z, hidden = None, run_of("digits/sim-single").model.hidden  # pyright: ignore[reportAttributeAccessIssue]
    loss = torch.zeros(())
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(batch)[: len(x) // batch]:
            if previous:
                z = model.state(x[rows], torch.zeros(batch, hidden) if z is None else z.detach())  # pyright: ignore
                outputs = model.sim.h(z)  # pyright: ignore
            else:
                outputs = model(x[rows])
            loss = F.cross_entropy(outputs, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        ways = {"test": (), "test_from_zero": (torch.zeros(hidden),)} if previous else {"test": ()}
        right = {way: float((model(data["test"][0], *z0).argmax(1) == data["test"][1]).float().mean())
                 for way, z0 in ways.items()}  # fmt: skip
        whole = model(x, torch.zeros(hidden)) if previous else model(x)
        return right | {"train_loss": float(F.cross_entropy(whole, y))}


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
    for file in (HERE / "results" / "h200" / "theory-samples.json", HERE / "results" / "theory-samples-digits.json"):
        if not file.exists():
            continue
        rows = json.loads(file.read_text())["rows"]
        figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
        for name in dict.fromkeys(row["model"] for row in rows):
            counts = sorted({row["train"] for row in rows})
            own = [
                [100 * r["test"]["accuracy"] for r in rows if r["model"] == name and r["train"] == n] for n in counts
            ]
            spread = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in own]
            axis.errorbar(counts, [statistics.mean(v) for v in own], spread, fmt="o-", capsize=3, label=name)
        axis.set(xscale="log", xlabel="pictures trained on", ylabel="test accuracy, %")
        axis.legend(fontsize=8)
        figure.savefig(HERE / "docs" / "images" / f"{file.stem}.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "samples", "starts", "draw"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--like", help="whose models and recipes; the data set's own by default")
    parser.add_argument("--size", type=int, nargs=2, help="scale pictures to this width and height")
    parser.add_argument("--whole", type=int, help="so many pictures are all; the data set's by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--shares", type=int, nargs="+", default=SHARES, help="16: a sixteenth of the pictures")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.what == "draw":
        return draw(arguments)
    write(arguments.out, {"memory": memory, "samples": samples, "starts": starts}[arguments.what](arguments))


if __name__ == "__main__":
    main()
