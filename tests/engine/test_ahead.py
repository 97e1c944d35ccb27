"""Reading ahead by hand: where it begins, large seeds, what cannot be read, and what a thread says of an error."""

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from koopsim.config import Recipe
from koopsim.engine import feeds
from koopsim.engine.ahead import Ahead, _Jobs, _Thread
from koopsim.engine.feeds import Drawn, Everything, Feed, Resident, Shuffled, feed_of
from koopsim.engine.streamed import Streamed, _Batches
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.tasks.base import Samples, Whole
from koopsim.tasks.rows import Rows, Stream
from koopsim.tasks.streaming import Streaming

CPU = torch.device("cpu")
NONE = torch.zeros(1, dtype=torch.int64)
LABELS = np.arange(100, 120)


class Source:
    """Row i is the number i; of these some cannot be read."""

    labels = LABELS

    def __init__(self, bad=()):
        self.bad, self.asked = set(bad), []

    def read(self, rows):
        self.asked.append(list(rows))
        return np.asarray(rows, np.float32)[:, None]

    def read_good(self, rows):
        good = np.array([row not in self.bad for row in rows])
        x = np.where(good[:, None], self.read(rows), np.nan)
        return x.astype(np.float32), good, [(int(row), f"row {row} is gone") for row in rows if row in self.bad]


def streaming(bad=(), count=20, **more):
    return Streaming(Source(bad), np.arange(count), lambda x, recipe, draws: x if draws is None else x + draws[:, :1],
                     block=4, buffer=2, **more)  # fmt: skip


def ahead(data=None, **recipe):
    return Ahead(data or streaming(), Recipe(batch_size=6, **recipe), CPU)


def test_it_begins_with_the_first_epoch_of_seed_zero():
    feed = ahead()
    assert (feed.seed, feed.epoch, feed.next, feed.coming, feed.places, feed.lost) == (0, 0, -1, None, {}, {})
    try:
        feed.fetch(0)
        assert feed.batch(NONE, 6)[0][0, :, 0].tolist() == feed.data.order(0, 0)[:6].tolist()
        assert feed.batch(NONE, 6)[1][0].tolist() == LABELS[feed.data.order(0, 0)[:6]].tolist()
    finally:
        feed.close()
    assert feed.coming is None
    feed.close()
    small = Ahead(streaming(), Recipe(batch_size=64), CPU)
    assert (small.size, small.epoch_steps, small.size_at(0)) == (20, 1, 20)


def test_reading_goes_on_over_the_end_of_an_epoch_and_anew_for_another_seed():
    feed = ahead()
    try:
        feed.begin_epoch([2], [0])
        feed.fetch(3)
        reading = feed.coming
        feed.begin_epoch([2], [1])
        feed.fetch(0)
        assert feed.coming is reading
        assert feed.batch(NONE, 6)[0][0, :, 0].tolist() == feed.data.order(2, 1)[:6].tolist()
        feed.begin_epoch([3], [1])
        assert feed.next == -1
        feed.fetch(1)
        assert feed.coming is not reading
        assert not reading.thread.is_alive()
        assert feed.batch(NONE, 6)[0][0, :, 0].tolist() == feed.data.order(3, 1)[6:12].tolist()
    finally:
        feed.close()


def test_a_batch_is_seen_with_its_draws():
    feed = ahead(flip=True)
    try:
        feed.begin_epoch([5], [2])
        feed.fetch(1)
        generator = torch.Generator().manual_seed((5 * 1_000_003 + 2) * 1_000_033 + 1)
        (x, _), rows = feed.batch(NONE, 6), feed.data.order(5, 2)[6:12]
        draws = feed.places[6][2]
        assert torch.equal(draws, torch.rand(*draws.shape, generator=generator))
        assert torch.equal(x[0, :, 0], torch.from_numpy(rows) + draws[:, 0])
        zero = feed.jobs(ALONE).example(3)[0][2]
        assert torch.equal(zero, torch.rand(*zero.shape, generator=torch.Generator().manual_seed(0)))
    finally:
        feed.close()


@pytest.mark.parametrize("seed", [2**31 - 1, 2**43 + 12345, 2**44 + 99])
def test_a_large_seed_is_taken_within_63_bits(seed):
    jobs = _Jobs(streaming(), Recipe(batch_size=6, flip=True), seed, 6, ALONE)
    own = jobs[4 + 2][0][2]  # asked for the second epoch first
    number = (seed * 1_000_003 + 1) * 1_000_033 + 2
    assert seed < 2**40 or number >= 2**63
    assert torch.equal(own, torch.rand(*own.shape, generator=torch.Generator().manual_seed(number % 2**63)))


def test_an_order_is_drawn_once_an_epoch(monkeypatch):
    data, asked = streaming(), []
    monkeypatch.setattr(Streaming, "order", lambda self, seed, epoch: asked.append((seed, epoch)) or np.arange(20))
    jobs = _Jobs(data, Recipe(batch_size=6), 7, 6, ALONE)
    for number in (0, 1, 3, 4, 5, 0):
        jobs[number]
    assert asked == [(7, 0), (7, 1), (7, 0)]
    assert jobs.steps == 4
    assert data.source.asked == [[*range(6)], [*range(6, 12)], [18, 19], [*range(6)], [*range(6, 12)], [*range(6)]]


def test_in_the_place_of_what_cannot_be_read_others_of_the_batch_come_in_turn():
    jobs = _Jobs(streaming({0, 1, 3, 5}, skip=True), Recipe(batch_size=6), 0, 6, ALONE)
    x, labels, lost = jobs._pictures(np.arange(6))
    assert x[:, 0].tolist() == [2, 4, 2, 2, 4, 4]
    assert labels.tolist() == [102, 104, 102, 102, 104, 104]
    assert [row for row, _ in lost] == [0, 1, 3, 5]
    x, labels, lost = jobs._pictures(np.arange(6, 9))
    assert (x[:, 0].tolist(), lost) == ([6, 7, 8], [])
    with pytest.raises(KoopsimError, match=r"^None of the 2 pictures of a batch can be read; the first: row 0 is gone"):
        jobs._pictures(np.arange(2))
    feed = ahead(streaming({0, 7}, skip=True))
    try:
        for position in range(4):
            feed.fetch(position)
        assert feed.lost == {0: "row 0 is gone", 7: "row 7 is gone"}
    finally:
        feed.close()


def test_what_a_thread_says_of_an_error():
    def failing(error):
        raise error
        yield

    worker = KoopsimError("Caught KoopsimError in DataLoader worker\nkoopsim.errors.KoopsimError: the file is cut off")
    for error, said in (
        (worker, r"^the file is cut off$"), (KoopsimError("plain"), r"^plain$"),
        (OSError(), r"^Reading the data failed: OSError$"),
    ):  # fmt: skip
        reading = _Thread(failing(error))
        with pytest.raises(KoopsimError, match=said):
            reading.get()
        assert reading.stopped.is_set()
        assert not reading.thread.is_alive()
    assert (reading.thread.daemon, reading.thread.name) == (True, "koopsim-reading")
    blocked = _Thread(iter(range(1000)))
    while not blocked.waiting.full():
        threading.Event().wait(0.001)
    blocked.stop()
    assert not blocked.thread.is_alive()
    assert blocked._put(1) is False
    assert list(blocked.source) == []


# ---------------------------------------------------------------- a Dataset of somebody's own


class Drawing(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return torch.tensor([torch.rand(()), random.random(), np.random.rand()], dtype=torch.float64), i


@pytest.mark.parametrize("seed", [3, 2**45])
def test_three_generators_follow_from_the_batch_and_are_as_before_after(seed):
    own = (seed * 1_000_003 + 1) % 2**63
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    drawn, rows = _Batches(Drawing(), [[0], [3]], seed)[1]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state[:2]
    assert torch.equal(torch.get_rng_state(), state[2])
    wanted = torch.rand((), generator=torch.Generator().manual_seed(own))
    wanted = [float(wanted), random.Random(own).random(), np.random.RandomState(own % 2**32).rand()]
    assert drawn[0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert rows.tolist() == [3]
    assert len(_Batches(Drawing(), [[0], [3]], seed)) == 2


def test_each_process_reads_its_rows_of_a_dataset():
    whole, shares = Streamed(Stream(Drawing()), 4, CPU), []
    assert (whole.seed, whole.order, whole.next, whole.coming) == (0, [0, 1, 2, 3, 4], 0, None)
    for rank in range(2):
        feed = Streamed(Stream(Drawing()), 4, CPU)
        feed.world = World(rank, 2)
        feed.begin_epoch([1], [0])
        feed.fetch(0)
        shares += feed.batch(NONE, 4)[1][0].tolist()
        assert feed.first(NONE, 4)[1].shape == (1, 4)
        assert feed.next == 1
    whole.begin_epoch([1], [0])
    assert shares == whole.order[:4]
    assert Streamed(Stream(Drawing()), 9, CPU).epoch_steps == 1
    changing = Streamed(Stream(Drawing()), 2, CPU)
    changing.begin_epoch([0], [0])
    changing.fetch(0)
    changing.places[2] = tuple(t.float() for t in changing.places[2])
    with pytest.raises(KoopsimError, match=r"is torch.int64 \(2,\) where an earlier one was torch.float32 \(2,\)"):
        changing.fetch(1)


# ---------------------------------------------------------------- which feed, and what it keeps


def test_a_little_data_lies_in_memory_twice(monkeypatch):
    x, y = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
    monkeypatch.setattr(feeds, "LITTLE", x.nbytes + y.nbytes)
    laid = Resident(Samples(x, y), Recipe(batch_size=4), 1).laid
    assert [t.shape for t in laid] == [x.shape, y.shape]
    monkeypatch.setattr(feeds, "LITTLE", x.nbytes + y.nbytes - 1)
    assert Resident(Samples(x, y), Recipe(batch_size=4), 1).laid is None
    monkeypatch.setattr(feeds, "LITTLE", 2**20)
    assert Resident(Samples(x, y), Recipe(batch_size=4), 2).laid is None
    assert Resident(Samples(x, y), Recipe(batch_size=4, flip=True), 1).laid is None
    several = Shuffled(Rows((x, x, y)), Recipe(batch_size=4))
    assert (several.laid, several.order.shape, several.epoch_steps) == (None, (1, 10), 3)


def test_a_feed_by_the_kind_of_data():
    model, recipe = nn.Linear(3, 1), Recipe(batch_size=4)
    own = feed_of(streaming(), recipe, [model])
    assert (type(own), own.device, own.size) == (Ahead, CPU, 4)
    with pytest.raises(KoopsimError, match=r"^2 models cannot share a stream: each has an order of its own"):
        feed_of(streaming(), recipe, [model, model])
    own = feed_of(Stream(Drawing()), recipe, [model])
    assert (type(own), own.device, own.size) == (Streamed, CPU, 4)
    assert (Feed().size_at(3), Feed().weight(5), Feed().lost) == (0, 1.0, {})
    drawn = Drawn(lambda: (NONE,), 2, (True,))
    drawn.world = World(0, 4)
    assert drawn.sizes() == {0}
    assert drawn.weight(8) == 0.25
    assert drawn.first(NONE, 0) == (NONE,)
    whole = Whole(torch.zeros(6, 2), torch.zeros(1, 6, 1), 3, lambda m: None)
    assert (Everything(whole, [model]).sizes(), Everything(whole, [model]).put(0, model)) == ({6}, None)
    shuffled = SimpleNamespace(order=torch.zeros(5, dtype=torch.int64), draws=torch.zeros(5, 2))
    feeds.shuffle(shuffled.order, shuffled.draws, 2, 3)
    generator = torch.Generator().manual_seed(2 * 1_000_003 + 3)
    assert torch.equal(shuffled.order, torch.randperm(5, generator=generator))
    assert torch.equal(shuffled.draws, torch.rand(5, 2, generator=generator))
