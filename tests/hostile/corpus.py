"""What is made hostile: one small example of every kind of file, with the verbs that read it.

base/    made once by the verbs themselves;   a case copies its folder, changes one file, and calls a verb
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from warm import Ended, run

COPY = "copy/sim-single --scale smoke --device cpu --recipe.epochs 1 --task.horizon 3 --model.lift.levels 2".split()
COPY += "--task.train 40 --task.valid 10 --task.test 10".split()
IMAGE = "image/sim-rff --device cpu --task.size 8 --task.steps-an-epoch 2 --recipe.epochs 1 --model.hidden 8".split()
IMAGE += "--task.count 2 --model.fourier.features 8".split()
FIT = "--steps 4 --features 4 --hidden 4 --no-animation --device cpu".split()
AHEAD = "--id machine --time hour --target load --horizon 4".split()
STORED = ("--storage", "file://HERE/url")  # HERE: the folder a verb is run in (warm.py)
PARQUET = find_spec("pyarrow") is not None and find_spec("pandas") is not None  # extras: else these are left out
XARRAY = find_spec("xarray") is not None and find_spec("h5netcdf") is not None
YAML = find_spec("yaml") is not None
FORMS = ("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm")


@dataclass(frozen=True)
class Case:
    """A verb that reads a file: what is copied, which file is changed, how it is read, and what must stay true."""

    folder: str
    file: str
    kind: str
    argv: tuple[str, ...]
    weight: int = 1
    truth: str | None = None  # where a changed file may not change the answer: the answer's name among the truths


Truths = dict[str, str]


def figures(ended: Ended) -> str:
    """The figures in a verb's JSON, without times and paths."""
    said = json.loads(ended.out)
    if isinstance(said, list):
        return json.dumps(said, sort_keys=True)  # answers, a row each
    kept = {
        key: said[key]
        for key in ("test", "valid", "accuracy", "loss", "case", "psnr", "best", "score", "rmse", "mae")
        if key in said
    }
    return json.dumps(kept, sort_keys=True)


def done_in(log: Path, base: Path | None = None) -> Callable[..., Ended]:
    """What runs a verb that must end well."""

    def done(*argv: str, where: Path | None = base) -> Ended:
        ended = run([str(a) for a in argv], where or Path.cwd(), log, 120)
        if ended.status:
            raise RuntimeError(f"{' '.join(argv)}: {ended.err[-2000:]}")
        return ended

    return done


def build(base: Path, log: Path) -> Truths:
    """Make the corpus; the figures of every verb on what is intact."""

    done = done_in(log, base)
    rng = np.random.default_rng(0)
    base.mkdir(parents=True)
    done("train", *COPY, "--out", "copy")
    done("train", *IMAGE, "--out", "image")
    for name, argv in (("unfinished", COPY), ("image-unfinished", IMAGE)):
        run(["train", *argv, "--recipe.epochs", "3", "--out", name], base, log, 60, stop_after_an_epoch)
    (base / "stored").mkdir()
    kept = ["train", *COPY, "--recipe.epochs", "3", "--out", "here", *STORED]
    run(kept, base / "stored", log, 60, stop_after_an_epoch)
    done("tune", *COPY, "--trials", "2", "--max-t", "1", "--retrain", "1", "--out", "search")
    shutil.copytree(base / "search", base / "search-open")
    (base / "search-open" / "result.json").unlink()
    done("tune", *IMAGE, "--per-picture", "--trials", "1", "--max-t", "1", "--retrain", "0", "--out", "each")
    shutil.copytree(base / "each", base / "each-open")
    (base / "each-open" / "result.json").unlink()
    (base / "files").mkdir()
    files = base / "files"
    pixels = rng.integers(0, 255, (8, 8, 3), np.uint8)
    from PIL import Image

    for form in FORMS:
        Image.fromarray(pixels).save(files / f"p.{form}")
    np.savez(files / "x.npz", x=rng.integers(0, 255, (40, 8, 8), np.uint8), y=np.arange(40) % 2)
    np.save(files / "matrix.npy", 0.9 * np.eye(3))
    np.save(files / "trajectory.npy", np.cumprod(np.full((30, 2), 0.9), axis=0))
    np.savetxt(files / "t.csv", np.cumprod(np.full((30, 2), 0.9), axis=0), delimiter=",", header="a,b", comments="")
    (files / "space.toml").write_text('trials = 1\n[parameters]\nlearning_rate = "log 1e-4 1e-2"\n')
    (files / "space.json").write_text(json.dumps({"trials": 1, "parameters": {"learning_rate": "log 1e-4 1e-2"}}))
    done("fit", "p.png", *FIT, "--out", "fits", where=files)
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (files / "classes" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(files / "classes" / name)
    done("train", "--data", "x.npz", "--device", "cpu", "--recipe.epochs", "1", "--out", "named", where=files)
    own_data(files, rng, done)
    others(files, rng, done)
    told = {
        "predict named": done("predict", "named", "p.png", "--device", "cpu", "--json", where=files),
        "unpickle DEQRegressor": done("@unpickle", "deq.safetensors", where=files),
        "eval table": done("eval", "table", "--device", "cpu", "--json", where=files),
        "predict table": done("predict", "table", "other.csv", "--device", "cpu", "--json", where=files),
        "eval moves": done("eval", "moves", "--device", "cpu", "--json", where=files),
        "eval streamed": done("eval", "streamed", "--device", "cpu", "--json", where=files),
        "unpickle": done("@unpickle", "estimator.safetensors", where=files),
        "eval copy": done("eval", "copy", "--device", "cpu", "--json"),
        "eval image": done("eval", "image", "--device", "cpu", "--json"),
        "eval named": done("eval", "named", "--device", "cpu", "--json", where=files),
        "spectrum copy": done("spectrum", "copy", "--json"),
    }
    shutil.copytree(base / "stored", base / "scratch" / "stored")
    stored = ("train", "--resume", "anew", *STORED, "--device", "cpu", "--json")
    told["resume stored"] = done(*stored, where=base / "scratch" / "stored")
    for name in ("unfinished", "image-unfinished", "search-open"):
        shutil.copytree(base / name, base / "scratch" / name)
        verb = "tune" if "search" in name else "train"
        more = ["--retrain", "0"] if verb == "tune" else []
        resumed = done(verb, "--resume", name, *more, "--device", "cpu", "--json", where=base / "scratch")
        told[f"resume {name}"] = resumed
    shutil.rmtree(base / "scratch")
    return {name: figures(ended) for name, ended in told.items()}


def own_data(files: Path, rng: np.random.Generator, done: Callable[..., Ended]) -> None:
    """Tables, sequences, streamed pictures, coded networks and estimators, each with a run of its own."""
    from PIL import Image

    short = ("--device", "cpu", "--recipe.epochs", "1")
    rows = [f"{a:.3f},{b:.3f},{'red' if c > 0 else 'blue'},{2 * a - b:.3f}" for a, b, c in rng.normal(size=(60, 3))]
    (files / "table.csv").write_text("\n".join(["a,b,colour,price", *rows, ""]))
    (files / "other.csv").write_text("\n".join(["colour,b,a", "red,1.0,0.5", "blue,,-2", "green,3,1e3", ""]))
    done("train", "--data", "table.csv", "--target", "price", *short, "--out", "table", where=files)
    t = np.arange(40)
    x = np.sin(t * rng.uniform(0.1, 1.0, (24, 1)))[:, :, None] + 0.1 * rng.normal(size=(24, 40, 2))
    np.savez(files / "moves.npz", x=x, y=np.where(np.arange(24) % 2, "up", "down"), lengths=rng.integers(20, 41, 24))
    done("train", "--data", "moves.npz", "--goal", "classify", *short, "--out", "moves", where=files)
    log = [f"{n},{k},{np.sin(k / 3 + n):.4f}" for n in range(3) for k in range(130)]
    (files / "log.csv").write_text("\n".join(["machine,hour,load", *log, ""]))
    done("train", "--data", "log.csv", *AHEAD, *short, "--out", "ahead", where=files)
    (files / "arrays").mkdir()
    for part, count in (("train", 40), ("test", 10)):
        np.save(files / "arrays" / f"x_{part}.npy", rng.integers(0, 255, (count, 8, 8, 1), np.uint8))
        np.save(files / "arrays" / f"y_{part}.npy", np.arange(count) % 2)
    done("train", "--data", "arrays", *short, "--out", "streamed", where=files)
    Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(files / "q.png")
    done("fit", "q.png", "--bytes", "900", *FIT[:2], *FIT[-3:], "--out", "coded", where=files)
    if PARQUET:
        import pandas

        pandas.read_csv(files / "table.csv").to_parquet(files / "table.parquet")
    done("@pickle", "estimator.safetensors", where=files)


def others(files: Path, rng: np.random.Generator, done: Callable[..., Ended]) -> None:
    """Sounds, shapes, folders of pictures and sequences, texts, saved models, trajectories in other formats."""
    sounds_and_shapes(files)
    for number in range(12):
        place = files / "walks" / ("up" if number % 2 else "down") / f"{number}.csv"
        place.parent.mkdir(parents=True, exist_ok=True)
        walk = np.cumsum(rng.normal(number % 2, 1, (30, 2)), axis=0)
        np.savetxt(place, walk, delimiter=",", header="a,b", comments="", fmt="%.3f")
    (files / "words.txt").write_text("to be or not to be, that is the question; " * 40)
    (files / "texts.csv").write_text("text,mood\n" + "".join(f"word {n} {n % 3},{'ab'[n % 2]}\n" for n in range(40)))
    short = ("--device", "cpu", "--recipe.epochs", "1")
    done("train", "--data", "walks", "--goal", "classify", *short, "--out", "walked", where=files)
    done("@save", "named", "saved.safetensors", where=files)
    done("@pickle", "deq.safetensors", "DEQRegressor", where=files)
    path = np.cumprod(np.full((30, 2), 0.9), axis=0) + 0.1
    if XARRAY:
        import xarray

        data = xarray.Dataset({"a": ("time", path[:, 0]), "b": ("time", path[:, 1])})
        data.to_netcdf(files / "t.nc", engine="scipy")
        data.to_netcdf(files / "t.h5", engine="h5netcdf")
    if YAML:
        (files / "space.yaml").write_text("trials: 1\nparameters:\n  learning_rate: log 1e-4 1e-2\n")
    if PARQUET:
        import pandas

        pandas.DataFrame(path, columns=["a", "b"]).to_parquet(files / "t.parquet")
        pictures = [(files / f"classes/{name}.png").read_bytes() for name in ("cat/1", "cat/2", "dog/1", "dog/2")]
        (files / "published").mkdir()
        for part in ("train", "test"):
            table = pandas.DataFrame({"image": pictures * 5, "label": [0, 0, 1, 1] * 5})
            table.to_parquet(files / "published" / f"{part}.parquet")


def sounds_and_shapes(files: Path) -> None:
    """song.wav, shape.npy, and a folder of two pictures: what `koopsim fit` takes besides one picture."""
    from scipy.io import wavfile

    wavfile.write(files / "song.wav", 8000, (8000 * np.sin(0.3 * np.arange(400))).astype(np.int16))
    grid = np.linspace(-1, 1, 8)
    np.save(files / "shape.npy", (grid[:, None] ** 2 + grid**2 < 0.5).astype(np.float32))
    (files / "folder").mkdir()
    for name in ("1.png", "2.png"):
        shutil.copy(files / "p.png", files / "folder" / name)


def stop_after_an_epoch() -> None:
    """A run goes on to its second line of metrics, and no further: its checkpoint is that of the first."""
    from koopsim.runs import RunDirectory

    told, write = [], RunDirectory.append_metrics

    def append(directory: RunDirectory, line: dict) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt
        write(directory, line)

    RunDirectory.append_metrics = append


def cases() -> list[Case]:
    """Every kind of file with every verb that reads it."""
    cpu = ("--device", "cpu")
    found = []

    def add(folder: str, files: str, argv: str, weight: int = 1, truth: str | None = None, more: tuple = ()) -> None:
        for name in files.split():
            argument = tuple(argv.replace("FILE", name).split()) + more
            found.append(Case(folder, name, kind_of(name), argument, weight, truth))

    add("copy", "checkpoint.safetensors data.json", "eval . --json", 12, "eval copy", cpu)
    add("copy", "config.json", "eval . --json", 14, None, cpu)
    add("copy", "checkpoint.safetensors", "spectrum . --json", 5, "spectrum copy")
    add("copy", "config.json", "spectrum . --json", 5)
    add("copy", "config.json checkpoint.safetensors", "export . --format pt2 --no-check --out m.pt2", 1)
    add("copy", "result.json metrics.jsonl config.json env.json .koopsim", "report . --out r --json", 1)
    add("copy", "result.json", "train --resume . --json", 6, None, cpu)
    add(
        "unfinished",
        "checkpoint.safetensors metrics.jsonl data.json .koopsim",
        "train --resume . --json",
        7,
        "resume unfinished",
        cpu,
    )
    add("unfinished", "config.json env.json", "train --resume . --json", 6, None, cpu)
    add("image", "checkpoint.safetensors data.json", "eval . --json", 7, "eval image", cpu)
    add(
        "image-unfinished",
        "checkpoint.safetensors metrics.jsonl",
        "train --resume . --json",
        6,
        "resume image-unfinished",
        cpu,
    )
    add("image", "config.json", "eval . --json", 5, None, cpu)
    add("search-open", "state.safetensors .koopsim", "tune --resume . --retrain 0 --json", 3, "resume search-open", cpu)
    add("search-open", "search.json", "tune --resume . --retrain 0 --json", 4, None, cpu)
    add("search", "result.json", "tune --resume . --json", 6, None, cpu)
    add("copy", "result.json", "train --resume .", 3, None, cpu)  # told in words, not as JSON
    add("files", "table/result.json", "train --resume table", 2, None, cpu)
    add("search", "result.json search.json", "tune --resume .", 3, None, cpu)
    add("each", "pictures.json china/result.json", "tune --resume .", 2, None, cpu)
    add("files", "ahead/result.json", "forecast ahead --data log.csv --json", 3, None, cpu)
    add("search", "trials.csv search.json result.json best/result.json", "report . --out r --json", 1)
    add(
        "each-open",
        "pictures.json china/search.json china/result.json",
        "tune --resume . --retrain 0 --json",
        5,
        None,
        cpu,
    )
    add("files", "fits/p/network.safetensors", "render fits/p --out r.png --json", 12, None, cpu)
    add("files", " ".join(f"p.{form}" for form in FORMS), "fit FILE --out f --overwrite --json", 3, None, tuple(FIT))
    add("files", "x.npz", "eval named --json", 12, "eval named", cpu)
    add("files", "x.npz", "train --data FILE --recipe.epochs 1 --out r --json", 4, None, cpu)
    add("files", "classes/cat/1.png", "train --data classes --recipe.epochs 1 --out r --json", 3, None, cpu)
    add("files", "matrix.npy trajectory.npy t.csv", "spectrum FILE --json", 8)
    add("files", "coded/q/network.ksp", "render coded/q --out r.png --json", 12, None, cpu)
    add("files", "table.csv table/checkpoint.safetensors table/data.json", "eval table --json", 7, "eval table", cpu)
    add("files", "table/inputs.json table/config.json", "eval table --json", 6, None, cpu)
    add("files", "table/inputs.json table/config.json other.csv", "predict table other.csv --json", 6, None, cpu)
    add("files", "table/checkpoint.safetensors", "predict table other.csv --json", 4, "predict table", cpu)
    tables = "table.csv table.parquet" if PARQUET else "table.csv"
    add("files", tables, "train --data FILE --target price --recipe.epochs 1 --out r --json", 5, None, cpu)
    add("files", "moves.npz moves/checkpoint.safetensors", "eval moves --json", 5, "eval moves", cpu)
    add("files", "moves/inputs.json moves/config.json", "eval moves --json", 4, None, cpu)
    add("files", "moves.npz", "predict moves moves.npz --json", 4, None, cpu)
    add("files", "moves.npz", "train --data moves.npz --goal classify --recipe.epochs 1 --out r --json", 3, None, cpu)
    add("files", "log.csv ahead/inputs.json", "forecast ahead --data log.csv --json", 4, None, cpu)
    add("files", "ahead/config.json ahead/checkpoint.safetensors", "forecast ahead --data log.csv --json", 4, None, cpu)
    add("files", "t.csv trajectory.npy", "forecast FILE --json", 4)
    arrays = " ".join(f"arrays/{name}_{part}.npy" for name in "xy" for part in ("train", "test"))
    add("files", f"{arrays} streamed/checkpoint.safetensors", "eval streamed --json", 4, "eval streamed", cpu)
    add("files", arrays, "train --data arrays --recipe.epochs 1 --out r --json", 3, None, cpu)
    add("files", "estimator.safetensors", "@unpickle FILE", 8, "unpickle")
    add("files", "deq.safetensors", "@unpickle FILE", 4, "unpickle DEQRegressor")
    stored = "train --resume anew --storage file://HERE/url --json"
    add("stored", "url/checkpoint.safetensors url/metrics.jsonl url/data.json", stored, 5, "resume stored", cpu)
    add("stored", "url/config.json url/env.json", stored, 4, None, cpu)
    add("stored", "url/checkpoint.safetensors url/config.json", stored.replace("anew", "here"), 3, None, cpu)
    add("files", "song.wav shape.npy", "fit FILE --out f --overwrite --json", 4, None, tuple(FIT))
    add("files", "folder/1.png", "fit folder --out f --overwrite --json", 3, None, tuple(FIT))
    add("files", "saved.safetensors", "predict FILE p.png --json", 6, None, cpu)  # its header has class names: any text
    add("files", "named/checkpoint.safetensors", "predict named p.png --json", 3, "predict named", cpu)
    add("files", "p.png classes/cat/1.png named/inputs.json", "predict named p.png classes --json", 3, None, cpu)
    add("files", "walks/up/1.csv", "train --data walks --goal classify --recipe.epochs 1 --out r --json", 2, None, cpu)
    add("files", "walks/up/1.csv", "predict walked walks --json", 3, None, cpu)
    texts = "train --data texts.csv --text text --target mood --recipe.epochs 1 --out r --json"
    add("files", "texts.csv", texts, 2, None, cpu)
    add("files", "matrix.npy t.csv", "spectrum --cell doors:cell --x FILE --steps 50 --json", 2)
    add("copy", "looks.jsonl result.json", "eval . --json", 3, "eval copy", cpu)
    add("copy", "result.json", "report result.json --out r --json", 2)
    add("copy", "config.json checkpoint.safetensors env.json", "export . --format hub --out hub --json", 2)
    if XARRAY:
        add("files", "t.nc t.h5", "spectrum FILE --json", 5)
        add("files", "t.nc t.h5", "forecast FILE --json", 2)
    if PARQUET:
        add("files", "t.parquet", "spectrum FILE --json", 4)
        add("files", "published/train.parquet", "train --data published --recipe.epochs 1 --out r --json", 4, None, cpu)
    add(
        "files",
        "space.toml space.json space.yaml" if YAML else "space.toml space.json",
        "tune copy/sim-single --scale smoke --space FILE --max-t 1 --grace 1 --retrain 0 "
        "--task.train 4 --task.valid 2 --task.test 2 --task.horizon 2 --recipe.batch-size 2 --out s --json",
        3,
        None,
        cpu,
    )
    return found


def kind_of(name: str) -> str:
    ending = name.rsplit(".", 1)[-1]
    known = {
        "json": "json",
        "koopsim": "json",
        "jsonl": "lines",
        "csv": "csv",
        "safetensors": "tensors",
        "npz": "npz",
        "npy": "npy",
        "toml": "text",
        "ksp": "coded",
        "parquet": "text",
        "yaml": "text",
        "wav": "text",
        "nc": "text",
        "h5": "text",
    }
    return known.get(ending, "picture")


Check = Callable[[Case, Ended], str | None]
