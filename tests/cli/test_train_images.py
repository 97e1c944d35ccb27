"""Image classification as a person meets it: digits, one's own pictures, the second recipe, what goes wrong."""

import json

import numpy as np
import pytest
from PIL import Image

import koopsim
from koopsim.cli import main
from koopsim.runs import RunDirectory

TINY = "--device cpu --recipe.epochs 2 --task.train 120 --task.test 40 --json".split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits/sim-single", *TINY, "--out", str(path)]) == 0
    return path


def test_a_run_has_the_figures(finished):
    result = RunDirectory(finished).read_result()
    assert 0 <= result["test"]["accuracy"] <= 1
    assert result["metrics"][-1]["train_loss"] > 0


def test_a_mondeq_learns_with_the_published_scale(tmp_path, capsys):
    arguments = ["train", "mnist/mondeq-multi", "--model.scale", "free", "--scale", "smoke"]
    assert main([*arguments, *TINY, "--out", str(tmp_path / "free")]) == 0
    run = RunDirectory(tmp_path / "free")
    assert run.read_result()["run"]["model"]["scale"] == "free"
    operator = koopsim.load(tmp_path / "free").operator
    assert (operator.scale, len(operator.g), len(operator.g_between)) == ("free", 2, 1)
    assert (operator.g != 1).all()  # it was learnt


def test_eval_draws_what_is_mistaken(finished, tmp_path, capsys):
    assert main(["eval", str(finished), "--device", "cpu", "--out", str(tmp_path / "e"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "e" / "mistakes.json").read_text())
    confusion = np.array(kept["confusion"])
    assert confusion.sum() == 40
    assert np.trace(confusion) / 40 == pytest.approx(said["accuracy"])
    assert all(row["true"] != row["named"] for row in kept["worst"])
    for picture in ("confusion.png", "mistakes.png"):
        with Image.open(tmp_path / "e" / picture) as drawn:
            assert drawn.width > 300


def test_report_has_table_two_and_curves(finished, tmp_path, capsys):
    assert main(["report", str(finished), "--out", str(tmp_path / "r")]) == 0
    assert "SIM (single)" in (tmp_path / "r" / "table2.md").read_text()
    with Image.open(tmp_path / "r" / "classification.png") as drawn:
        assert drawn.width > 300


def test_the_second_recipe_is_named_in_the_run(tmp_path, capsys):
    out = str(tmp_path / "best")
    arguments = ["train", "mnist/sim-single", "--recipe", "best", "--scale", "smoke", *TINY, "--out", out]
    assert main(arguments) == 0
    name, run = RunDirectory(out).read_config()
    assert name == "mnist/sim-single:best"
    assert run.recipe.average > 0
    assert run.recipe.augments


def test_a_recipe_that_does_not_exist_is_one_line(capsys):
    assert main(["train", "copy/deq", "--recipe", "best", "--scale", "smoke"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def photos(tmp_path):
    """Two classes a child can tell apart: bright above, bright below."""
    rng = np.random.default_rng(0)
    for label in ("above", "below"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 80, (12, 16, 3))
            pixels[: 6 if label == "above" else None, :] += 0 if label == "below" else 120
            pixels[6 if label == "below" else 12 :, :] += 120
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


def test_own_pictures_need_no_preset(photos, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["--recipe.epochs", "6", "--recipe.learning-rate", "0.01", "--precision", "float32", "--json"]
    assert main(["train", "--data", str(photos), "--device", "cpu", "--out", str(out), *arguments]) == 0
    _, run = RunDirectory(out).read_config()
    assert run.model.lift.image == (3, 12, 16)
    assert run.model.outputs == 2
    assert RunDirectory(out).read_result()["test"]["accuracy"] == 1.0
    assert main(["eval", str(out), "--device", "cpu", "--json"]) == 0


def test_own_pictures_are_for_models_that_look_at_pictures(photos, capsys):
    assert main(["train", "copy/deq", "--data", str(photos)]) == 2
    assert "leave the preset out" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert main(["train", "--data", str(tmp_path / "nothing"), "--out", str(tmp_path / "r")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_size_is_saved_with_the_model_and_used_by_eval_and_predict(photos, tmp_path, capsys):
    Image.new("RGB", (50, 70), "white").save(photos / "above" / "tall.png")  # another shape: cropped, without a warning
    out, kept = tmp_path / "run", tmp_path / "kept"
    arguments = ["--size", "20x8", "--recipe.epochs", "4", "--recipe.learning-rate", "0.01", "--precision", "float32"]
    assert main(["train", "--data", str(photos), "--device", "cpu", "--out", str(out), *arguments]) == 0
    said = capsys.readouterr()
    assert "right" in said.err  # the share of validation pictures that are named right, as it trains
    _, run = RunDirectory(out).read_config()
    assert run.task.size == (20, 8)
    assert run.model.lift.image == (3, 8, 20)
    result = RunDirectory(out).read_result()
    assert all("valid_accuracy" in line for line in result["metrics"])
    assert result["valid"].keys() == result["test"].keys()
    photos.rename(tmp_path / "moved")
    assert main(["eval", str(out), "--data", str(tmp_path / "moved"), "--out", str(kept), "--device", "cpu"]) == 0
    assert main(["predict", str(out), str(tmp_path / "moved" / "above" / "tall.png")]) == 0
    assert "tall.png" in capsys.readouterr().out


def test_no_mistakes_no_picture_of_them_and_two_classes_keep_their_title(photos, tmp_path, capsys):
    out, kept = tmp_path / "run", tmp_path / "kept"
    arguments = ["--recipe.epochs", "6", "--recipe.learning-rate", "0.01", "--precision", "float32"]
    assert main(["train", "--data", str(photos), "--device", "cpu", "--out", str(out), *arguments]) == 0
    assert main(["eval", str(out), "--device", "cpu", "--out", str(kept), "--json"]) == 0
    assert '"accuracy": 1.0' in capsys.readouterr().out
    left = ["confusion.png", "mistakes.json"]
    assert sorted(p.name for p in kept.iterdir() if not p.name.startswith(".")) == left
    (kept / "mistakes.png").write_bytes(b"of an earlier look")
    assert main(["eval", str(out), "--device", "cpu", "--out", str(kept), "--overwrite"]) == 0
    assert sorted(p.name for p in kept.iterdir() if not p.name.startswith(".")) == left


@pytest.mark.parametrize("size", ["", "x", "0", "3", "20x", "20x8x3", "-4", "999999"])
def test_a_size_that_is_none_is_one_line(photos, tmp_path, capsys, size):
    assert main(["train", "--data", str(photos), f"--size={size}", "--out", str(tmp_path / "r")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r").exists()
    assert main(["train", "digits/sim-single", "--size", "12"]) == 2


def test_the_title_fits_a_matrix_of_two_classes(tmp_path):
    """The bounding boxes of all texts lie inside the figure."""
    import matplotlib.figure

    from koopsim.report import mistakes

    drawn = []
    original = mistakes.write_figure
    mistakes.write_figure = lambda file, figure: drawn.append(figure)
    try:
        title = "photos/sim-single on /home/somebody/holidays/photos, test: 93.75% right"
        mistakes.draw_confusion(np.array([[5, 1], [0, 6]]), ("above", "below"), title, tmp_path / "c.png")
    finally:
        mistakes.write_figure = original
    (figure,) = drawn
    assert isinstance(figure, matplotlib.figure.Figure)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure._suptitle.get_window_extent(canvas.get_renderer())
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert "93.75%" in figure._suptitle.get_text().replace("\n", " ")


def test_a_folder_of_arrays_is_pictures_and_no_sequences(tmp_path):
    """x_train.npy and its kin, as docs/scale.md says."""
    from koopsim.cli.own_data import IMAGES, preset_for
    from koopsim.kinds import OwnColumns

    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 8, 8, 1) if name[0] == "x" else 4, np.uint8))
    assert preset_for(str(tmp_path), OwnColumns()) == IMAGES


def classes(folder, count=8):
    random = np.random.default_rng(0)
    for k, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(100 * k, 100 * k + 80, (8, 8), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.filterwarnings("default")
def test_a_folder_with_train_and_val_by_the_verbs(tmp_path, capsys):
    classes(tmp_path / "p" / "Train")
    classes(tmp_path / "p" / "val", 3)
    own = ["--device", "cpu", "--recipe.epochs", "1"]
    for name, more in (("loaded", []), ("streamed", ["--task.stream", "yes"])):
        assert main(["train", "--data", str(tmp_path / "p"), *own, *more, "--out", str(tmp_path / name)]) == 0
        assert capsys.readouterr().err.count("has no test/: val/ is what is tested on") == 1
        assert main(["eval", str(tmp_path / name), "--data", str(tmp_path / "p"), "--device", "cpu", "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["accuracy"] == RunDirectory(tmp_path / name).read_result()["test"]["accuracy"]
        assert main(["predict", str(tmp_path / name), str(tmp_path / "p" / "val"), "--device", "cpu"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1 + 6


def test_broken_pictures_are_skipped_and_told(tmp_path, capsys):
    classes(tmp_path / "p", 30)
    (tmp_path / "p" / "cat" / "3.png").write_bytes(b"\x89PNG no more")
    whole = (tmp_path / "p" / "dog" / "7.png").read_bytes()
    (tmp_path / "p" / "dog" / "7.png").write_bytes(whole[:60])
    own = ["train", "--data", str(tmp_path / "p"), "--device", "cpu", "--recipe.epochs", "1", "--task.stream", "yes"]
    assert main([*own, "--out", str(tmp_path / "strict")]) == 2
    assert "cat/3.png is not a picture" in capsys.readouterr().err
    assert not (tmp_path / "strict").exists()
    assert main([*own, "--task.unreadable", "skip", "--out", str(tmp_path / "run")]) == 0
    assert "cannot be read and are left out. The first: " in capsys.readouterr().err
    assert RunDirectory(tmp_path / "run").read_result()["unreadable"]["count"] == 2


def test_notes_beside_pictures_make_no_sequences_of_them(tmp_path):
    from koopsim.cli.own_data import IMAGES, preset_for
    from koopsim.kinds import OwnColumns

    classes(tmp_path / "p", 2)
    (tmp_path / "p" / "cat" / "notes.txt").write_text("my cat")
    assert preset_for(str(tmp_path / "p"), OwnColumns()) == IMAGES
    classes(tmp_path / "q" / "train", 2)
    (tmp_path / "q" / "train" / "dog" / "labels.csv").write_text("a\n1\n")
    assert preset_for(str(tmp_path / "q"), OwnColumns()) == IMAGES
