import hashlib
import json
import re
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

from koopsim.errors import KoopsimError
from koopsim.pictures import codec_sizes, picture_set, psnr
from koopsim.pictures.figures import error_map, figure5, save_animation
from koopsim.pictures.sets import rgb


def test_psnr_has_its_closed_form():
    a = np.full((600, 4, 3), 100, np.uint8)  # more rows than a band
    assert psnr(a, a) == np.inf
    assert psnr(a, a + np.uint8(51)) == pytest.approx(-20 * np.log10(51 / 255))
    assert psnr(np.zeros((2, 2, 1)), np.full((2, 2, 1), 0.1)) == pytest.approx(20.0)


def test_the_photographs_and_the_text_are_what_they_say():
    photographs = picture_set("photographs", 64)
    assert photographs.names == ("china", "flower")
    assert photographs.values.shape == (2, 64, 64, 3)
    assert photographs.values.dtype == np.float32
    assert 0 <= photographs.values.min() < 0.1 < 0.9 < photographs.values.max() <= 1
    text = picture_set("text", 64, count=3)
    assert text.values.shape == (3, 64, 64, 3)
    assert np.array_equal(text.values, picture_set("text", 64, count=3).values)
    assert not np.array_equal(text.values, picture_set("text", 64, count=3, seed=1).values)
    for picture in text.values:  # a plain ground that covers much, and many colours besides
        colours, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
        assert counts.max() > 0.2 * 64 * 64
        assert len(colours) > 30


def test_the_text_of_a_recorded_study_is_drawn_again_byte_for_byte():
    """Elsewhere than where it was measured, whatever else the system can lay out text with."""
    root = Path(__file__).parents[2]
    pinned = re.search(r"^pillow==(\S+)$", (root / "constraints.txt").read_text(), re.M)
    if not pinned or PIL.__version__ != pinned[1]:
        pytest.skip("another Pillow has another FreeType, which may smooth letters otherwise")
    recorded = json.loads((root / "results" / "h200" / "picture-bandwidths.json").read_text())
    text = picture_set("text", recorded["size"], count=4, seed=13)
    drawn = [np.round(255 * values).astype(np.uint8).tobytes() for values in text.values]
    said = [digest for name, digest in recorded["pictures"].items() if name.startswith("text-")]
    assert [hashlib.sha256(pixels).hexdigest()[:16] for pixels in drawn] == said


def test_the_papers_own_layout_is_read_as_it_is(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "data_2d_text.npz", test_data=pixels, train_data=pixels[:1])
    found = picture_set(str(tmp_path / "data_2d_text.npz"), 16, count=2)
    assert found.names == ("00", "01")
    assert np.array_equal(found.values, pixels[:2] / np.float32(255))
    for wrong in ({"images": pixels}, {"test_data": pixels / 255.0}, {"test_data": pixels[..., :2]}):
        np.savez(tmp_path / "wrong.npz", **wrong)
        with pytest.raises(KoopsimError, match="expected bytes"):
            picture_set(str(tmp_path / "wrong.npz"), 16)


def test_a_folder_gives_its_pictures_in_order_square_and_whole(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "b.png")
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    Image.fromarray(wide).save(tmp_path / "a.PNG")
    (tmp_path / "notes.txt").write_text("not a picture")
    found = picture_set(str(tmp_path), 16)
    assert found.names == ("a", "b")
    assert np.array_equal(found.values[1], pixels.astype(np.float32) / 255)  # its own size: not resampled
    assert (found.values[0] == np.float32(200 / 255)).all()  # the centre square
    assert len(picture_set(str(tmp_path), 16, count=1)) == 1
    with pytest.raises(KoopsimError, match="no folder of pictures"):
        picture_set(str(tmp_path / "nowhere"), 16)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KoopsimError, match="holds no pictures"):
        picture_set(str(tmp_path / "empty"), 16)


def test_transparent_is_white_and_sixteen_bits_are_scaled():
    clear = np.zeros((2, 2, 4), np.uint8)
    assert np.asarray(rgb(clear)).min() == 255
    assert np.asarray(rgb(np.full((2, 2, 1), 65535, np.uint16))).min() == 255


def test_jpeg_at_equal_psnr_is_the_smallest_that_is_as_good():
    import io

    pixels = (picture_set("photographs", 96).values[0] * 255).round().astype(np.uint8)
    found = codec_sizes(pixels, 30.0)
    assert found.jpeg_psnr >= 30.0
    assert codec_sizes(pixels, found.jpeg_psnr) == found, "as good is good enough"
    assert found.jpeg_bytes < found.png_bytes
    for subsampling in ("4:4:4", "4:2:0"):
        for quality in range(1, 101):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=subsampling, optimize=True)
            assert file.tell() >= found.jpeg_bytes or psnr(pixels, np.asarray(Image.open(file))) < 30.0
    assert codec_sizes(pixels, 90.0).jpeg_bytes is None  # no JPEG is that good
    assert codec_sizes(np.dstack([pixels, pixels[:, :, :1]]), 30.0).jpeg_bytes is None  # it has no alpha
    assert codec_sizes(pixels.astype(np.uint16)[:, :, :1], 30.0).jpeg_bytes is None


def test_the_error_map_is_black_where_there_is_none():
    truth = np.full((600, 3, 3), 100, np.uint8)
    fitted = truth.copy()
    fitted[550] = 200
    shown = error_map(truth, fitted).sum(axis=2)
    assert shown[:550].max() < 10
    assert shown[550].min() > 400


def test_figures_and_animations_are_written(tmp_path):
    truth = picture_set("text", 32, count=2).values
    rows = [{"truth": t, "SIM (two)": np.clip(t + 0.1, 0, 1)} for t in truth]
    figure5(rows, tmp_path / "figure5.png", [{"SIM (two)": 20.0}, {"SIM (two)": 20.0}])
    with Image.open(tmp_path / "figure5.png") as figure:
        assert figure.size[0] > 400
    save_animation([truth[0], truth[1], truth[0]], tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.n_frames == 3
        assert animation.size == (32, 32)


def test_one_picture_of_a_set_is_the_one_of_that_name():
    text = picture_set("text", 32, count=4)
    one = picture_set("text", 32, count=4, only="text02")
    assert one.names == ("text02",)
    assert np.array_equal(one.values[0], text.values[2])
    with pytest.raises(KoopsimError, match="Did you mean 'text02'"):
        picture_set("text", 32, only="texte02")


def test_two_files_of_one_stem_are_two_pictures(tmp_path):
    for name, colour in (("a.png", "red"), ("a.bmp", "blue"), ("b.png", "green")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / name)
    assert picture_set(str(tmp_path), 8).names == ("a.bmp", "a.png", "b")
