"""Two short epochs of every kind of task and model, number by number: see kept_numbers.py.

what a model begins with -> its answers to fixed inputs and their gradients -> two epochs -> the figures it reports
"""

from dataclasses import replace

import pytest
import torch
from kept_numbers import same

from koopsim.kinds import OwnColumns, task_kind
from koopsim.models import build
from koopsim.presets import run_of
from koopsim.tasks import build_task
from koopsim.training import Session, start_run

pytestmark = pytest.mark.filterwarnings("ignore::koopsim.implicit.info.UnconvergedWarning")  # short, and early
COPY = {"horizon": 3, "train": 40, "valid": 10, "test": 10}
DIGITS = {"train": 60, "test": 20}
IMAGE = {"size": 8, "steps_an_epoch": 3, "count": 2}
SEQUENCES = {"samples": 60}
TASKS = {
    "copy/sim-single": COPY, "copy/sim-two": COPY, "copy/deq": COPY | {"train": 8, "valid": 4, "test": 4},
    "digits/sim-single": DIGITS, "digits/sim-two": DIGITS, "digits/mondeq-single": DIGITS,
    "digits/mondeq-multi": DIGITS, "digits/mondeq-connected": DIGITS, "digits/mdeq": DIGITS,
    "image/sim-single": IMAGE, "image/sim-two": IMAGE, "image/sim-rff": IMAGE, "image/tancik": IMAGE,
    "forecast/sim-single": {"samples": 300}, "forecast/deq": {"samples": 150, "context": 12},
    "forecast/gru": {"samples": 300},
    "classify/sim-two": SEQUENCES, "classify/gru": SEQUENCES, "tag/sim-single": {"samples": 40},
    "tag/deq": {"samples": 24},
    "table/sim-single": {"data": "iris"}, "table/sim-two": {"data": "diabetes"}, "table/sim-rff": {"data": "wine"},
    "table/deq": {"data": "iris"}, "table/mondeq": {"data": "iris"},
    "text/sim-single": {"length": 16, "windows": 40}, "text/deq-reversible": {"length": 8, "windows": 12},
}  # fmt: skip
FIGURES = {
    "loss", "train_loss", "accuracy", "score", "psnr", "train_psnr", "rmse", "mae", "bits", "right", "coverage",
    "last_value_rmse", "unconverged", "digits_right", "sequences_right", "psnr_std", "steps", "solver_steps",
}  # fmt: skip


def figures(found):
    """The figures among what a run reports, in parts and pictures too."""
    if isinstance(found, dict):
        return {k: figures(v) for k, v in sorted(found.items()) if k in FIGURES or isinstance(v, dict | list)}
    return [figures(v) for v in found] if isinstance(found, list) else found


@pytest.mark.parametrize("name", TASKS)
def test_numbers_of_runs(name, tmp_path):
    run = run_of(name, "smoke")
    task = dict(TASKS[name])
    if name.startswith("text"):
        (tmp_path / "text").write_bytes(bytes(97 + (n * n // 3) % 23 for n in range(1000)))
        task["text"] = str(tmp_path / "text")
    if name.startswith("table"):
        run = task_kind(run.task).on_own_table(run, name, task["data"], OwnColumns(target=("target",)))[1]
    run = replace(run, task=replace(run.task, **task), recipe=replace(run.recipe, epochs=2), precision="float32")
    torch.manual_seed(0)
    model = build(run.model)
    begins = {key: t.double() for key, t in model.state_dict().items() if t.is_floating_point()}
    same(f"begins/{name}", begins, rel=1e-5, near=1e-6)
    result = start_run(run, tmp_path / "o", name, Session(torch.device("cpu")))
    kept = {key: figures(result[key]) for key in ("valid", "test", "train", "pictures") if key in result}
    kept |= {"parameters": result.get("parameters"), "steps": result.get("steps")}
    same(f"run/{name}", kept, rel=2e-3, near=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16", "float64"])
def test_numbers_of_a_step_in_each_precision(precision, tmp_path):
    """Autocast in the step, or none: bfloat16's figures are not float32's, and both are kept."""
    run = run_of("copy/sim-two", "smoke")
    run = replace(run, task=replace(run.task, **COPY), recipe=replace(run.recipe, epochs=2), precision=precision)
    result = start_run(run, tmp_path / "o", "x", Session(torch.device("cpu")))
    same(
        f"precision/{precision}",
        figures(result["test"]),
        rel={"bf16": 2e-3, "float32": 1e-4, "float64": 1e-6}[precision],
    )


RECIPES = {
    "adamw": {"weight_decay": 0.5, "schedule": "cosine", "warm_up": 3},
    "step": {"schedule": "step", "step_size": 1},
    "clipped": {"clip_norm": 0.05},
    "smoothed": {"label_smoothing": 0.2},
    "averaged": {"average": 0.9},
    "augmented": {"flip": True, "shift": 1, "cutout": 2, "rotate": 10.0, "zoom": 0.1},
}


@pytest.mark.parametrize("kind", RECIPES)
def test_numbers_of_recipes(kind, tmp_path):
    run = run_of("digits/sim-single", "smoke")
    recipe = replace(run.recipe, epochs=2, batch_size=20, **RECIPES[kind])
    run = replace(run, task=replace(run.task, **DIGITS), recipe=recipe, precision="float32")
    result = start_run(run, tmp_path / "o", "x", Session(torch.device("cpu")))
    same(f"recipe/{kind}", [figures(result["test"]), figures(result.get("valid", {}))], rel=5e-4)


def test_numbers_of_the_data():
    """First values and sums of what each task reads or makes."""
    for name, task in TASKS.items():
        if not name.startswith("text") and name.endswith(("sim-single", "gru", "sim-rff")):
            made = build_task(replace(run_of(name, "smoke").task, **task))
            x, y = made.split("test")
            same(f"data/{name}", [x, y], rel=1e-5, near=1e-6)
