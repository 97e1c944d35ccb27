"""Data that does not fit: the same pictures from arrays, folders and Parquet, in an order of seed and epoch alone,
resumed to the bit, read by one process or shared by several, and never more of it in memory than is on its way."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from koopsim.config import ClassificationConfig, Recipe, Run, SIMConfig, VGGConfig
from koopsim.datasets import load_images
from koopsim.datasets.blocks import ArraySource, in_memory, stream_images, streamable
from koopsim.engine.ahead import Ahead
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import World
from koopsim.errors import KoopsimError
from koopsim.kinds import task_kind
from koopsim.models import build
from koopsim.tasks import build_task
from koopsim.tasks.base import ModelAnswers
from koopsim.tasks.streaming import Streaming
from koopsim.training import Session, start_run

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 255, (60, 1, 8, 8), np.uint8), np.arange(60) % 3
X_TEST, Y_TEST = RNG.integers(0, 255, (12, 1, 8, 8), np.uint8), np.arange(12) % 3
MODEL = SIMConfig(VGGConfig(4, (1, 8, 8)), lift_dim=8, hidden=8, outputs=3)


def png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture[0]).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    """The same pictures as an .npz, a folder of .npy, a folder of pictures, and in Parquet."""
    root = tmp_path_factory.mktemp("pictures")
    np.savez(root / "all.npz", x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    (root / "npy").mkdir()
    for name, array in (("x_train", X), ("y_train", Y), ("x_test", X_TEST), ("y_test", Y_TEST)):
        np.save(root / "npy" / f"{name}.npy", array)
    for split, xs, ys in (("train", X, Y), ("test", X_TEST, Y_TEST)):
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            folder = root / "folder" / split / str(y)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[0]).save(folder / f"{i:03}.png")
    return {"npz": root / "all.npz", "npy": root / "npy", "folder": root / "folder", "root": root}


@pytest.fixture(scope="module")
def parquet(places) -> Path:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = places["root"] / "parquet"
    folder.mkdir()
    for split, xs, ys in (("train", X, Y), ("test", X_TEST, Y_TEST)):
        images = [{"bytes": png(x), "path": None} for x in xs]
        files.write_table(arrow.table({"image": images, "label": ys}), folder / f"{split}.parquet", row_group_size=7)
    return folder


def run_on(data: Path | str, **recipe) -> Run:
    own = Recipe(batch_size=8, epochs=3, learning_rate=1e-2, **recipe)
    return Run(MODEL, ClassificationConfig(str(data), stream="yes"), own, train_on="train")


def trained(run: Run) -> tuple[torch.Tensor, dict]:
    slots = Stacked([run], build_task(run.task, CPU), CPU, run.recipe.epochs)
    losses = []
    for _ in range(run.recipe.epochs):
        slots.begin_epoch()
        slots.advance(0, slots.epoch_steps)
        losses.append(slots.losses(0).clone())
        slots.finish_epoch()
    slots.part.feed.close()
    return torch.cat(losses), slots.state()


@pytest.mark.parametrize("kind", ["npz", "npy", "folder"])
def test_every_place_gives_the_same_pictures(kind, places):
    images = stream_images(str(places[kind]))
    assert images.train.shape == (1, 8, 8)
    assert (len(images.train), len(images.test), images.classes) == (60, 12, ("0", "1", "2"))
    rows = np.array([3, 0, 59, 17])
    if kind == "folder":  # class by class
        order = np.argsort(Y, kind="stable")
        np.testing.assert_array_equal(images.train.read(rows), X[order][rows])
    else:
        np.testing.assert_array_equal(images.train.read(rows), X[rows])
        np.testing.assert_array_equal(images.train.labels, Y)


def test_parquet_gives_them_too(parquet):
    images = stream_images(str(parquet))
    rows = np.array([59, 0, 8, 13])
    np.testing.assert_array_equal(images.train.read(rows), X[rows])
    np.testing.assert_array_equal(images.test.labels, Y_TEST)
    assert not images.loads


def test_streamed_and_resident_have_the_same_splits_and_statistics(places):
    config = ClassificationConfig(str(places["npz"]), stream="no")
    resident, streamed = build_task(config), build_task(replace(config, stream="yes"))
    assert torch.allclose(streamed.scale, resident.scale, rtol=1e-6)
    assert torch.allclose(streamed.shift, resident.shift, rtol=1e-6)
    for split in ("train", "valid", "test"):
        found, wanted = ({tuple(x.flatten().tolist()) for x in task.split(split)[0]} for task in (streamed, resident))
        assert found == wanted
    torch.manual_seed(0)
    model = build(MODEL)
    a, b = (task.evaluate(model, "valid") for task in (resident, streamed))
    assert a["accuracy"] == b["accuracy"]
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


def test_an_epoch_has_every_row_once_in_blocks():
    data = Streaming(ArraySource(X, Y, "x"), np.arange(60), lambda x, recipe, draws: x, block=5, buffer=3)
    first, again, other = data.order(1, 0), data.order(1, 0), data.order(1, 1)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert sorted(first) == list(range(60))
    for i in range(0, 60, 15):  # a buffer of three blocks of five, and no other
        assert len({row // 5 for row in first[i : i + 15]}) == 3
    assert not np.array_equal(first[:15], np.sort(first[:15]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [{}, {"flip": True, "shift": 1, "cutout": 2}], ids=["plain", "augmented"])
def test_a_stopped_run_goes_on_to_the_same_bits(recipe, workers, places):
    run = run_on(places["npy"], **recipe)
    run = replace(run, task=replace(run.task, workers=workers))
    losses, wanted = trained(run)
    task = build_task(run.task, CPU)
    half = Stacked([run], task, CPU, 3)
    half.begin_epoch()
    half.advance(0, half.epoch_steps)
    half.finish_epoch()
    half.begin_epoch()
    half.advance(0, 3)
    saved = {name: t.clone() for name, t in half.state().items()}
    half.part.feed.close()
    rest = Stacked([run], task, CPU, 3)
    rest.load(saved, [1])
    rest.advance(3, rest.epoch_steps)
    rest.finish_epoch()
    rest.begin_epoch()
    rest.advance(0, rest.epoch_steps)
    found = rest.state()
    rest.part.feed.close()
    for name, t in wanted.items():
        assert torch.equal(found[name], t), name
    assert losses.isfinite().all()


def test_several_processes_read_their_share_of_the_same_batch(places):
    run = run_on(places["npz"], flip=True)
    task = build_task(run.task, CPU)
    data = task.data(run, [0])
    whole = Ahead(data, run.recipe, CPU)
    batch, _ = whole.jobs(World())[5]
    shares = [whole.jobs(World(rank, 3))[5][0] for rank in range(3)]
    for i, t in enumerate(batch):
        assert torch.equal(torch.cat([share[i] for share in shares]), t)


def test_what_is_larger_than_the_free_memory_is_streamed_and_said(places):
    config = ClassificationConfig(str(places["npz"]))
    kind = task_kind(config)
    assert kind.settled(config, free=10**9) == (config, "")
    chosen, said = kind.settled(config, free=5000)
    assert chosen.stream == "yes"
    assert "is streamed: 60 pictures" in said
    assert kind.settled(replace(config, stream="no"), free=10)[0].stream == "no"
    assert kind.settled(ClassificationConfig(str(places["npy"])), free=10**12)[0].stream == "yes"  # only that way
    assert kind.settled(ClassificationConfig("digits"), free=1)[0].stream == "auto"


def test_a_named_set_is_streamed_from_memory():
    images = in_memory(load_images("digits"))
    np.testing.assert_array_equal(images.train.read(np.array([5, 2])), load_images("digits").train[0][[5, 2]])


def test_what_cannot_be_streamed_is_refused_in_a_sentence(tmp_path, places):
    np.savez_compressed(tmp_path / "small.npz", x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    assert streamable(str(tmp_path / "small.npz")) is None
    with pytest.raises(KoopsimError, match="is compressed, and what is compressed cannot be read from its middle"):
        stream_images(str(tmp_path / "small.npz"))
    with pytest.raises(KoopsimError, match="no dataset, folder or file"):
        stream_images(str(tmp_path / "nothing"))
    with pytest.raises(KoopsimError, match="scale them before"):
        stream_images(str(places["npy"]), (4, 4))


def test_a_file_that_is_cut_off_while_it_is_read_is_named(tmp_path):
    for name, array in (("x_train", X), ("y_train", Y), ("x_test", X_TEST), ("y_test", Y_TEST)):
        np.save(tmp_path / f"{name}.npy", array)
    run = run_on(tmp_path)
    slots = Stacked([run], build_task(run.task, CPU), CPU, 1)
    with (tmp_path / "x_train.npy").open("r+b") as file:
        file.truncate(2000)
    slots.begin_epoch()
    with pytest.raises(KoopsimError, match=r"x_train\.npy ends before its row"):
        slots.advance(0, slots.epoch_steps)


def test_a_damaged_picture_in_parquet_is_named(tmp_path):
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [png(x) for x in X]
    images[30] = b"no picture"
    files.write_table(arrow.table({"image": images, "label": Y}), tmp_path / "a.parquet", row_group_size=10)
    source = stream_images(str(tmp_path)).train
    assert len(source.read(np.arange(20))) == 20
    with pytest.raises(KoopsimError, match=r"a\.parquet, row 0 of row group 3: its picture cannot be read"):
        source.read(np.array([30]))


def damaged(folder: Path) -> None:
    """Parquet in four files of two row groups: a picture, a row group's pictures and a whole file cannot be read."""
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part in range(4):
        rows = range(part * 15, part * 15 + 15)
        images = [png(X[i]) for i in rows]
        if part == 0:
            images[2] = b"no picture"
        table = arrow.table({"image": images, "label": Y[list(rows)]})
        files.write_table(table, folder / f"{part}.parquet", row_group_size=8, compression="snappy")
    images = [png(x) for x in X_TEST]
    images[5] = images[5][:40]
    files.write_table(arrow.table({"image": images, "label": Y_TEST}), folder / "test.parquet")
    at = files.ParquetFile(folder / "1.parquet").metadata.row_group(1).column(0)
    with (folder / "1.parquet").open("r+b") as file:  # its compressed pages
        file.seek(at.data_page_offset)
        file.write(b"\xff" * 64)
    with (folder / "3.parquet").open("r+b") as file:
        file.truncate(300)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_ends_the_run_unless_it_is_to_be_skipped(workers, tmp_path):
    """Named; or left out of training, of the statistics and of what is judged, and counted."""
    (tmp_path / "data").mkdir()
    damaged(tmp_path / "data")
    run = run_on(tmp_path / "data")
    with pytest.raises(KoopsimError, match=r"3\.parquet cannot be read"):
        build_task(run.task, CPU)
    config = replace(run.task, unreadable="skip", workers=workers)
    run = replace(run, task=config, recipe=replace(run.recipe, epochs=2))
    task = build_task(config, CPU)
    assert len(task.source) == 45  # of the file that is gone, nothing
    x, good, lost = task.source.read_good(np.arange(45))
    assert [row for row, _ in lost] == [2, *range(23, 30)]
    assert "0.parquet, row 2 of row group 0: its picture cannot be read" in lost[0][1]
    assert "1.parquet, row group 1" in lost[1][1]
    np.testing.assert_array_equal(x[good], X[:45][good])
    mean = X[:45][good].mean() / 255
    assert float(-task.shift / task.scale) == pytest.approx(255 * mean, rel=1e-5)
    said: list[str] = []
    session = Session(CPU, listen=lambda e: said.append(e["text"]) if e["event"] == "note" else None)
    result = start_run(run, tmp_path / "run", "damaged", session)
    trained_on = {int(row) for row in task.rows("train")[1]}
    count = len(trained_on & {row for row, _ in lost})
    assert result["unreadable"]["count"] == count + 1  # and the file
    assert result["metrics"][-1]["unreadable"] == count
    assert f"{count} pictures and 1 files or row groups cannot be read and are left out" in said[0]
    assert "3.parquet" in said[0]
    assert len(said) == 1
    assert np.isfinite(result["test"]["loss"])
    assert round(result["test"]["accuracy"] * 11, 6) == round(result["test"]["accuracy"] * 11)  # of eleven, not twelve


def test_a_batch_of_which_nothing_can_be_read_is_said(tmp_path):
    for name in ("a", "b"):
        for split in ("train", "test"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                Image.fromarray(X[i][0]).save(tmp_path / split / name / f"{i}.png")
    run = run_on(tmp_path)
    task = build_task(replace(run.task, unreadable="skip"), CPU)
    feed = Ahead(task.data(run, [0]), run.recipe, CPU)
    for file in tmp_path.glob("train/*/*.png"):
        file.write_bytes(b"gone")
    with pytest.raises(KoopsimError, match=r"None of the \d pictures of a batch can be read; the first: .*png"):
        feed.jobs(World())[0]


LIMITED = """
import json, resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from koopsim.config import ClassificationConfig, Recipe, Run, SIMConfig, VGGConfig
from koopsim.training import Session, start_run
import koopsim.tasks, koopsim.engine.ahead, koopsim.tasks.streamed_classification
from koopsim.nn import SIM
data, out, room = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
said = []
model = SIMConfig(VGGConfig(2, (3, 32, 32)), lift_dim=4, hidden=4, outputs=2)
run = Run(model, ClassificationConfig(str(data), valid=0.001), Recipe(batch_size=512, epochs=1))
session = Session(torch.device("cpu"), listen=lambda e: said.append(e.get("text")) if e["event"] == "note" else None)
result = start_run(run, out, "large", session)
status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of the process that started this one
peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
print(json.dumps({"said": said, "loss": result["metrics"][0]["train_loss"], "peak": peak, "limit": used + room,
                  "stream": result["run"]["task"]["stream"]}))
"""


@pytest.mark.slow
def test_data_several_times_larger_than_the_limit_on_memory_is_trained_on(tmp_path):
    """527 MiB of pictures (a sparse file) where 160 MiB may be allocated: streamed by itself, and the limit holds."""
    count, room = 180_000, 160 * 2**20
    x = np.lib.format.open_memmap(tmp_path / "x_train.npy", "w+", np.uint8, (count, 3, 32, 32))
    x[::1000] = 200
    del x
    np.save(tmp_path / "y_train.npy", np.arange(count) % 2)
    np.save(tmp_path / "x_test.npy", np.zeros((8, 3, 32, 32), np.uint8))
    np.save(tmp_path / "y_test.npy", np.arange(8) % 2)
    argv = [sys.executable, "-c", LIMITED, str(tmp_path), str(tmp_path / "run"), str(room)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=900, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["stream"] == "yes"
    assert "is streamed" in found["said"][0]
    assert np.isfinite(found["loss"])
    assert count * 3072 > 3 * room
    assert found["peak"] < found["limit"]


def test_a_named_set_is_streamed_at_a_size_of_ones_own():
    for size, shape in ((None, (1, 8, 8)), ((4, 6), load_images("digits").resized((4, 6)).train[0].shape[1:])):
        images = stream_images("digits", size)
        assert images.train.shape == shape
        np.testing.assert_array_equal(images.train.labels, load_images("digits").train[1])


@pytest.mark.parametrize("ending", [".arrow", ".feather"])
def test_arrow_files_give_what_parquet_gives(ending, tmp_path):
    arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    for split, xs, ys in (("train", X, Y), ("test", X_TEST, Y_TEST)):
        table = arrow.table({"image": [png(x) for x in xs], "label": ys})
        with ipc.new_file(str(tmp_path / f"{split}{ending}"), table.schema) as file:
            file.write_table(table, max_chunksize=7)
    images = stream_images(str(tmp_path))
    rows = np.array([59, 0, 8, 13])
    np.testing.assert_array_equal(images.train.read(rows), X[rows])
    np.testing.assert_array_equal(images.train.labels, Y)
    np.testing.assert_array_equal(images.test.labels, Y_TEST)
    assert len(images.train.groups) == 9


def test_in_stretches_as_at_once(places, monkeypatch):
    """Statistics and answers do not depend on how many pictures are looked at together."""
    config = run_on(places["npz"]).task
    whole = build_task(config, CPU)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    answers = whole.predictions(ModelAnswers([model]), "train+valid")
    (figures,) = whole.judge(ModelAnswers([model]), "test", [0])
    monkeypatch.setattr("koopsim.tasks.streamed_classification.AT_ONCE", 7)
    pieces = build_task(config, CPU)
    torch.testing.assert_close(pieces.scale, whole.scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(pieces.shift, whole.shift, rtol=1e-5, atol=0)
    pieced = pieces.predictions(ModelAnswers([model]), "train+valid")
    torch.testing.assert_close(pieced, answers, rtol=1e-5, atol=1e-5)
    assert pieces.judge(ModelAnswers([model]), "test", [0])[0] == pytest.approx(figures)
    x, y = whole.split("test")
    with torch.no_grad():
        logits = model(whole.inputs(x)).double()
    assert figures["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert figures["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)))


def test_splits_of_a_stream(places):
    config = replace(run_on(places["npz"]).task, train=20, test=5, valid=0.25)
    task = build_task(config, CPU)
    sizes = {name: len(task.rows(name)[1]) for name in ("train", "valid", "train+valid", "test")}
    assert sizes == {"train": 15, "valid": 5, "train+valid": 20, "test": 5}
    for name in sizes:
        rows = task.rows(name)[1]
        assert (np.diff(rows) > 0).all()
    few, labels = task.example("train")
    assert len(few) == 2
    assert labels.tolist() == Y[task.rows("train")[1]].tolist()
    run = replace(run_on(places["npz"]), task=config)
    steps = [task.epoch_steps(replace(run, recipe=replace(run.recipe, batch_size=b))) for b in (1, 4, 15, 99)]
    assert steps == [15, 4, 1, 1]
    with pytest.raises(KoopsimError, match=r"no split 'all'; expected one of valid, train, train\+valid, test"):
        task.rows("all")
    assert task.fingerprint() == build_task(config, CPU).fingerprint()
