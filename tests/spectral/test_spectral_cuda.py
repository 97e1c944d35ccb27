"""EDMD whose large products are on a GPU: the same matrix, eigenvalues and residuals as NumPy's."""

import numpy as np
import pytest
import torch

from koopsim.spectral import EDMD, Identity, Monomials, RandomFourier

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RNG = np.random.default_rng(0)
Z = RNG.uniform(-1, 1, (4000, 3))
Y = np.tanh(Z @ RNG.standard_normal((3, 3)))
WAVES = np.exp(1j * np.outer(np.arange(400), [0.3, 0.7])) @ (RNG.standard_normal((2, 5)) + 1j)


@pytest.mark.parametrize("dictionary", [Identity(), Monomials(6), RandomFourier(40, 0.7)])
@pytest.mark.parametrize("stream", [False, True])
def test_same_as_numpy(dictionary, stream):
    there, here = EDMD(dictionary, device="cuda"), EDMD(dictionary)
    for model in (there, here):
        if stream:
            for i in range(0, 4000, 1000):
                model.partial_fit((Z[i : i + 1000], Y[i : i + 1000]))
        else:
            model.fit((Z, Y))
    np.testing.assert_allclose(there.predict(Z[:50]), here.predict(Z[:50]), atol=1e-8)
    np.testing.assert_allclose(
        np.sort(np.abs(there.eigenvalues_))[-4:], np.sort(np.abs(here.eigenvalues_))[-4:], atol=1e-7
    )
    np.testing.assert_allclose(np.sort(there.residuals_)[:3], np.sort(here.residuals_)[:3], atol=1e-6)


def test_complex_snapshots_and_a_rank():
    there, here = (EDMD(Identity(), rank=2, device=device).fit(WAVES) for device in ("cuda", None))
    np.testing.assert_allclose(there.eigenvalues_, here.eigenvalues_, atol=1e-9)
    np.testing.assert_allclose(np.sort(np.angle(there.eigenvalues_)), [0.3, 0.7], atol=1e-9)
    assert there.verdict().case == here.verdict().case == "invariant-set"
