import hashlib

import numpy as np
import pytest
from mirror import Mirror
from PIL import Image

from koopsim.cli import main
from koopsim.datasets import kodak
from koopsim.datasets.download import Patience
from koopsim.errors import KoopsimError
from koopsim.pictures import picture_set

QUICK = Patience(timeout=0.5, attempts=2, pause=0.001)


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """24 pictures of Kodak's two sizes instead of the published ones, and their checksums in the place of those."""
    random, files = np.random.default_rng(0), {}
    for number in kodak.KODAK_SETS["kodak"]:
        shape = (768, 512, 3) if number in (4, 9) else (512, 768, 3)
        pixels = np.broadcast_to(random.integers(0, 256, (1, shape[1], 3), dtype=np.uint8), shape)
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / "one.png")
        files[f"kodim{number:02d}.png"] = (tmp_path / "one.png").read_bytes()
    monkeypatch.setattr(kodak, "SHA256", tuple(hashlib.sha256(data).hexdigest() for data in files.values()))
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path / "data"))
    return files


def fetch(*mirrors):
    return kodak.fetch_kodak(patience=QUICK, mirrors=[f"{m.url}/kodim{{:02d}}.png" for m in mirrors])


def test_the_checksums_are_those_that_are_published():
    """`sha256sum kodim*.png | sha256sum` of the files at r0k.us, as others have published it."""
    lines = "".join(
        f"{digest}  kodim{n:02d}.png\n" for n, digest in zip(kodak.KODAK_SETS["kodak"], kodak.SHA256, strict=True)
    )
    published = "3eaa5bd52eb8c894d351cf607028f5d3d80e778fd0267eeff8c73d66539a25d5"
    assert hashlib.sha256(lines.encode()).hexdigest() == published


def test_no_picture_is_both_shown_and_chosen_on():
    shown, chosen = set(kodak.KODAK_SETS["kodak16"]), set(kodak.KODAK_SETS["kodak8"])
    assert not shown & chosen
    assert shown | chosen == set(kodak.KODAK_SETS["kodak"])


def test_fetched_from_the_second_mirror_and_used(photographs):
    with Mirror({}, always=404) as dead, Mirror(photographs, "wrong") as mirror:
        folder, how = fetch(dead, mirror)
        assert how == "downloaded"
        assert sorted(f.name for f in folder.glob("kodim*")) == sorted(photographs)
        asked = len(mirror.requests)
        assert fetch(mirror)[1] == "already there"
        assert len(mirror.requests) == asked == 25  # a wrong one was asked for again
    eight = picture_set("kodak8", 512)
    assert eight.names == tuple(f"kodim{n}" for n in range(17, 25))
    assert eight.values.shape == (8, 512, 512, 3)
    whole = np.asarray(Image.open(folder / "kodim17.png"))  # 768 x 512: the centre, not resampled
    assert np.array_equal(np.rint(255 * eight.values[0]).astype(np.uint8), whole[:, 128:640])


def test_a_changed_picture_is_refused(photographs):
    with Mirror(photographs) as mirror:
        folder, _ = fetch(mirror)
    file = folder / "kodim20.png"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(KoopsimError, match=r"kodim20\.png is not the published picture"):
        picture_set("kodak8", 512)
    assert len(picture_set("kodak16", 512)) == 16  # whose files are whole


def test_what_is_not_there_names_the_command(photographs, capsys):
    with pytest.raises(KoopsimError, match="koopsim data get kodak"):
        picture_set("kodak", 64)
    assert main(["data", "list"]) == 0
    assert "24 files missing: koopsim data get kodak" in capsys.readouterr().out


def test_the_verb_fetches_it(photographs, monkeypatch, capsys):
    with Mirror(photographs) as mirror:
        monkeypatch.setattr(
            kodak.fetch_kodak, "__defaults__", (None, kodak.silence, QUICK, [f"{mirror.url}/kodim{{:02d}}.png"])
        )
        assert main(["data", "get", "kodak"]) == 0
    assert "24 photographs, checked" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "files missing: koopsim data get kodak" not in capsys.readouterr().out


def test_which_numbers_are_in_which_set():
    assert {name: list(own) for name, own in kodak.KODAK_SETS.items()} == {
        "kodak": list(range(1, 25)), "kodak16": list(range(1, 17)), "kodak8": list(range(17, 25))}  # fmt: skip
    assert kodak._file(3) == "kodim03.png"


def test_only_what_is_missing_is_fetched(tmp_path, photographs):
    folder = tmp_path / "data" / "kodak"
    folder.mkdir(parents=True)
    for number in range(1, 23):
        (folder / f"kodim{number:02d}.png").write_bytes(photographs[f"kodim{number:02d}.png"])
    assert kodak.missing_pictures() == [23, 24]
    with Mirror(photographs) as mirror:
        assert fetch(mirror) == (folder, "downloaded")
    assert [name for name, _ in mirror.requests] == ["kodim23.png", "kodim24.png"]
    assert list(kodak.kodak_files("kodak8")) == [f"kodim{n}" for n in range(17, 25)]
    assert kodak.kodak_files("kodak16")["kodim16"] == folder / "kodim16.png"
