"""Pictures beside the truth: from weights, from kept drawings, and not at all when something is missing."""

import base64
import io
import json

import numpy as np
import pytest
from made_runs import made
from PIL import Image

from koopsim.cli import main
from koopsim.config import ImageRegressionConfig
from koopsim.pictures import picture_set
from koopsim.report import compare as room
from koopsim.report import find
from koopsim.report.compare import comparisons, data_uri, shown_pixels, sliders
from koopsim.report.page import Piece, piece_html
from koopsim.tasks.image_regression import ImageRegression
from koopsim.training import load_run

SIZE = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures") / "rff"
    small = ["--recipe.epochs", "1", "--task.size", str(SIZE), "--task.steps-an-epoch", "3", "--device", "cpu"]
    assert main(["train", "image/sim-rff", "--scale", "smoke", *small, "--out", str(place)]) == 0
    return place


def test_drawn_from_the_weights(run, monkeypatch):
    monkeypatch.setattr(room, "SMALL", 8)  # so that only test pixels are shown
    found, left_out = comparisons(find([run]).runs)
    assert left_out == []
    assert [c.name for c in found] == ["china", "flower"]
    task = ImageRegression(ImageRegressionConfig(size=SIZE))
    for p, (comparison, model) in enumerate(zip(found, load_run(run), strict=True)):  # pyright: ignore
        (values, psnr) = comparison.models["SIM (RFF only)"]
        assert np.allclose(values, task.draw(model)[1::2, 1::2], atol=1e-5)
        assert np.array_equal(comparison.truth, task.values[p][1::2, 1::2])
        assert psnr == pytest.approx(-10 * np.log10(np.mean((values - comparison.truth) ** 2)), abs=1e-3)


def test_kept_drawings_stand_beside_a_kept_result(tmp_path):
    folder = tmp_path / "set16"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "one.png")
    (tmp_path / "images").mkdir()
    Image.fromarray(255 - pixels).save(tmp_path / "images" / "set16-one-sim-rff.png")
    result = made("image/sim-rff") | {"set": "set16", "pictures": ["one"]}
    result["run"]["task"] |= {"pictures": str(folder), "size": SIZE}
    (tmp_path / "image-sim-rff-set16.json").write_text(json.dumps(result))
    (found,), left_out = comparisons(find([tmp_path]).runs)
    assert left_out == []
    assert np.allclose(found.truth, pixels / 255)
    assert np.allclose(found.models["SIM (RFF only)"][0], 1 - pixels / 255)
    kept = tmp_path / "images" / "set16-one-truth.png"
    (folder / "one.png").rename(kept)  # the set is gone, but its truth was kept
    (again,), _ = comparisons(find([tmp_path]).runs)
    assert np.array_equal(again.truth, found.truth)
    kept.unlink()
    assert comparisons(find([tmp_path]).runs)[0] == []
    assert "holds no pictures" in comparisons(find([tmp_path]).runs)[1][0]


def test_broken_weights_are_left_out_with_a_reason(run, tmp_path):
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:-50] if "checkpoint" in file.name else file.read_bytes())
    found, (why,) = comparisons(find([tmp_path]).runs)
    assert found == []
    assert "checkpoint" in why


def test_small_pictures_are_shown_whole():
    small, large = np.zeros((256, 256, 3)), np.arange(512 * 512 * 3).reshape(512, 512, 3)
    assert shown_pixels(small) is small
    assert np.array_equal(shown_pixels(large), large[1::2, 1::2])


def test_a_picture_inside_the_page_is_the_picture():
    flat = np.full((32, 32, 3), 0.5, np.float32)
    kind, _, data = data_uri(flat).partition(";base64,")
    assert kind == "data:image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), np.full((32, 32, 3), 128))
    photograph = shown_pixels(picture_set("photographs", 512, 1).values[0])
    kind, _, data = data_uri(photograph).partition(";base64,")
    assert kind == "data:image/jpeg"
    again = np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) / 255
    assert np.sqrt(np.mean((again - photograph) ** 2)) < 0.02
    assert len(data) < 120_000


def test_pictures_stay_within_their_room(run, monkeypatch):
    found, _ = comparisons(find([run]).runs)
    whole, missing = sliders(found)
    assert missing == 0
    assert piece_html(Piece("sliders", whole)).count('type="range"') == len(found) == 2
    monkeypatch.setattr(room, "BYTES", sum(len(s.truth) + len(s.models[0].drawing) for s in whole) - 1)
    cut, missing = sliders(found)
    assert missing == 1
    assert cut == whole[:1]
