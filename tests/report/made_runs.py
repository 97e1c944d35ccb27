"""Results of runs made up for the tests: small, whole, and easy to break."""

from dataclasses import replace

from koopsim.config import to_dict
from koopsim.presets import run_of

FIGURES = {
    "copy": {"loss": 1e-9, "digits_right": 1.0, "sequences_right": 1.0, "memoryless_loss": 0.04},
    "image": {"psnr": 25.0, "psnr_std": 1.5, "psnr/china": 24.0, "psnr/flower": 26.0},
}


def made(name="copy/sim-single", seed=0, scale="paper", gpu="a GPU", seconds=60.0, **test):
    """A result as `koopsim train` writes it, with some test figures replaced."""
    place = name.split("/")[0]
    psnr = {"train_psnr": 20.0} if place == "image" else {}
    return {
        "name": name,
        "parameters": 17_294,
        "test": {**FIGURES.get(place, {"accuracy": 0.75, "loss": 0.5}), **test},
        "train_seconds": seconds,
        "milliseconds_per_step": 0.5,
        "device": "cuda:0",
        "metrics": [
            {"epoch": e, "step": 10 * e, "seconds": 2.0 * e, "train_loss": 10.0**-e, **psnr} for e in (1, 2, 3)
        ],
        "pictures": ["china", "flower"],
        "run": to_dict(replace(run_of(name, scale), seed=seed)),
        "environment": {
            "gpu": gpu,
            "cpu": "a chip",
            "commit": "abc123",
            "python": "3.11",
            "versions": {"torch": "2.11"},
        },
    }


def made_search(*figures, rate=1e-3, name="copy/sim-single", metric="loss"):
    """A kept search with a trial for each figure."""
    run = to_dict(run_of(name))
    trials = []
    for i, figure in enumerate(figures):
        recipe = {**run["recipe"], "learning_rate": rate * 2**i}
        trials.append({"run": {**run, "recipe": recipe}, "valid": {metric: figure}})
    return {"seconds": 3.0, "trials": trials, "environment": {}}
