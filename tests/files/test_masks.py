"""A mask is honoured, or refused in a sentence; the number that lies under it is never used."""

import numpy as np
import pytest

from koopsim.errors import KoopsimError
from koopsim.files.masks import require_unmasked, unmasked
from koopsim.spectral import EDMD, OptimisedDMD, RandomFourier, analyze, invariant_density, mean_embedding, without_gaps
from koopsim.spectral.sampling import regular

TURN = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
l = np.arange(60)
WHOLE = np.c_[np.cos(0.3 * l), np.sin(0.3 * l)]
HIDDEN = np.ma.masked_array(WHOLE.copy(), mask=np.zeros(WHOLE.shape, bool))
HIDDEN[20, 1] = 1e6  # what the mask is for
HIDDEN[20, 1] = np.ma.masked


def test_what_is_hidden_is_missing():
    assert unmasked(WHOLE) is WHOLE
    assert np.isnan(unmasked(HIDDEN)[20, 1])
    assert np.isnan(unmasked(HIDDEN)).sum() == 1
    whole_numbers = unmasked(np.ma.masked_array([1, 2], mask=[False, True]))
    assert whole_numbers[0] == 1
    assert np.isnan(whole_numbers[1])
    nothing_hidden = unmasked(np.ma.masked_array(WHOLE))
    assert type(nothing_hidden) is np.ndarray
    np.testing.assert_array_equal(nothing_hidden, WHOLE)


@pytest.mark.parametrize(
    "use",
    [
        lambda z: EDMD().fit(z),
        lambda z: EDMD().fit((z[:-1], z[1:])),
        lambda z: EDMD().fit([WHOLE, z]),
        lambda z: EDMD().fit(WHOLE).predict(z),
        lambda z: EDMD().fit(WHOLE, control=z[:-1]),
        lambda z: EDMD().fit((WHOLE[:-1], WHOLE[1:]), inputs=z[:-1]),
        lambda z: invariant_density(z),
        lambda z: mean_embedding(z, RandomFourier(4)),
        lambda z: analyze(z[19:21]),
    ],
)
def test_refused_in_a_sentence(use):
    with pytest.raises(ValueError, match=r"NaN") as caught:
        use(HIDDEN)
    assert "\n" not in str(caught.value)


def test_honoured_where_samples_may_be_missing():
    pieces = without_gaps(HIDDEN)
    assert [len(p) for p in pieces] == [20, 39]
    np.testing.assert_allclose(np.sort(np.abs(np.angle(EDMD(lambda z: z).fit(pieces).eigenvalues_))), [0.3, 0.3])
    assert len(regular(np.arange(60.0), HIDDEN).pieces) == 2
    found = OptimisedDMD(2, bags=0).fit(HIDDEN)
    np.testing.assert_allclose(np.abs(np.imag(found.rates_)), 0.3, rtol=1e-9)


def test_pictures_and_labels_cannot_be_missing():
    require_unmasked(WHOLE, "Pictures")
    require_unmasked(np.ma.masked_array(WHOLE), "Pictures")
    with pytest.raises(KoopsimError, match=r"Pictures are a masked array with 1 of 120 hidden; fill or drop them\."):
        require_unmasked(HIDDEN, "Pictures")


def test_training_and_prediction_refuse():
    import torch

    import koopsim

    with pytest.raises(KoopsimError, match=r"The training data are a masked array with 1 of 120 hidden"):
        koopsim.train(torch.nn.Linear(2, 1), data=(HIDDEN.astype(np.float32), WHOLE[:, :1].astype(np.float32)))
