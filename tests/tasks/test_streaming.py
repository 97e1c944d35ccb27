"""The order of a stream by hand, what sequences are scaled by, and losses of rows that weigh nothing."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from koopsim.config import ClassificationConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns, task_kind
from koopsim.presets import run_of
from koopsim.tasks import classification
from koopsim.tasks.classification import ClassificationKind, channel_statistics
from koopsim.tasks.forecast_sequences import ForecastSequencesConfig
from koopsim.tasks.row_losses import row_loss, weighted_entropy, weighted_squares
from koopsim.tasks.sequence_data import STILL, statistics_of
from koopsim.tasks.streaming import Streaming


@pytest.mark.parametrize(("count", "block", "buffer"), [(10, 3, 2), (12, 4, 9), (5, 1, 1)])
def test_blocks_in_random_order_are_mixed_within_a_buffer(count, block, buffer):
    rows = np.arange(count) * 10
    found = Streaming(None, rows, None, block=block, buffer=buffer).order(7, 3)
    generator = torch.Generator().manual_seed(7 * 1_000_003 + 3)
    blocks = torch.randperm(math.ceil(count / block), generator=generator).tolist()
    wanted = []
    for i in range(0, len(blocks), buffer):
        some = [row for b in blocks[i : i + buffer] for row in range(count)[b * block : (b + 1) * block]]
        wanted += [10 * some[j] for j in torch.randperm(len(some), generator=generator).tolist()]
    assert found.tolist() == wanted
    assert sorted(wanted) == rows.tolist()


@pytest.mark.parametrize(
    ("valid", "test", "good"),
    [(0.5, 0.5, False), (0.0, 0.2, False), (0.2, 0.0, False), (1.0, 0.2, False), (0.2, 1.0, False), (0.25, 0.5, True)],
)
def test_shares_of_sequences(valid, test, good):
    if good:
        assert ForecastSequencesConfig(valid=valid, test=test, samples=10).valid == valid
        return
    with pytest.raises(KoopsimError, match=f"The shares are valid {valid}, test {test}"):
        ForecastSequencesConfig(valid=valid, test=test)
    with pytest.raises(KoopsimError, match="9 samples are too few; ask for at least 10"):
        ForecastSequencesConfig(samples=9)


def test_a_channel_is_scaled_by_its_deviation_and_one_that_is_still_by_nothing():
    values = [np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[5.0, 5.0], [np.nan, 5.0]])]
    scale, shift = statistics_of(values, False)
    assert scale == pytest.approx((1 / math.sqrt(8 / 3), 1.0))
    assert shift == pytest.approx((3.0, 5.0))
    assert statistics_of(values, True) == ((1.0, 1.0), (0.0, 0.0))
    assert statistics_of([np.zeros((3, 1), np.uint8)], False) == ((), ())
    with pytest.raises(KoopsimError, match="A channel has no values at all in the training part"):
        statistics_of([np.array([[1.0, np.nan]])], False)
    spread = 4 * STILL
    (tiny,), _ = statistics_of([np.array([[-spread], [spread]])], False)
    assert tiny == pytest.approx(1 / spread, rel=1e-5)
    still = np.zeros((2, 1, 2, 2), np.uint8)
    assert [t.tolist() for t in channel_statistics(still)] == [[0.0], [1.0]]
    assert channel_statistics(still, 0.25)[1].tolist() == [0.5]
    still[0] = 255
    assert [t.tolist() for t in channel_statistics(still)] == [[0.5], [0.5]]


def test_rows_count_by_their_weight():
    answers, y = torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0, 3.0], [3.0, 1.0]])
    assert float(weighted_squares(answers, y)) == (3 * 1 + 1 * 4) / 4
    assert float(weighted_squares(answers, y * torch.tensor([1.0, 0.0]))) == 0.0
    logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
    labels = torch.tensor([[1.0, 1.0], [1.0, 3.0]])
    assert float(weighted_entropy(logits, labels)) == pytest.approx(math.log(2) / 4)
    assert row_loss(True, True) is weighted_entropy
    assert row_loss(False, True) is weighted_squares
    assert row_loss(False, False)(answers, torch.zeros(2, 1)) == 13


@pytest.mark.parametrize(
    ("loads", "size", "streamed"), [(True, 5, False), (True, 6, True), (False, 1, True), (True, 4, False)]
)
def test_pictures_larger_than_half_of_what_is_free_are_streamed(loads, size, streamed, monkeypatch):
    images = SimpleNamespace(loads=loads, bytes=size * 2**30, name="mine", train=range(1234))
    asked = []
    monkeypatch.setattr(classification, "streamable", lambda *given: asked.append(given) or images)
    kind, config = ClassificationKind(), ClassificationConfig(dataset="folder", size=(16, 16), unreadable="skip")
    found, told = kind.settled(config, 10 * 2**30)
    assert asked == [("folder", (16, 16), True)]
    assert found.stream == ("yes" if streamed else "auto")
    said = f"mine is streamed: 1,234 pictures of {size}.0 GiB, and 10.0 GiB are free."
    assert told == (said if streamed else "")
    monkeypatch.setattr(classification, "streamable", lambda *given: None)
    assert kind.settled(config, 1) == (config, "")
    for other in (replace(config, stream="no"), replace(config, dataset="digits")):
        assert kind.settled(other, 1) == (other, "")
    assert kind.data_sets(config) == set()
    assert kind.data_sets(replace(config, dataset="digits")) == {"digits"}


def test_a_text_has_nothing_but_its_next_byte(tmp_path):
    run = run_of("text/sim-single", "smoke")
    (tmp_path / "mine.txt").write_text("abc" * 99)
    data, kind = str(tmp_path / "mine.txt"), task_kind(run.task)
    for goal in (None, "forecast"):
        name, own = kind.on_own_table(run, "text/sim-single", data, OwnColumns((), goal))
        assert (name, own.task.text) == ("mine/sim-single", str((tmp_path / "mine.txt").resolve()))
    with pytest.raises(KoopsimError, match="is one text without labels; its next byte is all there is to be foretold"):
        kind.on_own_table(run, "text/sim-single", data, OwnColumns(("y",), "label"))
