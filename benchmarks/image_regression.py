"""Table 3 on a folder of pictures: search on validation pixels, 2,000 steps, PSNR on test pixels; and how fast.

    PYTHONPATH=src python benchmarks/image_regression.py --sets ../shared/data/natural16 ../shared/data/text16 \
        --stages timing search final precision --out results/h200 --minutes 20
    PYTHONPATH=src python benchmarks/image_regression.py --tiny --out /tmp/tiny      # all stages, seconds, on a CPU

search     trials of (learning rate, bandwidth, sizes) for every picture at once; successive halving per picture on the
           PSNR of the validation pixels; writes image-search-MODEL-SET.json
final      2,000 steps with each picture's own choice (or the preset's where there was no search); test PSNR;
           writes image-MODEL-SET.json, pictures and figures
timing     the pictures of the first set, RFF only, M = 512, 2,000 steps: wall time alone
precision  the final settings again in fp16, bf16, tf32 and float32 on a few pictures

A result is written as soon as it is there; what fails is said and the rest goes on.
"""

import argparse
import json
import math
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.quasirandom import SobolEngine

from koopsim.config import (
    FourierConfig,
    FourierNetworkConfig,
    IdentityConfig,
    ImageRegressionConfig,
    MLPConfig,
    Model,
    Recipe,
    Run,
    SIMConfig,
    from_dict,
    to_dict,
)
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.pictures import save_png
from koopsim.pictures.figures import figure4, psnr_curves
from koopsim.pictures.read import to_pixels
from koopsim.runs import environment, write_json
from koopsim.tasks.image_regression import ImageRegression, psnr_of
from koopsim.train.pictures import Member, bytes_of, population_of
from koopsim.train.population import Population, groups

TITLES = {"sim-single": "SIM (single)", "sim-two": "SIM (two)", "sim-rff": "SIM (RFF only)", "tancik": "Tancik"}
ORDER = ["sim-rff", "tancik", "sim-two", "sim-single"]
HIDDEN = 256
STEPS_AN_EPOCH = 100


@dataclass(frozen=True)
class Shape:
    """What decides the shapes of a SIM: width of the lift (0: none), N, M (0: single-tier)."""

    width: int
    N: int
    M: int


@dataclass(frozen=True)
class Space:
    """Where trials are drawn: log-uniform rates and bandwidths, inside the paper's [1e-4, 0.05) and [1e-3, 1e3)."""

    shapes: tuple[Shape, ...]
    rates: tuple[float, float]
    bandwidths: tuple[float, float]
    share: float = 1.0  # of --trials
    gains: tuple[float, ...] = (1.0,)  # of the lift's first matrices, taken in turn


# The region that trials on small crops left open (docs/images-as-networks.md), narrowed to where the first recorded
# searches had their best trials by validation pixels, and to what was best on other pictures (image_recipes.py); --wide
# is the paper's whole space.
SPACES = {
    "sim-single": Space((Shape(512, 512, 0),), (5e-4, 2.5e-3), (1, 1), share=0.5, gains=(math.sqrt(6), 1.0)),
    "sim-two": Space((Shape(32, 32, 512), Shape(64, 64, 512)), (1e-4, 1e-3), (0.003, 0.02)),
    "sim-rff": Space((Shape(0, 2, 512),), (1.5e-3, 1e-2), (0.006, 0.015)),
    "tancik": Space((), (1e-3, 1e-3), (1, 1)),
}


def sim(shape: Shape, bandwidth: float, gain: float = 1.0, spread: str = "random") -> SIMConfig:
    lift = MLPConfig(2, shape.width, gain=gain) if shape.width else IdentityConfig(2)
    even = spread == "even" and not shape.width
    psi = FourierConfig(shape.M, bandwidth, spread="even" if even else "random") if shape.M else None
    return SIMConfig(lift, lift_dim=shape.N, fourier=psi, hidden=HIDDEN, outputs=3)


def default_choice(name: str, pictures: str, tiny: bool, spread: str = "random") -> tuple[Model, float]:
    """What is trained where nothing was searched: Tancik's published settings, the presets' for the rest."""
    if name == "tancik":
        model = FourierNetworkConfig(sigma=14.0 if "text" in pictures else 10.0)
        return (replace(model, features=32, width=16), 1e-3) if tiny else (model, 1e-3)
    shape = SPACES[name].shapes[0]
    shape = Shape(min(shape.width, 16), min(shape.N, 16), min(shape.M, 32)) if tiny else shape
    bandwidth, rate = {"sim-single": (1.0, 1e-3), "sim-two": (0.006, 4e-4), "sim-rff": (0.014, 2e-3)}[name]
    return sim(shape, bandwidth, SPACES[name].gains[0], spread), rate


def label(member: Member) -> dict[str, Any]:
    """The settings of a member that differ between pictures."""
    found: dict[str, Any] = {"learning_rate": member.learning_rate, "seed": member.seed}
    if isinstance(member.model, SIMConfig):
        lift = member.model.lift
        if isinstance(lift, MLPConfig):
            found |= {"width": lift.width, "N": member.model.lift_dim, "gain": lift.gain}
        if member.model.fourier:
            found |= {"M": member.model.fourier.features, "bandwidth": member.model.fourier.bandwidth}
            found |= {"spread": "even"} if member.model.fourier.spread == "even" else {}
    elif isinstance(member.model, FourierNetworkConfig):
        found |= {"sigma": member.model.sigma}
    return found


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        self.a = arguments
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.deadline = time.monotonic() + 60 * arguments.minutes
        self.recipe = Recipe(
            epochs=-(-arguments.steps // STEPS_AN_EPOCH), schedule=arguments.schedule, average=arguments.average
        )
        self.tasks: dict[str, ImageRegression] = {}
        arguments.out.mkdir(parents=True, exist_ok=True)

    def task(self, pictures: str) -> ImageRegression:
        if pictures not in self.tasks:
            config = ImageRegressionConfig(pictures, self.a.size, self.a.pictures, steps_an_epoch=STEPS_AN_EPOCH)
            self.tasks[pictures] = ImageRegression(config, self.device)
        return self.tasks[pictures]

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def file(self, kind: str, model: str, pictures: str) -> Path:
        return self.a.out / f"{kind}-{model.removeprefix('image/')}-{Path(pictures).name}{self.a.suffix}.json"

    def preset(self, name: str) -> str:
        """What a result is called: averaged weights and even frequencies are ours, not the paper's."""
        return f"image/{name}" + (":best" if self.a.average or self.a.spread == "even" else "")

    # ------------------------------------------------------------ stepping members, in groups that fit

    def populations(
        self, task: ImageRegression, members: Sequence[Member], precision: str
    ) -> Iterator[tuple[list[int], Population]]:
        """(which members, their population), for all members: equal shapes together, as many as fit."""
        by_shape: dict[str, list[int]] = {}
        for i, member in enumerate(members):
            by_shape.setdefault(json.dumps(shape_key(member.model)), []).append(i)
        pixels = len(task.split("train")[0])
        waiting = []
        for where in by_shape.values():
            each = bytes_of(members[where[0]].model, pixels, precision)
            waiting += [[where[i] for i in part] for part in groups(len(where), each, self.device, self.a.at_once)]
        while waiting:
            part = waiting.pop(0)
            population = None
            try:
                population = population_of(
                    task, [members[i] for i in part], self.recipe, precision,
                    capture=self.device.type == "cuda" and not self.a.eager, compile=self.a.compile,
                )  # fmt: skip
                population.warm_up()
            except torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                print(f"  {len(part)} members do not fit: halving", flush=True)
                population = None
                torch.cuda.empty_cache()
                waiting[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            yield part, population
            del population
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # ------------------------------------------------------------ search

    def trials(self, name: str, count: int) -> list[tuple[Model, float]]:
        """Quasi-random (model, learning rate), spread evenly over shapes and gains."""
        space = SPACES[name]
        shapes = [Shape(*map(int, text.split("x"))) for text in self.a.shapes or []] or space.shapes
        rates, bandwidths = np.log(self.a.rates or space.rates), np.log(self.a.bandwidths or space.bandwidths)
        if self.a.wide:
            rates = np.log((1e-4, 0.05))
            bandwidths = np.log((1e-3, 1e3))
        draws = SobolEngine(2, scramble=True, seed=self.a.seed).draw(count).double().numpy()
        found = []
        for i, (u, v) in enumerate(draws):
            shape = shapes[i % len(shapes)]
            if self.a.tiny:
                shape = Shape(min(shape.width, 16), min(shape.N, 16), min(shape.M, 32))
            rate = float(np.exp(rates[0] + u * (rates[1] - rates[0])))
            bandwidth = float(np.exp(bandwidths[0] + v * (bandwidths[1] - bandwidths[0])))
            found.append((sim(shape, bandwidth, space.gains[i % len(space.gains)], self.a.spread), rate))
        return found

    def search(self, name: str, pictures: str) -> None:
        """Successive halving: every rung's survivors of a picture are its best on the validation pixels."""
        task, began = self.task(pictures), time.monotonic()
        trials = self.trials(name, max(2, round(SPACES[name].share * self.a.trials)))
        members = [Member(p, m, lr, self.a.seed + 17 * p) for p in range(len(task.names)) for m, lr in trials]
        alive, states, curves = list(range(len(members))), {}, [[] for _ in members]
        reached = 0
        for rung, steps in enumerate(self.a.rungs):
            for part, population in self.populations(task, [members[i] for i in alive], self.a.precision):
                rows = [alive[i] for i in part]
                for slot, i in enumerate(rows):
                    if i in states:
                        put(population, slot, states[i])
                psnrs = self.looks(task, population, [members[i].picture for i in rows], reached, steps)
                for slot, i in enumerate(rows):
                    curves[i].append({"step": steps, "valid_psnr": psnrs[slot]})
                    states[i] = taken(population, slot)
                del population
            reached = steps
            last = rung == len(self.a.rungs) - 1
            keep = max(1, round(len(trials) * self.a.keep ** (rung + 1)))
            survivors = []
            for p in range(len(task.names)):
                own = sorted((i for i in alive if members[i].picture == p), key=lambda i: -known(curves[i]))
                survivors += own[:keep]
            for i in set(alive) - set(survivors):
                states.pop(i, None)
            self.write_search(name, pictures, task, members, curves, alive, time.monotonic() - began)
            mean, spent = self.best_mean(task, members, curves, alive), time.monotonic() - began
            where = f"search {name} {Path(pictures).name}"
            print(f"  {where}: {len(alive)} members to step {steps}, best valid {mean:.2f}, {spent:.0f} s", flush=True)
            if last or self.late():
                break
            alive = sorted(survivors)

    def looks(
        self, task: ImageRegression, population: Population, pictures: list[int], reached: int, steps: int
    ) -> list[float]:
        """Train on to `steps`; the PSNR on validation pixels, in the mean of a few looks over the last tenth.

        At a constant rate the PSNR goes up and down by tenths of a dB from step to step: one look would choose the
        luckiest trial, not the best one.
        """
        apart = max(1, steps // 10 // self.a.looks)
        found = []
        for look in range(self.a.looks - 1, -1, -1):
            population.run(steps - look * apart - reached)
            reached = steps - look * apart
            found.append(task.psnrs(population.models(), "valid", pictures))
        return np.mean(found, axis=0).tolist()

    def best_mean(self, task: ImageRegression, members: list[Member], curves: list, alive: list[int]) -> float:
        best = [max(known(curves[i]) for i in alive if members[i].picture == p) for p in range(len(task.names))]
        return float(np.mean(best))

    def write_search(
        self, name: str, pictures: str, task: ImageRegression, members: list[Member], curves: list, alive: list[int],
        seconds: float,
    ) -> None:  # fmt: skip
        """Every trial with its curve, and each picture's choice: the best of those that came furthest."""
        chosen = {}
        for p, picture in enumerate(task.names):
            best = max((i for i in alive if members[i].picture == p), key=lambda i: known(curves[i]))
            member = members[best]
            chosen[picture] = {"model": to_dict(member.model), "valid_psnr": known(curves[best]), **label(member)}
        rows = [
            {
                "picture": task.names[m.picture],
                **label(m),
                "curve": [[c["step"], c["valid_psnr"]] for c in curve],
            }
            for m, curve in zip(members, curves, strict=True)
        ]
        write_json(
            self.file("image-search", name, pictures),
            {"name": f"image/{name}", "set": Path(pictures).name, "rungs": list(self.a.rungs), "trials": self.a.trials,
             "looks": self.a.looks,
             "precision": self.a.precision, "seconds": seconds, "chosen": chosen, "members": rows,
             "environment": environment()},
        )  # fmt: skip

    def choice(self, name: str, pictures: str, seed: int) -> list[Member]:
        """Each picture's settings: from the search where there was one."""
        task, found = self.task(pictures), self.file("image-search", name, pictures)
        chosen = json.loads(found.read_text())["chosen"] if found.exists() else {}
        members = []
        for p, picture in enumerate(task.names):
            model, rate = default_choice(name, pictures, self.a.tiny, self.a.spread)
            if picture in chosen:
                model, rate = from_dict(Model, chosen[picture]["model"]), chosen[picture]["learning_rate"]
            members.append(Member(p, model, rate, seed + 17 * p))
        return members

    # ------------------------------------------------------------ final

    def train(self, task: ImageRegression, members: list[Member], precision: str, watch: bool) -> dict[str, Any]:
        """All members for all steps; figures at the end, and on the way where `watch`."""
        count, steps = len(members), self.a.steps
        ends: list[Any] = [None] * count
        lines: dict[int, dict[str, list[float]]] = {}
        seconds, set_up, capture = 0.0, 0.0, False
        mark = time.perf_counter()
        for part, population in self.populations(task, members, precision):
            self.wait()
            set_up += time.perf_counter() - mark
            capture = population.capture
            spent, step = 0.0, 0
            while step < steps:
                chunk = min(STEPS_AN_EPOCH, steps - step)
                self.wait()
                began = time.perf_counter()
                population.run(chunk)
                self.wait()
                spent += time.perf_counter() - began
                step += chunk
                if not watch and step < steps:
                    continue
                line = lines.setdefault(step, {"seconds": [], "train": [], "valid": [], "test": []})
                line["seconds"].append(spent)
                line["train"] += [psnr_of(v) for v in population.losses[:, step - 1].double().tolist()]
                models = list(population.models())
                where = [members[i].picture for i in part]
                for split in ("valid", "test"):
                    line[split] += task.psnrs(models, split, where)
                if step >= steps:
                    for i, model, valid, test in zip(
                        part, models, line["valid"][-len(part) :], line["test"][-len(part) :], strict=True
                    ):
                        ends[i] = (model.cpu(), valid, test)
            seconds += spent
            del population
            mark = time.perf_counter()
        metrics = [
            {"epoch": step // STEPS_AN_EPOCH, "step": step, "seconds": sum(line["seconds"]),
             **{f"{split}_psnr": float(np.mean(line[split])) for split in ("train", "valid", "test")}}
            for step, line in sorted(lines.items())
        ]  # fmt: skip
        return {
            "ends": ends, "metrics": metrics, "train_seconds": seconds, "set_up_seconds": set_up, "captured": capture,
            "milliseconds_per_step": 1e3 * seconds / steps,
            "milliseconds_per_picture_step": 1e3 * seconds / steps / count,
        }  # fmt: skip

    def final(self, name: str, pictures: str) -> None:
        task, members = self.task(pictures), self.choice(name, pictures, self.a.seed)
        done = self.train(task, members, self.a.precision, watch=True)
        ends = done.pop("ends")
        run = Run(members[0].model, task.config, self.recipe, self.a.seed, "train", self.a.precision)
        result = {
            "name": self.preset(name), "set": Path(pictures).name, "pictures": list(task.names),
            "parameters": [count_parameters(build(m.model)) for m in members],
            "valid": task.figures([e[1] for e in ends]), "test": task.figures([e[2] for e in ends]),
            "settings": [{"picture": task.names[m.picture], **label(m)} for m in members],
            "searched": self.file("image-search", name, pictures).exists(), "seed": self.a.seed,
            "precision": self.a.precision, "steps": self.a.steps, "device": str(self.device), **done,
            "run": to_dict(run), "environment": environment(),
        }  # fmt: skip
        write_json(self.file("image", name, pictures), result)
        test = result["test"]
        print(f"  {name} {Path(pictures).name}: test {test['psnr']:.2f} +- {test['psnr_std']:.2f}, valid "
              f"{result['valid']['psnr']:.2f}, {done['train_seconds']:.1f} s, "
              f"{done['milliseconds_per_picture_step']:.3f} ms a picture-step", flush=True)  # fmt: skip
        folder = self.a.out / "images"
        folder.mkdir(exist_ok=True)
        for p in self.a.draw:
            if p < len(ends):
                model = ends[p][0].to(self.device)
                save_png(
                    folder / f"{Path(pictures).name}-{task.names[p]}-{name}{self.a.suffix}.png",
                    to_pixels(task.draw(model)),
                )

    def figures(self) -> None:
        """Figure 4 and PSNR against seconds from what the results so far left on disk."""
        from PIL import Image

        rows, psnrs = [], []
        for pictures in self.a.sets:
            task, kept = self.task(pictures), Path(pictures).name
            results = {n: json.loads(f.read_text()) for n in TITLES if (f := self.file("image", n, pictures)).exists()}
            curves = {TITLES[n]: r["metrics"] for n, r in results.items()}
            if curves:
                psnr_curves(
                    curves,
                    self.a.out / "images" / f"psnr-{kept}{self.a.suffix}.png",
                    f"{kept}, {len(task.names)} pictures",
                )
            for p in self.a.draw:
                row, figures = {}, {}
                if p < len(task.names):
                    row["truth"] = task.values[p].cpu().numpy()
                    save_png(self.a.out / "images" / f"{kept}-{task.names[p]}-truth.png", to_pixels(row["truth"]))
                    for name, result in results.items():
                        file = self.a.out / "images" / f"{kept}-{task.names[p]}-{name}{self.a.suffix}.png"
                        if file.exists():
                            row[TITLES[name]] = np.asarray(Image.open(file)) / 255
                            figures[TITLES[name]] = result["test"][f"psnr/{task.names[p]}"]
                if len(row) > 1 and (not rows or row.keys() == rows[0].keys()):
                    rows.append(row)
                    psnrs.append(figures)
        if rows:
            figure4(rows, self.a.out / "images" / f"figure4{self.a.suffix}.png", psnrs)

    # ------------------------------------------------------------ timing and precision

    def timing(self, pictures: str) -> None:
        """All pictures of the set, RFF only, nothing watched: the wall time from pixels on the device to trained."""
        task, rows = self.task(pictures), []
        model, rate = default_choice("sim-rff", pictures, self.a.tiny)
        members = [Member(p, model, rate, p) for p in range(len(task.names))]
        for precision in self.a.precisions:
            done = self.train(task, members, precision, watch=False)
            ends = done.pop("ends")
            done.pop("metrics")
            rows.append({"precision": precision, **done, "test_psnr": float(np.mean([e[2] for e in ends]))})
            print(f"  timing {precision}: {json.dumps(rows[-1])}", flush=True)
            write_json(
                self.a.out / "image-timing.json",
                {"pictures": len(members), "M": model.fourier.features if isinstance(model, SIMConfig) and model.fourier
                 else None, "steps": self.a.steps, "compiled": self.a.compile, "rows": rows, "device": str(self.device),
                 "environment": environment()},
            )  # fmt: skip
            if self.late():
                return

    def precision(self, name: str, pictures: str) -> None:
        """The same members in each precision: what a short one costs in dB."""
        task = self.task(pictures)
        members = self.choice(name, pictures, self.a.seed)[: self.a.precision_pictures]
        file, rows = self.file("image-precision", name, pictures), []
        for precision in self.a.precisions:
            done = self.train(task, members, precision, watch=False)
            tests = [e[2] for e in done.pop("ends")]
            done.pop("metrics")
            rows.append({"precision": precision, "test_psnr": float(np.mean(tests)), "tests": tests, **done})
            print(f"  precision {name} {Path(pictures).name} {precision}: {rows[-1]['test_psnr']:.3f} dB, "
                  f"{done['milliseconds_per_picture_step']:.3f} ms a picture-step", flush=True)  # fmt: skip
            write_json(file, {"name": f"image/{name}", "set": Path(pictures).name, "rows": rows,
                              "settings": [label(m) for m in members], "environment": environment()})  # fmt: skip
            if self.late():
                return


def shape_key(model: Model) -> Any:
    """Equal for models that can be stacked."""
    if isinstance(model, SIMConfig) and model.fourier:
        model = replace(model, fourier=replace(model.fourier, bandwidth=1.0))
    elif isinstance(model, FourierNetworkConfig):
        model = replace(model, sigma=1.0)
    return to_dict(model)


def known(curve: list[dict[str, float]]) -> float:
    """The last PSNR of a trial; minus infinity where it diverged or never began."""
    value = curve[-1]["valid_psnr"] if curve else -np.inf
    return value if np.isfinite(value) else -np.inf


def taken(population: Population, slot: int) -> dict[str, torch.Tensor]:
    """A member's state, off the device; its buffers come again from its seed."""
    own = {name: t for name, t in population.state().items() if not name.startswith("buffer.")}
    return {name: t[slot].detach().cpu().clone() for name, t in own.items()}


@torch.no_grad()
def put(population: Population, slot: int, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in state.items():
        population.state()[name][slot].copy_(tensor)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["../shared/data/natural16", "../shared/data/text16"])
    parser.add_argument("--models", nargs="+", choices=list(TITLES), default=ORDER)
    stages = ["timing", "search", "final", "precision"]
    parser.add_argument("--stages", nargs="+", choices=stages, default=stages)
    parser.add_argument("--out", type=Path, default=Path("results/h200"))
    parser.add_argument("--minutes", type=float, default=25.0, help="begin nothing new after this long")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--pictures", type=int, help="only the first so many of each set")
    parser.add_argument("--trials", type=int, default=24, help="for every picture")
    parser.add_argument(
        "--rungs", type=int, nargs="+", default=[300, 1000, 2000], help="steps at which trials are judged"
    )
    parser.add_argument("--looks", type=int, default=5, help="at validation pixels, for each judgement")
    parser.add_argument("--keep", type=float, default=0.34, help="share of the trials that goes on after a rung")
    parser.add_argument(
        "--schedule", choices=["constant", "cosine"], default="constant", help="the paper's is constant"
    )
    parser.add_argument("--average", type=float, default=0.0, help="of the weights, as in a recipe; the paper has none")
    parser.add_argument("--spread", choices=["random", "even"], default="random", help="of the frequencies of RFF only")
    parser.add_argument("--suffix", default="", help="of the files, to keep another recipe beside the paper's: -cosine")
    parser.add_argument("--rates", type=float, nargs=2, metavar=("LOW", "HIGH"), help="where learning rates are drawn")
    parser.add_argument("--bandwidths", type=float, nargs=2, metavar=("LOW", "HIGH"), help="and bandwidths")
    parser.add_argument("--shapes", nargs="+", metavar="WIDTHxNxM", help="such as 32x32x512; 0x2x512 is RFF only")
    parser.add_argument("--wide", action="store_true", help="the paper's whole range of rates and bandwidths")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16", "fp16"], default="fp16")
    parser.add_argument("--precisions", nargs="+", default=["fp16", "bf16", "tf32", "float32"])
    parser.add_argument("--precision-pictures", type=int, default=4)
    parser.add_argument("--draw", type=int, nargs="+", default=[0, 4], help="which pictures are kept as PNG")
    parser.add_argument("--at-once", type=int, help="members trained together; by default as many as fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--compile", action="store_true", help="torch.compile the stacked loss")
    parser.add_argument("--tiny", action="store_true", help="all stages at a size that ends in seconds on a CPU")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.sets, arguments.size, arguments.steps, arguments.pictures = ["photographs", "text"], 32, 40, 2
        arguments.trials, arguments.rungs, arguments.precision_pictures, arguments.draw = 4, [10, 20, 40], 1, [0]
    return arguments


def main() -> None:
    arguments = parse()
    bench = Bench(arguments)

    def attempt(what: str, function: Any, *given: Any) -> None:
        if bench.late():
            print(f"{what}: no time left", flush=True)
            return
        print(f"{what}", flush=True)
        try:
            function(*given)
        except Exception:
            traceback.print_exc()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()

    if "timing" in arguments.stages:
        attempt("timing", bench.timing, arguments.sets[0])
    for name in arguments.models:
        for pictures in arguments.sets:
            if "search" in arguments.stages and SPACES[name].shapes:
                attempt(f"search {name} {pictures}", bench.search, name, pictures)
            if "final" in arguments.stages:
                attempt(f"final {name} {pictures}", bench.final, name, pictures)
    if "final" in arguments.stages:
        bench.deadline += 60
        attempt("figures", bench.figures)
        bench.deadline -= 60
    if "precision" in arguments.stages:
        for name in arguments.models:
            for pictures in arguments.sets:
                attempt(f"precision {name} {pictures}", bench.precision, name, pictures)


if __name__ == "__main__":
    main()
