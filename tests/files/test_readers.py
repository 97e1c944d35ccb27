"""What anyone's file may say, and what is said of it: one line that names the file and what is wrong."""

import io
import math
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from koopsim.errors import KoopsimError
from koopsim.files import memory
from koopsim.files.arrays import read_npy, read_npz
from koopsim.files.json import json_text, read_json, read_lines
from koopsim.files.picture import opened_picture
from koopsim.files.tensors import read_tensors, require_match, write_tensors
from koopsim.pictures import read_picture


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "nested more than 64 deep"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "an integer has 5,000 digits"),
        (b'{"x": NaN}', "NaN is no number in JSON"),
        (b'{"x": -Infinity}', "Infinity is no number"),
        (b'{"x": 1e999}', "1e999 is too large"),
        (b'{"name": "\\ud800"}', "half a character"),
    ],
)
def test_json_that_is_refused(text, why, tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(text)
    with pytest.raises(KoopsimError, match=why) as found:
        read_json(file)
    assert str(file) in str(found.value)
    assert "\n" not in str(found.value)


def test_json_that_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, 2.5, null, "ü"], "seed": 18446744073709551615}')
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, "ü"], "seed": 2**64 - 1}
    with pytest.raises(KoopsimError, match="has 57 bytes; a JSON file has 10 at most"):
        read_json(tmp_path / "a.json", most=10)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def test_a_pipe_or_folder_instead_of_a_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(KoopsimError, match="is a pipe"):
        read_json(tmp_path / "config.json")
    with pytest.raises(KoopsimError, match="is a folder"):
        read_json(tmp_path)
    with pytest.raises(KoopsimError, match="a device"):
        read_json(Path("/dev/zero"))


def test_lines_keep_what_is_good_and_say_what_was_dropped(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"a": 1}\n[]\n{"a": NaN}\n\n{"a": 2}\n{"a": 3')
    with pytest.warns(UserWarning, match=r"2 lines were left out \(line 2: it is no object\)"):
        assert read_lines(file) == [{"a": 1}, {"a": 2}]
    assert read_lines(tmp_path / "none") == []


def test_no_figure_is_nan():
    with pytest.raises(KoopsimError, match=r"test\.loss is nan in r\.json"):
        json_text({"test": {"accuracy": 0.5, "loss": math.nan}}, "r.json")
    with pytest.raises(KoopsimError, match=r"curve\.1 is inf"):
        json_text({"curve": [0.0, math.inf]})


TENSORS = {"w": torch.randn(3, 2), "n": torch.arange(4), "h": torch.randn(2, dtype=torch.bfloat16), "e": torch.empty(0)}


def test_tensors_come_back_with_their_header(tmp_path):
    write_tensors(tmp_path / "t", TENSORS, {"position": {"epoch": 3}})
    tensors, header = read_tensors(tmp_path / "t", "checkpoint")
    assert header == {"position": {"epoch": 3}}
    assert all(torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in TENSORS.items())


def test_every_flipped_byte_of_a_tensor_file_is_noticed(tmp_path):
    file = tmp_path / "t"
    write_tensors(file, {"w": torch.randn(8)}, {"position": {"epoch": 3}})
    whole = file.read_bytes()
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1 << (at % 8)
        file.write_bytes(broken)
        try:
            tensors, header = read_tensors(file, "checkpoint")
        except KoopsimError:
            continue
        assert header != {"position": {"epoch": 3}} or set(tensors) != {"w"}, f"byte {at} was not noticed"


def test_a_tensor_file_without_a_digest_is_read_only_of_an_older_make(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "old", metadata={"position": "{}"})
    seen = []

    def older(tensors, header):
        seen.append((set(tensors), set(header)))
        return True

    assert read_tensors(tmp_path / "old", "checkpoint", older=older)[1] == {"position": {}}
    assert seen == [({"w"}, {"position"})]
    with pytest.raises(KoopsimError, match="old has no digest, which every checkpoint is written with"):
        read_tensors(tmp_path / "old", "checkpoint")


def test_nan_in_a_tensor_file_is_named(tmp_path):
    write_tensors(tmp_path / "nan", {"w": torch.tensor([1.0, math.nan])}, {})
    with pytest.raises(KoopsimError, match="'w' holds NaN or infinite"):
        read_tensors(tmp_path / "nan", "checkpoint")
    assert read_tensors(tmp_path / "nan", "state", finite=False)[0]["w"].isnan().any()


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ({}, "'w', which is missing"),
        ({"w": torch.ones(2), "x": torch.ones(1)}, "'x', which is not known"),
        ({"w": torch.ones(1)}, r"'w', which has shape \(1,\) where \(2,\) belongs"),
        ({"w": torch.ones(2, dtype=torch.bool)}, "which is bool where float32 belongs"),
        ({"w": torch.ones(2, dtype=torch.uint8)}, "which is uint8 where float32 belongs"),
    ],
)
def test_tensors_of_another_model(theirs, why):
    with pytest.raises(KoopsimError, match=why):
        require_match({"w": torch.zeros(2)}, theirs, "file", "checkpoint of another model")
    require_match({"w": torch.zeros(2)}, {"w": torch.ones(2).double()}, "file", "checkpoint")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n/Times findfont\nshowpage\n%%EOF\n"


def test_postscript_named_photo_png_is_no_picture(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    def ghostscript(*_, **__):
        raise AssertionError("Ghostscript was called")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    (tmp_path / "photo.png").write_bytes(POSTSCRIPT)
    with pytest.raises(KoopsimError, match="is not a picture"):
        read_picture(tmp_path / "photo.png")


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR"
    body = struct.pack(">IIBBBBB", 13_000, 13_000, 8, 2, 0, 0, 0)
    import zlib

    data = header + body + struct.pack(">I", zlib.crc32(b"IHDR" + body))
    idat = zlib.compress(bytes(100))
    data += struct.pack(">I", len(idat)) + b"IDAT" + idat + struct.pack(">I", zlib.crc32(b"IDAT" + idat))
    (tmp_path / "zeros.png").write_bytes(data)
    with pytest.raises(KoopsimError, match="more than 100,000,000 pixels"):
        read_picture(tmp_path / "zeros.png")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_the_formats_that_are_meant(form, tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "p", form)
    with opened_picture(tmp_path / "p") as image:
        assert image.size == (4, 3)


def npz(path, name="x.npy", data=None, **settings):
    whole = io.BytesIO()
    np.save(whole, np.arange(6.0))
    with zipfile.ZipFile(path, "w", **settings) as file:
        file.writestr(name, whole.getvalue() if data is None else data)
    return path


def test_arrays_of_all_kinds_come_back(tmp_path):
    kinds = {
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "u": np.zeros((0, 3), np.uint8),
        "s": np.array(["a", "bc"]),
    }
    np.savez_compressed(tmp_path / "a.npz", **kinds)
    found = read_npz(tmp_path / "a.npz")
    assert all(np.array_equal(found[n], x) and found[n].dtype == x.dtype for n, x in kinds.items())
    np.save(tmp_path / "a.npy", kinds["f"])
    assert np.array_equal(read_npy(tmp_path / "a.npy"), kinds["f"])


def claiming(count: int) -> bytes:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}"
    head += " " * (117 - len(head)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: npz(p, "notes.txt", b"hello"), "'notes.txt' in it is no array"),
        (lambda p: npz(p, compression=zipfile.ZIP_LZMA), "compressed in an unusual way"),
        (lambda p: npz(p, data=b"nonsense"), "magic string"),
        (lambda p: npz(p, data=claiming(10**12)), "claims 1,000,000,000,000 entries"),
        (lambda p: np.savez(p, x=np.array([{}], dtype=object)), "object; expected numbers or text"),
        (lambda p: p.write_bytes(b"PK\x03\x04 no"), "no archive of arrays"),
        (lambda p: np.savez(p, x=np.zeros(1, [("a", "f8")])), "expected numbers or text"),
    ],
)
def test_npz_that_is_refused(make, why, tmp_path):
    file = tmp_path / "data.npz"
    make(file)
    with pytest.raises(KoopsimError, match=why):
        read_npz(file)


def test_an_encrypted_npz_is_refused(tmp_path):
    file = npz(tmp_path / "data.npz")
    data = bytearray(file.read_bytes())
    data[6] |= 1  # the flag in the local header,
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    file.write_bytes(data)
    with pytest.raises(KoopsimError, match="is encrypted"):
        read_npz(file)


def test_an_npz_that_unpacks_to_more_than_there_is(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(2**23, np.uint8))
    monkeypatch.setattr(memory, "free_memory", lambda: 2**24)
    assert (tmp_path / "zeros.npz").stat().st_size < 20_000
    with pytest.raises(KoopsimError, match="asks for 24 MiB to be in memory, and 13 MiB are free"):
        read_npz(tmp_path / "zeros.npz")


def test_npy_with_a_header_that_is_no_header(tmp_path):
    """NumPy's own parser raises half a dozen kinds of errors here; ours is one, or the array after all."""
    whole, refused = claiming(3) + bytes(24), 0
    for at in range(10, 100):
        (tmp_path / "a.npy").write_bytes(whole[:at] + b"\n(" + whole[at + 2 :])
        try:
            assert read_npy(tmp_path / "a.npy").shape == (3,)
        except KoopsimError as error:
            refused += "a.npy" in str(error)
    assert refused > 40


def test_npy_that_claims_more_than_it_holds(tmp_path):
    (tmp_path / "a.npy").write_bytes(claiming(10**12) + bytes(80))
    with pytest.raises(KoopsimError, match="claims 1,000,000,000,000 entries and holds"):
        read_npy(tmp_path / "a.npy")
