import pytest

import koopsim
from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS, run_of


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.paper_parameters])
def test_every_row_of_the_paper_has_its_number_of_parameters(name):
    assert koopsim.count_parameters(koopsim.build(name)) == PRESETS[name].paper_parameters


def test_every_row_of_the_paper_is_there():
    published = sorted(p.paper_parameters for p in PRESETS.values() if p.paper_parameters)
    expected = [17_294, 17_294, 17_010, 81_480, 80_466, 84_460, 81_394] + 2 * [168_694, 168_264, 172_218, 170_194]
    assert published == sorted(expected)


def test_the_best_recipe_keeps_the_model():
    plain, best = run_of("cifar10/sim-single"), run_of("cifar10/sim-single:best")
    assert plain.model == best.model
    assert not plain.recipe.augments
    assert best.recipe.flip


@pytest.mark.parametrize("name", ["copy/deq:best", "cifar10/sim-single:bset", "cifar10/sim-singel"])
def test_what_does_not_exist_says_so(name):
    with pytest.raises(KoopsimError, match=r"no second recipe|no recipe|Did you mean"):
        run_of(name)
