"""Sounds and shapes as networks."""

import io
import json
import math

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from koopsim.cli import main
from koopsim.errors import KoopsimError
from koopsim.signals import (
    Signal,
    SignalSettings,
    fit_signal,
    networks,
    places_of,
    read_signal,
    sampled,
    spectral_bandwidth,
)
from koopsim.training import Session

CPU = Session(torch.device("cpu"))
T = np.arange(512) / 512


def wav(path, samples, rate=8000):
    wavfile.write(path, rate, samples)
    return path


@pytest.mark.parametrize("kind", ["int16", "float32", "uint8"])
def test_a_sound_is_read_in_any_of_its_forms(tmp_path, kind):
    wave = np.stack([np.sin(2 * np.pi * 5 * T), np.cos(2 * np.pi * 5 * T)], 1)
    scale, zero = {"int16": (20_000, 0), "float32": (0.5, 0), "uint8": (100, 128)}[kind]
    signal = read_signal(wav(tmp_path / "a.wav", (scale * wave + zero).astype(kind)))
    assert signal.shape == (512,)
    assert signal.values.shape == (512, 2)
    assert signal.rate == 8000
    back = signal.low + (signal.high - signal.low) * signal.values.astype(np.float64)
    assert np.abs(back - (scale * wave + zero)).max() <= 1.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros(8), "nothing to fit"),
        (np.array([0.0, np.nan, 1.0]), "no numbers"),
        (np.zeros((2, 2, 2, 2)), "one to three dimensions"),
        (np.zeros((4, 0)), "at least 2 along each axis"),
        (np.array([1 + 2j, 2]), "real numbers"),
        (np.array([1e300, 0.0]), "single precision ends at"),
    ],
)
def test_what_is_no_signal_is_said_in_a_sentence(tmp_path, values, words):
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(KoopsimError, match=words) as error:
        read_signal(tmp_path / "a.npy")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cut", [4, 20, 40])
def test_a_broken_sound_is_refused(tmp_path, cut):
    data = io.BytesIO()
    wavfile.write(data, 8000, np.zeros(8, np.int16))
    (tmp_path / "a.wav").write_bytes(data.getvalue()[:cut])
    with pytest.raises(KoopsimError, match=r"not a whole \.wav file|at least 2"):
        read_signal(tmp_path / "a.wav")


def test_the_bandwidth_is_that_of_the_spectrum():
    """A sine of f cycles a unit has all its power at f: b = 1 / (2 pi f); on a grid the axes are averaged."""
    sine = (np.sin(2 * np.pi * 16 * T) / 2 + 0.5).astype(np.float32)
    assert spectral_bandwidth(Signal("a", sine[:, None], 0, 1)) == pytest.approx(1 / (2 * math.pi * 16), rel=1e-4)
    axis = np.arange(32) / 32
    wave = np.sin(2 * np.pi * 4 * axis)[:, None, None] * np.ones((1, 32, 32))
    values = (wave / 2 + 0.5).astype(np.float32)[..., None]
    expected = 1 / (2 * math.pi * math.sqrt(16 / 3))  # 4 cycles along one of three axes
    assert spectral_bandwidth(Signal("a", values, 0, 1)) == pytest.approx(expected, rel=1e-4)


def test_coordinates_follow_the_grid():
    places = places_of(torch.arange(2 * 4), (2, 4))
    assert places.tolist() == [[i / 4, j / 4] for i in range(2) for j in range(4)]


def test_finer_samples_agree_where_the_grids_meet():
    signal = Signal("a", np.random.default_rng(0).random((6, 4, 1), np.float32), 0, 1)
    settings = SignalSettings(features=8, hidden=8, steps=3)
    for config in networks(signal, settings).values():
        model, _ = fit_signal(signal, config, settings, CPU)
        fine = sampled(model, (6, 4), finer=3)
        assert fine.shape == (18, 12, 1)
        assert np.allclose(fine[::3, ::3], sampled(model, (6, 4)), atol=1e-6)


def test_it_learns_and_says_how_well():
    wave = (0.5 + 0.25 * np.sin(2 * np.pi * 6 * T) + 0.25 * np.sin(2 * np.pi * 11 * T)).astype(np.float32)
    signal = Signal("a", wave[:, None], 0, 1)
    settings = SignalSettings(features=32, hidden=32, steps=150, learning_rate=1e-2)
    model, found = fit_signal(signal, networks(signal, settings)["sim-rff"], settings, CPU)
    error = np.square(sampled(model, signal.shape) - signal.values).mean()
    assert found["psnr"] == pytest.approx(-10 * math.log10(error), abs=1e-3)
    assert found["psnr"] > 30
    assert found["curve"][-1]["step"] == 150
    again = fit_signal(signal, networks(signal, settings)["sim-rff"], settings, CPU)[1]
    assert again["psnr"] == found["psnr"]  # by steps the same seed gives the same bits


def test_the_verb_fits_a_sound_and_a_shape(tmp_path, capsys):
    wav(tmp_path / "song.wav", (20_000 * np.sin(2 * np.pi * 9 * T)).astype(np.int16))
    np.save(tmp_path / "shape.npy", np.random.default_rng(0).random((5, 6, 7)) < 0.5)
    words = ["fit", str(tmp_path / "song.wav"), str(tmp_path / "shape.npy"), "--steps", "20", "--features", "16"]
    words += ["--hidden", "16", "--out", str(tmp_path / "fits"), "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    song, shape = json.loads(capsys.readouterr().out)
    assert song["shape"] == [512]
    assert shape["shape"] == [5, 6, 7]
    assert {"sim-rff", "tancik"} <= song.keys() & shape.keys()
    rate, heard = wavfile.read(tmp_path / "fits" / "song" / "reconstruction.wav")
    assert (rate, heard.dtype, len(heard)) == (8000, np.float32, 512)
    assert np.load(tmp_path / "fits" / "shape" / "reconstruction.npy").shape == (5, 6, 7)
    assert main(words) == 2
    assert "already holds a result" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert "Tancik et al." in capsys.readouterr().out


def test_by_time_it_takes_what_the_time_buys(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random(64))
    words = ["fit", str(tmp_path / "a.npy"), "--seconds", "0.2", "--features", "8", "--hidden", "8"]
    assert main([*words, "--out", str(tmp_path / "fits"), "--device", "cpu", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["sim-rff"]["steps"] >= 1  # how many is the machine's affair


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--bytes", "2000"], "are for pictures"), (["PICTURE"], "two commands"), (["NOTHING"], "There is no file")],
)
def test_what_does_not_go_together(tmp_path, words, said, capsys):
    np.save(tmp_path / "a.npy", np.arange(8.0))
    words = [{"PICTURE": "b.png", "NOTHING": "c.npy"}.get(word, word) for word in words]
    assert main(["fit", str(tmp_path / "a.npy"), *words, "--out", str(tmp_path / "fits")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "fits").exists()


@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_a_sound_of_no_samples_is_one_line(shape, tmp_path, capsys):
    file = wav(tmp_path / "empty.wav", np.zeros(shape, np.int16))
    assert main(["fit", str(file), "--device", "cpu", "--out", str(tmp_path / "o")]) == 2
    assert capsys.readouterr().err == f"koopsim: {file} is a sound of no samples; there is nothing to fit.\n"
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("steps", "0"), ("steps", "-1"), ("seconds", "nan"), ("seconds", "0"), ("batch", "0"), ("batch", "-3"),
     ("seed", "-1"), ("precision", "bf16")],
)  # fmt: skip
def test_settings_of_a_sound_that_cannot_be_are_refused(option, value, tmp_path, capsys):
    file = wav(tmp_path / "a.wav", np.arange(50, dtype=np.int16))
    assert main(["fit", str(file), f"--{option}", value, "--device", "cpu", "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert option in said
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("given", "used"), [([], 3e-3), (["--learning-rate", "0.01"], 0.01)])
def test_a_learning_rate_that_pictures_have_by_default_may_be_asked_for(given, used, tmp_path):
    file = wav(tmp_path / "a.wav", np.arange(50, dtype=np.int16))
    few = "--steps 2 --features 4 --hidden 4 --device cpu --out".split()
    assert main(["fit", str(file), *given, *few, str(tmp_path)]) == 0
    assert json.loads((tmp_path / "a" / "result.json").read_text())["settings"]["learning_rate"] == used
