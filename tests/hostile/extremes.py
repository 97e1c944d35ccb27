"""Options at their extremes: command lines that must each end by themselves, in one line where they cannot be done."""

from __future__ import annotations

from corpus import COPY, FIT, IMAGE

TRAIN = ["train", *COPY, "--out", "o"]
TUNE = ["tune", *COPY, "--trials", "1", "--max-t", "1", "--retrain", "0", "--out", "o"]
PICTURES = ["train", *IMAGE, "--out", "o"]
DIGITS = "train digits/sim-single --device cpu --recipe.epochs 1 --task.train 40 --task.test 20 --out o".split()
NUMBERS = ("0", "-1", "1", "2147483648", "18446744073709551616", "1e308", "nan", "inf", "-0.0", "x", "")


def _each(base: list[str], *options: str, values: tuple[str, ...] = NUMBERS) -> list[list[str]]:
    return [[*base, f"{option}={value}"] for option in options for value in values]


def arguments() -> list[list[str]]:
    """Some two hundred command lines: each must end by itself, in one line where it cannot be done."""
    return [
        *_each(TRAIN, "--seed", "--recipe.learning-rate", "--recipe.eps", "--recipe.clip-norm", "--model.hidden"),
        *_each(
            TRAIN, "--model.outputs", "--task.train", "--recipe.warm-up", "--model.rank", values=("0", "1", "-1", "3")
        ),
        *_each(TRAIN, "--task.horizon", "--recipe.batch-size", values=("0", "-1", "1000000000")),
        *_each(TRAIN, "--device", values=("meta", "cuda", "cuda:99", "mps", "tpu", "", "cpu:7", "xla")),
        *_each(TRAIN, "--precision", values=("fp16", "bf16", "tf32", "float64", "int8")),
        *_each(DIGITS, "--recipe.shift", "--recipe.cutout", "--recipe.rotate", values=("100", "-1", "1000000")),
        *_each(
            DIGITS, "--recipe.zoom", "--recipe.average", "--recipe.label-smoothing", values=("1", "-1", "0.999", "nan")
        ),
        *_each(
            DIGITS, "--model.outputs", "--task.valid", "--model.lift.channels", values=("3", "0", "1", "1e-9", "-1")
        ),
        *_each(DIGITS, "--model.lift-dim", "--model.hidden", values=("1000000000", "1")),
        *_each(TUNE, "--trials", "--max-t", "--grace", "--retrain", "--at-once", values=("-1", "0", "1000000000")),
        *_each(TUNE, "--judge-over"),
        *_each(TUNE, "--reduction", "--confirm", "--confirm-seeds", values=("-1", "0", "nan", "inf")),
        [*TUNE, "--search", "learning_rate=nan"],
        [*TUNE, "--search", "learning_rate="],
        [*TUNE, "--search", "=1"],
        [*TUNE, "--search", "learning_rate=log 0 1"],
        [*TUNE, "--search", "seed=1"],
        [*TUNE, "--search", "hidden=x"],
        *_each(PICTURES, "--task.size", "--task.count", "--task.steps-an-epoch", values=("0", "-1", "1000000000", "7")),
        *_each(
            PICTURES, "--model.fourier.features", "--model.fourier.bandwidth", values=("0", "1", "nan", "1000000000")
        ),
        *_each(["fit", "p.png", *FIT, "--out", "o"], "--steps", "--features", "--hidden", "--batch", "--bandwidth"),
        *_each(["fit", "p.png", *FIT, "--out", "o"], "--learning-rate", "--seed"),
        *_each(
            ["fit", "p.png", "--device", "cpu", "--no-animation", "--out", "o"], "--seconds", values=("0", "nan", "-1")
        ),
        *_each(
            ["render", "fits/p", "--out", "r.png"], "--size", values=("0", "0x0", "x", "-1x5", "1e3", "99999999999x1")
        ),
        *_each(
            ["render", "fits/p", "--out", "r.png"], "--region", values=("0,0,0,0", "nan,0,1,1", "1", "-1,0,1,1", ",,,")
        ),
        *_each(["spectrum", "matrix.npy"], "--noise", "--degree", values=("nan", "-1", "1", "0", "1e-400")),
        *_each(["spectrum", "trajectory.npy", "--dictionary", "rff"], "--features", "--bandwidth", values=NUMBERS[:5]),
        ["spectrum", "trajectory.npy", "--as", "matrix"],
        ["spectrum", "nothing.npy"],
        ["spectrum", "."],
        ["spectrum", "p.png"],
        ["eval", "."],
        ["eval", "nothing"],
        ["eval", "zoo:nothing"],
        ["eval", "x.npz"],
        ["report", "nothing"],
        ["report", "."],
        ["export", "nothing"],
        ["render", "p.png"],
        ["render", "."],
        ["fit", "x.npz"],
        ["fit", "."],
        ["fit"],
        ["report"],
        ["train", "nothing"],
        ["train", "--resume", "nothing"],
        ["tune", "--resume", "."],
        ["train", "--data", "nothing"],
        ["train", "--data", "p.png"],
        ["train", "--data", "."],
        ["train", "copy/deq", "--data", "classes"],
        ["bench", "nothing"],
    ]
