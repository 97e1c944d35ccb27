import numpy as np
import pytest
import torch
from torch import nn

from koopsim import datasets
from koopsim.config import ClassificationConfig, Recipe
from koopsim.errors import KoopsimError
from koopsim.tasks import Classification
from koopsim.tasks.augment import cut_out, draws_needed, moved, turned
from koopsim.tasks.classification import channel_statistics


@pytest.fixture(scope="module")
def digits():
    return Classification(ClassificationConfig("digits"))


def test_the_splits_are_a_tenth_and_the_rest(digits):
    sizes = {name: len(digits.split(name)[0]) for name in ("train", "valid", "train+valid", "test")}
    assert sizes["valid"] == round(sizes["train+valid"] / 10)
    assert sizes["train"] + sizes["valid"] == sizes["train+valid"]
    assert sizes["train+valid"] + sizes["test"] == 1797
    joined = torch.cat([digits.split("valid")[0], digits.split("train")[0]])
    assert torch.equal(joined, digits.split("train+valid")[0])
    with pytest.raises(KoopsimError, match="no split 'tets'"):
        digits.split("tets")


@pytest.mark.parametrize(("images", "valid"), [(50_000, 5_000), (73_257, 7_326), (60_000, 6_000)])
def test_the_sizes_of_the_paper(images, valid, monkeypatch):
    one = np.zeros((1, 1, 4, 4), np.uint8)
    fake = datasets.Images(
        "fake",
        (np.broadcast_to(one, (images, 1, 4, 4)), np.zeros(images, np.int64)),
        (one, np.zeros(1, int)),
        ("a", "b"),
    )
    monkeypatch.setattr(datasets, "load_images", lambda name, size=None: fake)
    assert Classification(ClassificationConfig("fake")).valid == valid


def test_the_split_is_seeded_and_never_touches_the_test_images(digits):
    again = Classification(ClassificationConfig("digits"))
    other = Classification(ClassificationConfig("digits", seed=1))
    assert torch.equal(again.x, digits.x)
    assert not torch.equal(other.x, digits.x)
    assert torch.equal(other.x_test, digits.x_test)
    few = Classification(ClassificationConfig("digits", train=100, test=50))
    assert [len(few.split(n)[0]) for n in ("train", "valid", "test")] == [90, 10, 50]


def test_inputs_have_mean_zero_and_deviation_one(digits):
    raw = digits.split("train+valid")[0]
    assert raw.dtype == torch.uint8
    x = digits.inputs(raw)
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(x.std()) == pytest.approx(1.0, abs=1e-3)


def test_channel_statistics_are_those_of_the_floats():
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
    x[:, 2] = 9
    mean, deviation = channel_statistics(x)
    np.testing.assert_allclose(mean, (x / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(deviation[:2], (x / 255).std((0, 2, 3))[:2], rtol=1e-10)
    assert deviation[2] == 1.0
    for found, same in zip(channel_statistics(torch.from_numpy(x)), (mean, deviation), strict=True):
        assert found.tolist() == same.tolist()


def test_statistics_are_of_all_training_images_whatever_share_is_learnt():
    whole, share = (Classification(ClassificationConfig("digits", train=train)) for train in (None, 100))
    assert torch.equal(whole.scale, share.scale)
    assert torch.equal(whole.shift, share.shift)


def test_evaluate_counts_what_is_right(digits):
    class Oracle(nn.Module):
        """Knows the first half of the test images and always says 0 on the others."""

        seen = 0

        def forward(self, x):
            labels = digits.split("test")[1].clone()
            labels[len(labels) // 2 :] = 0
            batch = labels[self.seen : self.seen + len(x)]
            self.seen += len(x)
            return nn.functional.one_hot(batch, 10).double() * 50

    labels = digits.split("test")[1]
    expected = (len(labels) // 2 + int((labels[len(labels) // 2 :] == 0).sum())) / len(labels)
    assert digits.evaluate(Oracle(), "test")["accuracy"] == pytest.approx(expected)


def test_moving_is_a_crop_of_the_mirrored_border():
    image = torch.arange(2 * 5 * 6, dtype=torch.uint8).reshape(1, 2, 5, 6)
    padded = nn.functional.pad(image.float(), (2, 2, 2, 2), mode="reflect")
    mirrored = nn.functional.pad(image.float().flip(-1), (2, 2, 2, 2), mode="reflect")
    for right in range(5):
        for down in range(5):
            draws = torch.tensor([[0.9, (right + 0.5) / 5, (down + 0.5) / 5, 0, 0]])
            window = (slice(None), slice(None), slice(down, down + 5), slice(right, right + 6))
            assert torch.equal(moved(image, draws, flip=True, shift=2).float(), padded[window])
            draws[0, 0] = 0.1
            assert torch.equal(moved(image, draws, flip=True, shift=2).float(), mirrored[window])
    assert torch.equal(moved(image, draws, flip=False, shift=0), image)


def test_turning_is_about_the_centre():
    image = torch.rand(1, 2, 6, 6, dtype=torch.float64)
    still, quarter, back = (torch.tensor([[0, 0, 0, 0, 0, turn, 0.5]], dtype=torch.float64) for turn in (0.5, 0.0, 1.0))
    torch.testing.assert_close(turned(image, still, False, 0, 90, 0.0), image)
    torch.testing.assert_close(turned(image, quarter, False, 0, 90, 0.0), image.rot90(1, (2, 3)))
    torch.testing.assert_close(turned(image, back, False, 0, 90, 0.0), image.rot90(-1, (2, 3)))
    wide = torch.zeros(1, 1, 9, 21)
    wide[0, 0, 4, 7:14] = 1  # a bar through the centre: turned by a right angle it is as long as before
    upright = turned(wide, quarter.float(), False, 0, 90, 0.0)
    assert torch.equal(upright[0, 0, :, 10].round(), torch.tensor([0, 1, 1, 1, 1, 1, 1, 1, 0.0]))
    assert float(upright.sum()) == pytest.approx(7, rel=1e-5)


def test_a_recipe_that_does_not_turn_draws_what_it_always_drew():
    recipes = Recipe(flip=True), Recipe(shift=1, cutout=2), Recipe(rotate=1), Recipe(zoom=0.1)
    assert [draws_needed(recipe) for recipe in recipes] == [5, 5, 7, 7]


def test_zooming_grows_and_shrinks_by_the_same_factor():
    image = torch.zeros(2, 1, 16, 16)
    image[:, :, 4:12, 4:12] = 1
    draws = torch.tensor([[0, 0, 0, 0, 0, 0.5, 1.0], [0, 0, 0, 0, 0, 0.5, 0.0]])
    grown, shrunk = turned(image, draws, False, 0, 0.0, 1.0)[:, 0]
    assert grown.round().sum() == 16 * 16
    assert shrunk.round().sum() == 4 * 4


def test_turning_mirrors_and_moves_as_moving_does_but_repeats_the_edge():
    image = torch.rand(1, 2, 7, 9, dtype=torch.float64)
    for flip, right, down in ((0.9, 0.0, 0.5), (0.1, 0.0, 0.5), (0.1, 0.99, 0.0), (0.9, 0.5, 0.99)):
        draws = torch.tensor([[flip, right, down, 0, 0, 0.5, 0.5]], dtype=torch.float64)
        exact, sampled = moved(image, draws, True, 2), turned(image, draws, True, 2, 10.0, 0.1)
        torch.testing.assert_close(sampled[..., 2:-2, 2:-2], exact[..., 2:-2, 2:-2])
    # One pixel lit near the lower edge, moved up by 2: mirrored at the edge it shows twice, here once.
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 6, 3] = 1
    draws = torch.tensor([[0.9, 0.5, 0.99, 0, 0, 0.5, 0.5]])
    assert moved(image, draws, False, 2).sum() == 2
    assert turned(image, draws, False, 2, 0.0, 0.1).sum() == pytest.approx(1)


def test_cut_out_blanks_a_square():
    draws = torch.tensor([[0, 0, 0, 0.5, 0.25], [0, 0, 0, 0.0, 0.99]])
    out = cut_out(torch.ones(2, 3, 8, 8), draws, 4)
    assert torch.equal((out[0, 0] == 0).nonzero().amin(0), torch.tensor([0, 2]))
    assert int((out[0] == 0).sum()) == 3 * 16
    assert int((out[1] == 0).sum()) == 3 * 3 * 2  # cut by the corner


def test_augmentation_happens_in_training_only(digits):
    raw = digits.split("train")[0][:8]
    recipe = Recipe(shift=1, cutout=2)
    draws = torch.rand(8, 7)
    plain = digits.inputs(raw)
    assert torch.equal(digits.inputs(raw, recipe, None), plain)
    assert not torch.equal(digits.inputs(raw, recipe, draws), plain)
    assert torch.equal(digits.inputs(raw, recipe, draws), digits.inputs(raw, recipe, draws))
    for other in (Recipe(rotate=10.0), Recipe(zoom=0.1)):
        assert other.augments
        assert not torch.equal(digits.inputs(raw, other, draws), plain)
        half = digits.inputs(raw, other, torch.full((8, 7), 0.5))  # half way: as it is
        torch.testing.assert_close(half, plain, rtol=1e-5, atol=1e-5)


def test_statistics_of_a_channel_that_is_constant():
    x = np.full((4, 2, 3, 3), 51, np.uint8)
    x[:2, 1] = 0
    for given, wanted in (({}, 1.0), ({"constant": 7.0}, np.sqrt(7.0))):
        mean, deviation = channel_statistics(x, **given)
        np.testing.assert_allclose(mean, [51 / 255, 25.5 / 255])
        np.testing.assert_allclose(deviation, [wanted, 25.5 / 255])
