"""Whatever a file holds, a picture is (height, width, channels), upright; what cannot be read is one line."""

import io
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from koopsim.errors import KoopsimError
from koopsim.pictures import Picture, read_picture, save_png
from koopsim.pictures.png import write_png
from koopsim.pictures.read import to_pixels

RNG = np.random.default_rng(0)


def noise(*shape, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_what_was_saved_is_read(mode, tmp_path):
    pixels = noise(5, 7, len(mode))
    Image.fromarray(pixels.squeeze(), mode=None).save(tmp_path / "p.png")
    picture = read_picture(tmp_path / "p.png")
    assert (picture.name, picture.height, picture.width, picture.channels) == ("p", 5, 7, len(mode))
    assert np.array_equal(picture.pixels, pixels)
    assert picture.white == 255


def test_sixteen_bits_of_grey_are_kept(tmp_path):
    pixels = noise(4, 6, dtype=np.uint16)
    for name in ("p.png", "p.tif"):
        Image.fromarray(pixels).save(tmp_path / name)
        picture = read_picture(tmp_path / name)
        assert picture.white == 65535
        assert np.array_equal(picture.pixels[:, :, 0], pixels)


def test_exif_turns_the_picture_upright(tmp_path):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:20, :30] = 255  # white in the top left corner
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated clockwise by a quarter
    Image.fromarray(pixels).save(tmp_path / "p.jpg", exif=exif, quality=95)
    turned = read_picture(tmp_path / "p.jpg").pixels
    assert turned.shape == (60, 40, 3)
    assert turned[:25, 25:].mean() > 200  # the white corner is now at the top right
    assert turned[35:, :].mean() < 30


def test_palettes_bilevel_and_cmyk(tmp_path):
    colour = Image.fromarray(noise(8, 9, 3))
    colour.quantize(4).save(tmp_path / "palette.png")
    assert read_picture(tmp_path / "palette.png").channels == 3
    colour.convert("1").save(tmp_path / "bilevel.png")
    bilevel = read_picture(tmp_path / "bilevel.png").pixels
    assert bilevel.shape == (8, 9, 1)
    assert set(np.unique(bilevel)) <= {0, 255}
    colour.convert("CMYK").save(tmp_path / "print.jpg")
    assert read_picture(tmp_path / "print.jpg").channels == 3
    see_through = colour.quantize(4)
    see_through.save(tmp_path / "gif.gif", transparency=0)
    assert read_picture(tmp_path / "gif.gif").channels == 4


def picture_file(path, kind="PNG"):
    Image.fromarray(noise(64, 64, 3)).save(path, kind)
    return path.read_bytes()


def one_line(path):
    with pytest.raises(KoopsimError) as caught:
        read_picture(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_what_is_no_picture_is_said_in_one_line(tmp_path):
    file = tmp_path / "p.png"
    assert "No such file" in one_line(file)
    file.write_bytes(b"")
    assert "zero bytes" in one_line(file)
    file.write_text("hello")
    assert "not a picture" in one_line(file)
    assert "is a folder" in one_line(tmp_path)
    Image.fromarray(np.ones((3, 3), np.float32)).save(tmp_path / "f.tif")
    assert "floating-point" in one_line(tmp_path / "f.tif")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_cut_short_is_refused(kind, share, tmp_path):
    file = tmp_path / "p"
    whole = picture_file(file, kind)
    file.write_bytes(whole[: int(len(whole) * share)])
    one_line(file)


def test_a_file_without_permission(tmp_path):
    file = tmp_path / "p.png"
    picture_file(file)
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in one_line(file)


def test_a_picture_that_unpacks_to_far_too_much(tmp_path):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    good = picture_file(tmp_path / "p.png")
    bomb = bytearray(good)
    import zlib

    bomb[16:29] = header
    bomb[29:33] = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "p.png").write_bytes(bytes(bomb))
    assert "more than 100,000,000 pixels" in one_line(tmp_path / "p.png")


@given(data=st.binary(max_size=200), keep=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_garbage_never_raises_anything_else(data, keep, tmp_path_factory):
    file = tmp_path_factory.mktemp("g") / "p.png"
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(buffer, "PNG")
    file.write_bytes(buffer.getvalue()[:keep] + data)
    said = ""
    try:
        assert isinstance(read_picture(file), Picture)
    except KoopsimError as error:
        said = str(error)
    assert "\n" not in said


@given(
    height=st.integers(1, 9), width=st.integers(1, 9), channels=st.integers(1, 4), bits=st.sampled_from([8, 16]),
    band=st.integers(1, 9), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_png_in_bands_is_the_picture(height, width, channels, bits, band, seed, tmp_path_factory):
    path = tmp_path_factory.mktemp("png") / "p.png"
    kind = np.uint8 if bits == 8 else np.uint16
    pixels = np.random.default_rng(seed).integers(0, 2**bits, (height, width, channels)).astype(kind)
    write_png(path, width, height, channels, bits, [pixels[i : i + band] for i in range(0, height, band)])
    again = read_picture(path).pixels
    if bits == 16 and channels > 1:  # Pillow reads those at 8 bits
        again = again[:, :, [0, 3]] if channels == 2 else again  # and grey with alpha as RGBA
        assert np.array_equal(again, (pixels >> 8).astype(np.uint8))
    else:
        assert np.array_equal(again, pixels)


def test_a_png_that_breaks_off_leaves_nothing(tmp_path):
    with pytest.raises(KoopsimError, match="was to have 4 rows and got 3"):
        write_png(tmp_path / "p.png", 2, 4, 1, 8, [np.zeros((3, 2, 1), np.uint8)])
    with pytest.raises(KoopsimError, match="cannot be 0 x 4"):
        write_png(tmp_path / "p.png", 0, 4, 1, 8, [])
    assert list(tmp_path.iterdir()) == []


def test_saving_and_rounding(tmp_path):
    assert to_pixels(np.array([-1.0, 0.0, 0.5, 1.0, 7.0])).tolist() == [0, 0, 128, 255, 255]
    assert to_pixels(np.array([0.5, 1.0]), 65535).tolist() == [32768, 65535]
    save_png(tmp_path / "p.png", noise(3, 4, 3))
    assert read_picture(tmp_path / "p.png").pixels.shape == (3, 4, 3)
    with pytest.raises(KoopsimError, match="uint8 or uint16; got 2 x 2 of float64"):
        Picture("x", np.zeros((2, 2)))
