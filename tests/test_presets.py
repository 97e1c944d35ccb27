import pytest

import koopsim
from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.model and p.paper_parameters])
def test_every_row_of_the_paper_has_its_number_of_parameters(name):
    assert koopsim.count_parameters(koopsim.build(name)) == PRESETS[name].paper_parameters


def test_every_row_of_the_paper_is_there():
    published = sorted(p.paper_parameters for p in PRESETS.values() if p.paper_parameters)
    expected = [17_294, 17_294, 17_010, 81_480, 80_466, 84_460, 81_394] + 2 * [168_694, 168_264, 172_218, 170_194]
    assert published == sorted(expected)


def test_what_is_not_built_says_so():
    missing = [n for n, p in PRESETS.items() if p.model is None]
    for name in missing:
        with pytest.raises(KoopsimError, match="not built yet"):
            koopsim.build(name)
