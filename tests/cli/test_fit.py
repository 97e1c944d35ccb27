"""koopsim fit and koopsim render, from a picture to a network and back."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import koopsim
from koopsim.cli import main
from koopsim.cli.render import read_region, read_size
from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.fitting import FitSettings, fit_pictures
from koopsim.picture_network import bands, draw, load_network
from koopsim.pictures import Picture, psnr, read_picture
from koopsim.training import Session

QUICK = "--steps 60 --features 32 --hidden 24 --bandwidth 12 --learning-rate 2e-2 --device cpu".split()


def waves(height, width, channels=3):
    """A smooth picture: a small network can be it."""
    y, x = np.mgrid[:height, :width] / 40
    return np.stack([(np.sin(3 * x + i) * np.cos(2 * y + i) * 100 + 128) for i in range(channels)], -1).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    Image.fromarray(waves(40, 56)).save(folder / "waves.png")
    assert main(["fit", str(folder / "waves.png"), *QUICK, "--out", str(folder / "fits")]) == 0
    return folder


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def test_a_fit_leaves_all_it_promises(fitted):
    folder = fitted / "fits" / "waves"
    result = json.loads((folder / "result.json").read_text())
    assert sorted(p.name for p in folder.iterdir()) == sorted([".koopsim", *result["files"]])
    assert len(result["files"]) == 5
    truth, drawn = read_picture(fitted / "waves.png").pixels, read_picture(folder / "reconstruction.png").pixels
    assert psnr(truth, drawn) == pytest.approx(result["psnr"])
    assert result["psnr"] > 22
    assert result["network_bytes"] == (folder / "network.safetensors").stat().st_size
    assert result["network_bits_per_pixel"] == pytest.approx(8 * result["network_bytes"] / (40 * 56))
    assert result["png_bytes"] > 0
    assert result["jpeg_psnr"] >= result["psnr"]
    assert (result["steps"], result["batch"]) == (60, 40 * 56)
    with Image.open(folder / "convergence.gif") as animation:
        assert animation.n_frames >= 2
    assert read_picture(folder / "error.png").pixels.shape == (40, 56, 3)
    assert result["environment"]["versions"]["torch"]


def test_half_precision_is_half_the_size_and_is_what_is_measured(fitted, tmp_path, capsys):
    common = [str(fitted / "waves.png"), *QUICK, "--no-animation", "--json"]
    assert main(["fit", *common, "--float16", "--out", str(tmp_path)]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    whole = json.loads((fitted / "fits" / "waves" / "result.json").read_text())
    assert result["network_bytes"] < 0.6 * whole["network_bytes"]
    assert all(t.dtype == torch.float16 for t in load_file(tmp_path / "waves" / "network.safetensors").values())
    drawn = read_picture(tmp_path / "waves" / "reconstruction.png").pixels
    assert psnr(waves(40, 56), drawn) == pytest.approx(result["psnr"])
    assert "convergence.gif" not in result["files"]


@pytest.mark.parametrize(
    ("mode", "pixels"),
    [
        ("grey", waves(20, 30, 1)[:, :, 0]),
        ("grey+alpha", waves(30, 20, 2)),
        ("alpha", waves(16, 25, 4)),
        ("16-bit", waves(20, 30, 1)[:, :, 0].astype(np.uint16) * 257),
        ("one pixel", waves(1, 1, 3)),
        ("thin", waves(1, 40, 3)),
    ],
)
def test_any_kind_of_picture(mode, pixels, tmp_path, capsys):
    Image.fromarray(pixels).save(tmp_path / "p.png")
    arguments = [str(tmp_path / "p.png"), *QUICK, "--out", str(tmp_path / "o"), "--json"]
    assert main(["fit", *arguments]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    truth = read_picture(tmp_path / "p.png").pixels
    drawn = read_picture(tmp_path / "o" / "p" / "reconstruction.png").pixels
    assert drawn.shape == truth.shape
    assert drawn.dtype == truth.dtype
    assert result["psnr"] == pytest.approx(psnr(truth, drawn))
    assert result["psnr"] > 14
    if "alpha" in mode or mode == "16-bit":
        assert result["jpeg_bytes"] is None


def fit(picture, settings):
    return koopsim.fit(picture, settings, "cpu", progress=False)


def test_random_batches_of_pixels_fit_too():
    picture = Picture("waves", waves(60, 60))
    fitted = fit(picture, FitSettings(32, 24, 12, 2e-2, steps=80, batch=500, frames=False))
    assert fitted.batch == 500
    assert psnr(picture.pixels, draw(fitted.model, fitted.info, 60, 60)) > 20


def test_the_same_seed_is_the_same_network():
    picture = Picture("waves", waves(24, 24))
    first, again, other = (
        fit(picture, FitSettings(16, 8, steps=10, batch=100, frames=False, seed=s)).model.state_dict()
        for s in (0, 0, 1)
    )
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not all(torch.equal(first[k], other[k]) for k in first)


def test_pictures_of_one_shape_are_fitted_together_as_alone():
    pictures = [Picture("waves", waves(24, 24)), Picture("turned", waves(24, 24)[::-1].copy())]
    settings = FitSettings(16, 8, steps=30, batch=100, frames=False)
    together = fit_pictures(pictures, settings, Session(torch.device("cpu")))
    for picture, found in zip(pictures, together, strict=True):
        alone = fit(picture, settings)
        assert found.info.name == picture.name
        for key, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(found.model.state_dict()[key], tensor, rtol=1e-4, atol=1e-6)
    with pytest.raises(KoopsimError, match="not of the size"):
        fit_pictures([*pictures, Picture("small", waves(20, 24))], settings, Session(torch.device("cpu")))


def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    picture, file = Picture("waves", waves(24, 24)), tmp_path / "checkpoint.safetensors"
    settings = FitSettings(16, 8, steps=60, batch=100)
    whole = fit(picture, settings)
    seen = 0

    def stop(event):
        nonlocal seen
        seen += 1
        if seen == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        fit_pictures([picture], settings, Session(torch.device("cpu"), listen=stop), file)
    assert file.exists()
    torch.manual_seed(99)
    (resumed,) = fit_pictures([picture], settings, Session(torch.device("cpu")), file)
    assert not file.exists()
    assert resumed.steps == 60
    assert all(torch.equal(t, resumed.model.state_dict()[k]) for k, t in whole.model.state_dict().items())
    assert [line["step"] for line in resumed.curve] == sorted({line["step"] for line in resumed.curve})


def test_a_time_budget_is_kept():
    began = time.monotonic()
    fitted = fit(Picture("waves", waves(64, 64)), FitSettings(64, 32, seconds=1.0))
    spent = time.monotonic() - began
    assert spent > 0.9
    assert fitted.steps >= 1
    assert fitted.curve[-1]["seconds"] <= spent


def test_a_large_picture_is_fitted_in_little_memory():
    """Nothing as large as the picture in floating point is ever held."""
    picture = Picture("large", np.zeros((3000, 4000, 3), np.uint8))  # 12 megapixels, 36 MB; in float32 144 MB
    tracemalloc.start()
    fit(picture, FitSettings(16, 8, steps=3))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.slow
def test_forty_megapixels_do_not_exhaust_memory(tmp_path):
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (55, 73, 3), dtype=np.uint8))
    small.resize((7300, 5500)).save(tmp_path / "p.jpg")
    code = (
        "import resource; from koopsim.cli import main; "
        f"main(['fit', {str(tmp_path / 'p.jpg')!r}, '--steps', '20', '--out', {str(tmp_path)!r}, '--device', 'cpu']); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 2.5e6  # kilobytes


def test_several_pictures_and_equal_names(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(waves(8, 8)).save(tmp_path / folder / "p.png")
    names = [str(tmp_path / f / "p.png") for f in ("a", "b")]
    assert main(["fit", *names, *QUICK, "--out", str(tmp_path / "o")]) == 0
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["p", "p-2"]
    assert "bits a pixel" in capsys.readouterr().out
    assert main(["fit", *names, *QUICK, "--out", str(tmp_path / "o")]) == 2
    assert "already holds a result" in one_line(capsys)
    assert main(["fit", names[0], *QUICK, "--out", str(tmp_path / "o"), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "There is no picture"), (b"", "zero bytes"), (b"hello", "not a picture"), ("cut", "broken")],
)
def test_a_bad_file_is_one_line_and_leaves_nothing(content, says, tmp_path, capsys):
    good, bad, out = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "out"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(good)
    if content == "cut":
        content = good.read_bytes()[:3000]
    if content is not None:
        bad.write_bytes(content)
    assert main(["fit", str(good), str(bad), *QUICK, "--out", str(out)]) == 2
    assert says in one_line(capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--features", "31"], "must be even"),
        (["--seconds", "-1"], "must be positive"),
        (["--learning-rate", "1e30", "--steps", "50"], "smaller --learning-rate"),
        (["--device", "cuda:77"], "cannot be used here"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(options, says, tmp_path, capsys):
    Image.fromarray(waves(8, 8)).save(tmp_path / "p.png")
    assert main(["fit", str(tmp_path / "p.png"), "--out", str(tmp_path / "o"), *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "o" / "p").exists()


def test_no_picture_at_all(capsys):
    assert main(["fit"]) == 2
    assert "Name at least one picture" in one_line(capsys)


def test_render_at_its_own_size_is_the_reconstruction(fitted, tmp_path, capsys):
    folder = fitted / "fits" / "waves"
    out = tmp_path / "r.png"
    assert main(["render", str(folder), "--out", str(out), "--device", "cpu"]) == 0
    assert np.array_equal(read_picture(out).pixels, read_picture(folder / "reconstruction.png").pixels)
    assert main(["render", str(folder / "network.safetensors"), "--out", str(out), "--device", "cpu"]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_render_writes_the_form_that_the_ending_says(fitted, tmp_path, capsys):
    folder = str(fitted / "fits" / "waves")
    truth = read_picture(fitted / "fits" / "waves" / "reconstruction.png").pixels
    for name, form, least in (("r.JPG", "JPEG", 30), ("r.webp", "WEBP", np.inf), ("r.PNG", "PNG", np.inf)):
        assert main(["render", folder, "--out", str(tmp_path / name), "--device", "cpu"]) == 0
        with Image.open(tmp_path / name) as again:
            assert again.format == form
        assert psnr(truth, read_picture(tmp_path / name).pixels) >= least
    capsys.readouterr()
    for name in ("r", "r.gif", "r.pngg"):
        assert main(["render", folder, "--out", str(tmp_path / name), "--device", "cpu"]) == 2
        assert "ends in .png, .jpg or .webp" in one_line(capsys)
        assert not (tmp_path / name).exists()
    big = ["--size", "70000x1", "--out", str(tmp_path / "b.jpg"), "--device", "cpu"]
    assert main(["render", folder, *big]) == 2
    assert "at most 65,500 pixels a side" in one_line(capsys)


def test_what_a_jpeg_cannot_hold_is_not_rendered_as_one(tmp_path, capsys):
    for name, pixels in (("alpha", waves(16, 25, 4)), ("deep", waves(20, 30, 1)[:, :, 0].astype(np.uint16) * 257)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        arguments = [*QUICK, "--steps", "2", "--no-animation", "--out", str(tmp_path)]
        assert main(["fit", str(tmp_path / f"{name}.png"), *arguments]) == 0
        capsys.readouterr()
        assert main(["render", str(tmp_path / name), "--out", str(tmp_path / "r.jpg"), "--device", "cpu"]) == 2
        assert "a .jpg cannot hold" in one_line(capsys)
    assert not (tmp_path / "r.jpg").exists()


def test_render_of_a_region_is_that_part_of_the_whole(fitted, tmp_path, capsys):
    folder, out = fitted / "fits" / "waves", tmp_path / "r.png"
    arguments = ["--size", "56x40", "--region", "0.5,0.25,1,0.75", "--out", str(out), "--device", "cpu", "--json"]
    assert main(["render", str(folder), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == 56
    part = read_picture(out).pixels.astype(int)
    model, info = load_network(folder)
    whole = draw(model, info, 112, 80).astype(int)  # twice as fine: the same points
    assert np.abs(part - whole[20:60, 56:]).max() <= 1


def test_bands_do_not_show(fitted):
    model, info = load_network(fitted / "fits" / "waves")
    whole = draw(model, info, 70, 50).astype(int)
    for pixels in (1, 33, 70, 200, 10**6):
        assert (
            np.abs(np.concatenate(list(bands(model, info, 70, 50, band_pixels=pixels))).astype(int) - whole).max() <= 1
        )


def test_sizes_and_regions_are_read():
    assert read_size(None, (100.4, 50.2)) == (100, 50)
    assert read_size("2048x1024", (1, 1)) == (2048, 1024)
    assert read_size("200", (100, 50)) == (200, 100)
    assert read_region("0,0.25,0.5,1") == (0, 0.25, 0.5, 1)
    for text in ("0x5", "12x", "axb", "-3"):
        with pytest.raises(KoopsimError, match="--size"):
            read_size(text, (1, 1))
    for text in ("0,0,1", "0,0,1,2", "0.5,0,0.5,1", "a,b,c,d", "nan,0,1,1"):
        with pytest.raises(KoopsimError, match="--region"):
            read_region(text)


def test_render_refuses_what_is_no_network(fitted, tmp_path, capsys):
    whole = (fitted / "fits" / "waves" / "network.safetensors").read_bytes()
    bad = tmp_path / "bad.safetensors"
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        bad.write_bytes(content)
        assert main(["render", str(bad), "--out", str(tmp_path / "r.png")]) == 2
        assert "not a whole network" in one_line(capsys)
    assert main(["render", str(tmp_path / "none"), "--out", str(tmp_path / "r.png")]) == 2
    assert "There is no network" in one_line(capsys)
    assert main(["render", str(tmp_path), "--out", str(tmp_path / "no" / "r.png")]) == 2
    assert "no folder" in one_line(capsys)
    assert not (tmp_path / "r.png").exists()


def test_a_folder_is_fitted_in_stacks_and_each_is_what_it_is_alone(tmp_path, capsys):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i, shape in enumerate([(20, 24), (20, 24), (16, 16)]):
        Image.fromarray(np.roll(waves(*shape), 3 * i, axis=0)).save(pictures / f"{i}.png")
    (pictures / "notes.txt").write_text("no picture")
    assert main(["fit", str(pictures), *QUICK, "--out", str(tmp_path / "fits"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in results] == ["0", "1", "2"]
    assert main(["fit", str(pictures / "1.png"), *QUICK, "--out", str(tmp_path / "alone"), "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)
    assert alone["psnr"] == pytest.approx(results[1]["psnr"], abs=0.05)
    (tmp_path / "none").mkdir()
    assert main(["fit", str(tmp_path / "none")]) == 2
    assert "holds no pictures" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--bytes", "1500"], ["--weights", "int8"]])
def test_coded_networks_are_small_and_are_what_is_measured(fitted, tmp_path, capsys, words):
    quick = ["--steps", "60", "--device", "cpu", "--no-animation", "--learning-rate", "2e-2"]
    quick += [] if "--bytes" in words else ["--features", "32", "--hidden", "24"]
    assert main(["fit", str(fitted / "waves.png"), *quick, *words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "as small" in said
    assert "wins by" in said or "a draw" in said
    folder = tmp_path / "waves"
    result = json.loads((folder / "result.json").read_text())
    assert result["network_bytes"] == (folder / "network.ksp").stat().st_size
    assert result["network_bytes"] <= 1500 or "--bytes" not in words
    assert not (folder / "network.safetensors").exists()
    drawn = read_picture(folder / "reconstruction.png").pixels
    assert psnr(waves(40, 56), drawn) == pytest.approx(result["psnr"])
    assert result["jpeg_at_equal_bytes"]["bytes"] <= result["network_bytes"]
    assert main(["render", str(folder), "--out", str(tmp_path / "r.png")]) == 0
    assert np.array_equal(read_picture(tmp_path / "r.png").pixels, drawn)
    (folder / "network.ksp").write_bytes((folder / "network.ksp").read_bytes()[:-3])
    capsys.readouterr()
    assert main(["render", str(folder), "--out", str(tmp_path / "s.png")]) == 2
    assert "checksum" in one_line(capsys)


def test_a_budget_and_weights_are_not_both_said(fitted, capsys):
    assert main(["fit", str(fitted / "waves.png"), "--bytes", "900", "--float16"]) == 2
    assert "--bytes decides" in one_line(capsys)
    assert main(["fit", str(fitted / "waves.png"), "--bytes", "10"]) == 2
    assert "too few" in one_line(capsys)
