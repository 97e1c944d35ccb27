"""A network in few bytes: what is coded is the network, and no bytes are believed."""

import contextlib
import struct
import zlib

import numpy as np
import pytest
import torch

from koopsim.config import FourierConfig, IdentityConfig, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.picture_codec import (
    HEAD,
    SIZES,
    Coded,
    arrays_of,
    decoded_model,
    on_grid,
    packed,
    size_for,
    unpacked,
    within,
)
from koopsim.pictures import codec_sizes, jpeg_within, psnr


@pytest.fixture
def coded():
    torch.manual_seed(0)
    psi = FourierConfig(16, 0.05)
    model = build(SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, hidden=12, outputs=3))
    on_grid(model)
    return model, Coded("bird", 30, 20, 3, 8, 16, 12, arrays_of(model))


def test_multiplied_out_it_is_the_same_map(coded):
    model, found = coded
    x = torch.rand(50, 2)
    again, _ = decoded_model(found)
    torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_finest_grid_is_int8_and_the_frequencies_lose_nothing(coded):
    model, found = coded
    read = unpacked(packed(found), "a file")
    assert (read.name, read.width, read.height, read.bits) == ("bird", 30, 20, 8)
    assert np.allclose(read.arrays["frequencies"], found.arrays["frequencies"], rtol=1e-6)
    for name, array in found.arrays.items():
        step = np.abs(array).max() / 127
        assert np.abs(read.arrays[name] - array).max() <= 0.501 * step
    x = torch.rand(50, 2)
    with torch.no_grad():
        assert float((decoded_model(read)[0](x) - model(x)).abs().max()) < 0.02


def test_a_budget_is_kept_and_used(coded):
    _, found = coded
    whole = len(packed(found))
    errors = []
    for share in (0.95, 0.85, 0.75):
        data = within(found, int(share * whole))
        assert 0.9 * share * whole < len(data) <= share * whole
        errors.append(np.abs(unpacked(data, "f").arrays["A"] - found.arrays["A"]).mean())
    assert errors[0] < errors[1] < errors[2]
    assert within(found, 10**6) == packed(found)
    with pytest.raises(KoopsimError, match="does not fit into 120 bytes"):
        within(found, 120)


@pytest.mark.parametrize("budget", [600, 8000, 50_000])
def test_the_size_follows_from_the_budget(budget):
    features, hidden = size_for(budget, 3)
    assert features == 2 * hidden
    weights = 3 * hidden**2 + 5 * hidden + 3 + features
    assert 0.7 * budget * 8 / 5 < weights < budget * 8 / 5
    with pytest.raises(KoopsimError, match="too few"):
        size_for(140, 3)


def resealed(data: bytes) -> bytes:
    return HEAD.pack(data[:4], zlib.crc32(data[HEAD.size :])) + data[HEAD.size :]


def test_nothing_is_believed(coded):
    data = packed(coded[1])
    random = np.random.default_rng(0)
    wrong = [b"", b"KSP1", data[:-1], data[: len(data) // 2], b"PNG!" + data[4:], bytes(40)]
    for _ in range(60):  # a byte changed, with and without a new checksum
        at = int(random.integers(len(data)))
        changed = data[:at] + bytes([data[at] ^ int(random.integers(1, 256))]) + data[at + 1 :]
        wrong.append(changed)
        with contextlib.suppress(KoopsimError):
            read = unpacked(resealed(changed), "f")
            assert all(np.isfinite(a).all() for a in read.arrays.values())
    for bytes_ in wrong:
        with pytest.raises(KoopsimError, match="not a whole coded network"):
            unpacked(bytes_, "f")
    sizes = SIZES.pack(30, 20, 3, 8, 65534, 65535, 4)  # four billion weights in a file of a kilobyte
    with pytest.raises(KoopsimError, match="weights where"):
        unpacked(resealed(data[: HEAD.size] + sizes + data[HEAD.size + SIZES.size :]), "f")
    steps = HEAD.size + SIZES.size + 4
    bad = data[:steps] + struct.pack("<f", float("nan")) + data[steps + 4 :]
    with pytest.raises(KoopsimError, match="no positive number"):
        unpacked(resealed(bad), "f")


def test_jpeg_at_equal_bytes_is_the_best_it_can_do():
    y, x = np.mgrid[:64, :96]
    pixels = np.stack([128 + 90 * np.sin(x / 9), 128 + 80 * np.cos(y / 7), (x + y) % 200], -1).astype(np.uint8)
    few, many = jpeg_within(pixels, 900), jpeg_within(pixels, 4000)
    assert jpeg_within(pixels, few.bytes) == few, "no more bytes, not fewer"
    assert few.bytes <= 900
    assert many.bytes <= 4000
    assert few.psnr < many.psnr
    assert few.scale > 1  # at so few bytes a smaller picture is better
    sharp = np.zeros((64, 64, 3), np.uint8)
    sharp[:, :, 2], sharp[12:52, 12:52] = 128, (255, 165, 0)  # 4:2:0 smears its edges: 25 dB at any quality
    assert jpeg_within(sharp, 10**6).psnr > 50
    assert codec_sizes(sharp, 45.0).jpeg_psnr > 45
    assert jpeg_within(sharp[:, :, :1].copy(), 10**6).quality == 100
    assert jpeg_within(pixels, 50) is None
    assert jpeg_within(np.zeros((4, 4, 4), np.uint8), 9999) is None
    for longest, held in ((65_500, True), (65_501, False)):  # pixels a side, that libjpeg takes
        strip = np.zeros((1, longest, 1), np.uint8)
        assert (jpeg_within(strip, 10**6) is not None, codec_sizes(strip, 30.0).jpeg_bytes is not None) == (held, held)
    assert psnr(pixels, pixels) == np.inf
