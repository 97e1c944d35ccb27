import numpy as np
import pytest

from koopsim.config import Recipe
from koopsim.errors import KoopsimError
from koopsim.schedule import learning_rates


def rates(**settings):
    return learning_rates(Recipe(learning_rate=0.01, **settings), steps_per_epoch=4)


def test_constant():
    lr, beta1 = rates(epochs=3)
    assert np.all(lr == 0.01)
    assert np.all(beta1 == 0.9)
    assert len(lr) == 12


def test_step_drops_tenfold():
    lr, _ = rates(epochs=20, schedule="step", step_size=10)
    np.testing.assert_allclose([lr[39], lr[40], lr[79]], [0.01, 0.001, 0.001])


def test_cosine_starts_at_the_rate_and_ends_near_zero():
    lr, _ = rates(epochs=25, schedule="cosine")
    np.testing.assert_allclose([lr[0], lr[50]], [0.01, 0.005])
    assert 0 < lr[-1] < 1e-5


def test_onecycle_passes_its_knots():
    lr, beta1 = rates(epochs=20, schedule="onecycle")  # knots at epochs 0, 7, 15, 20
    at = lambda epoch: epoch * 4  # noqa: E731
    np.testing.assert_allclose(lr[[at(0), at(7), at(15), -1]], [1e-3, 1e-2, 1e-3, 1e-3])
    np.testing.assert_allclose(beta1[[at(0), at(7), at(15), -1]], [0.95, 0.85, 0.95, 0.95])


@pytest.mark.parametrize("epochs", [1, 4, 10, 11])
def test_short_cycles_still_rise_and_fall(epochs):
    lr, _ = rates(epochs=epochs, schedule="onecycle")
    assert lr.max() > lr[0]
    assert lr.max() > lr[-1]


def test_warm_up_rises_linearly_into_the_schedule():
    lr, _ = rates(epochs=5, warm_up=10)
    np.testing.assert_allclose(lr[:10], 0.001 * np.arange(1, 11))
    assert np.all(lr[10:] == 0.01)


def test_a_run_of_years_is_refused():
    with pytest.raises(KoopsimError, match="at most 200,000,000"):
        learning_rates(Recipe(epochs=1000), 1_000_000)
