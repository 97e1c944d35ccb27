"""The tiles of the page compare equals where they can, and say so where they cannot."""

from koopsim.report.collect import Findings
from koopsim.report.sections import first_looks
from koopsim.report.speed import Ratio


def ratio(times: float, ours: str, theirs: str) -> Ratio:
    return Ratio("Copy memory, T = 500", "copy/sim-single", "copy/deq", 1.0, times, ours, theirs)


def tile(*ratios: Ratio) -> tuple[str, str]:
    (card,) = first_looks(Findings(), ratios)
    return card.number, card.meaning


def test_equal_settings_go_before_larger_ratios():
    figure, text = tile(ratio(30.0, "20 in float32", "5 in float32"), ratio(9.0, "1 in float32", "1 in float32"))
    assert figure == "9.0×"
    assert "(batch 1 in float32 both)" in text


def test_unequal_ones_are_called_so():
    figure, text = tile(ratio(30.0, "20 in float32", "5 in float32"))
    assert figure == "30.0×"
    assert "batch 20 in float32 against 5 in float32: not equal settings" in text
