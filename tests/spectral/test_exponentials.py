"""How many exponentials a series has, what they foretell and what they leave over."""

import numpy as np
import pytest

from koopsim.spectral import exponentials
from koopsim.spectral.variable_projection import Terms, refined

RNG = np.random.default_rng


def test_what_a_short_run_foretells():
    """Seven tenths are fitted, four samples at least; a run that ends there foretells nothing."""
    one = Terms(np.array([-0.1]), np.zeros(1), np.array([False]), np.array([False]))
    l = np.arange(10.0)[:, None]
    four = np.exp(-0.1 * l[:4])
    assert exponentials._foretold([four], one, 1.0) == (0.0, 0.0)
    z = np.exp(-0.1 * l) + 1.0
    z[7:] += 0.5  # all that is foretold is off by a half
    off, explained = exponentials._foretold([z], one, 0.25)
    assert off == pytest.approx(1.0, rel=1e-3)
    assert explained == pytest.approx(1 - 0.75 / np.sum((z[7:] - z.mean()) ** 2), rel=1e-3)
    both, _ = exponentials._foretold([z, four], one, 0.25)
    assert both == pytest.approx(off, rel=0.2)
    exact, share = exponentials._foretold([np.exp(-0.1 * l)], one, 0.0)
    assert exact < 1e3  # in units of rounding, where nothing was left over
    assert share == pytest.approx(1)


def test_what_is_left_over_and_its_colour():
    """White: sigma^2 (J^T J)^-1; what is alike from sample to sample counts for less."""
    one = Terms(np.array([-0.05]), np.zeros(1), np.array([False]), np.array([False]))
    l = np.arange(40.0)[:, None]
    base, sizes = np.exp(-0.05 * l), []
    for wave in (np.cos(np.pi * l), np.cos(0.9 * l)):
        runs = [base + 0.01 * wave]
        r, J, _ = exponentials.residual(runs, one)
        variance, widened, error, _ = exponentials._uncertainty(runs, one, 3)
        assert variance == pytest.approx(r @ r / 37)
        colour = max(0.0, (r[1:] @ r[:-1]) / (r @ r))
        assert widened == pytest.approx(variance * (1 + colour) / (1 - colour))
        assert error[0] == pytest.approx(np.sqrt(widened / (J[:, 0] @ J[:, 0])), rel=1e-6)
        sizes.append(widened / variance)
    assert sizes[0] == 1.0
    assert sizes[1] > 2
    few = exponentials._uncertainty([base[:3]], one, 9)
    assert few[0] < 1e-25  # no fewer than one degree of freedom
    assert exponentials._uncertainty([0 * base], one, 3)[1] == 0.0


def test_the_number_of_exponentials(monkeypatch):
    """Least BIC, three numbers for each unknown, and no more than so many in vain."""
    tried = []
    real = refined

    def counted(runs, start, *steps):
        tried.append((start.vector.size, *steps))
        return real(runs, start, *steps)

    monkeypatch.setattr(exponentials, "refined", counted)
    l = np.arange(60.0)
    z = (0.95**l * np.cos(0.6 * l))[:, None] + 1e-3 * RNG(0).standard_normal((60, 1))
    found = fit = exponentials.fit_exponentials([z])
    assert fit.growth.size == 1
    assert found.angle == pytest.approx([0.6], abs=1e-2)
    rough = [t for t in tried if t[1:] == (8,)]
    assert len(rough) == 2 + 4  # four more that did not lower it
    tried.clear()
    for m, fitted in ((9, True), (8, False)):  # one decay: growth, amplitude and rest are three unknowns
        e = exponentials.fit_exponentials([np.exp(-0.3 * np.arange(m))[:, None] + 1.0])
        assert (e is not None) == fitted


@pytest.mark.parametrize(("runs", "d", "least"), [(1, 1, 15), (2, 2, 11), (3, 1, 11)])
def test_samples_that_a_pair_needs(runs, d, least):
    """Growth, angle, and for each run and direction two amplitudes and a rest: three numbers for each unknown."""
    l = np.arange(40.0)[:, None]
    waves = [np.hstack([0.97**l * np.cos(0.9 * l + k + j) for j in range(d)]) for k in range(runs)]
    for m, paired in ((least, True), (least - 1, False)):
        found = exponentials.fit_exponentials([z[:m] for z in waves])
        assert (found is not None and bool(found.paired.any())) == paired
