"""Batches that come from elsewhere: in the order of seed and epoch, the same whether asked for first or in turn."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from koopsim.config import Recipe
from koopsim.datasets import load_images
from koopsim.datasets.blocks import in_memory
from koopsim.engine.ahead import Ahead, _Jobs, _Thread
from koopsim.engine.streamed import Streamed
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.tasks.augment import draws_needed
from koopsim.tasks.rows import Stream
from koopsim.tasks.streaming import Streaming

CPU = torch.device("cpu")
SOURCE = in_memory(load_images("digits")).train
NONE = torch.zeros(1, dtype=torch.int64)


def streaming(count=20, **more):
    return Streaming(SOURCE, np.arange(count), lambda x, recipe, draws: x.float(), block=4, buffer=2, **more)


def ahead(**recipe):
    return Ahead(streaming(), Recipe(batch_size=6, **recipe), CPU)


def pictures(rows):
    return torch.from_numpy(SOURCE.read(rows)).float()


def test_a_stream_read_ahead_has_the_order_of_its_seed_and_epoch():
    feed = ahead()
    try:
        assert (feed.epoch_steps, [feed.size_at(p) for p in range(4)], feed.sizes()) == (4, [6, 6, 6, 2], {6, 2})
        x, y = feed.batch(NONE, 6)  # before anything has come: what a batch looks like
        assert torch.equal(x[0], pictures(np.arange(6)))
        assert y.tolist() == [SOURCE.labels[:6].tolist()]
        for seed, epoch in ((3, 0), (3, 1), (4, 1)):
            feed.begin_epoch([seed], [epoch])
            order = feed.data.order(seed, epoch)
            assert torch.equal(feed.first(NONE, 6)[0][0], pictures(order[:6]))
            for position in range(4):
                feed.fetch(position)
                x, y = feed.batch(NONE, feed.size_at(position))
                rows = order[6 * position : 6 * position + 6]
                assert torch.equal(x[0], pictures(rows))
                assert y[0].tolist() == SOURCE.labels[rows].tolist()
        feed.begin_epoch([4], [2])
        feed.fetch(2)  # from the middle, as a run that was stopped there
        assert torch.equal(feed.batch(NONE, 6)[0][0], pictures(feed.data.order(4, 2)[12:18]))
        assert (feed.next, feed.lost) == (2 * 4 + 2 + 1, {})
    finally:
        feed.close()


def test_draws_follow_from_seed_epoch_and_position_and_each_process_has_its_rows():
    data, recipe = streaming(), Recipe(batch_size=6, flip=True)
    jobs = _Jobs(data, recipe, 5, 6, ALONE)
    (x, y, draws), lost = jobs[4 * 2 + 1]  # the second batch of the third epoch
    generator = torch.Generator().manual_seed((5 * 1_000_003 + 2) * 1_000_033 + 1)
    assert torch.equal(draws, torch.rand(6, draws_needed(recipe), generator=generator))
    assert y.tolist() == SOURCE.labels[data.order(5, 2)[6:12]].tolist()
    assert lost == []
    parts = [_Jobs(data, recipe, 5, 6, World(rank, 2))[4 * 2 + 1][0] for rank in range(2)]
    for whole, shares in zip((x, y, draws), zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(shares), whole)
    assert len(jobs) == 2**62
    assert jobs.example(3)[0][1].tolist() == SOURCE.labels[:3].tolist()


def test_a_reading_thread_waits_ends_and_tells_what_went_wrong():
    seen = []

    def numbers():
        for n in range(10_000):
            seen.append(n)
            yield n

    reading = _Thread(numbers())
    assert [reading.get() for _ in range(3)] == [0, 1, 2]
    reading.stop()
    assert not reading.thread.is_alive()
    assert len(seen) < 100  # it did not run away

    def broken():
        yield 1
        raise OSError("the disk is gone\nlater")

    reading = _Thread(broken())
    assert reading.get() == 1
    with pytest.raises(KoopsimError, match=r"^Reading the data failed: later$"):
        reading.get()
    reading.stop()


X = torch.arange(7.0).unsqueeze(1)


def test_a_dataset_is_asked_in_the_order_of_its_seed_and_epoch():
    feed = Streamed(Stream(TensorDataset(X, 2 * X)), 3, CPU)
    assert (feed.epoch_steps, [feed.size_at(p) for p in range(3)], feed.shared) == (3, [3, 3, 1], (False, False))
    assert torch.equal(feed.batch(NONE, 3)[0][0], X[:3])
    for seed, epoch in ((0, 0), (2, 5)):
        feed.begin_epoch([seed], [epoch])
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        assert torch.equal(feed.first(NONE, 3)[0][0], X[order[:3]])
        for position in (0, 1, 2):
            feed.fetch(position)
            x, y = feed.batch(NONE, feed.size_at(position))
            assert torch.equal(x[0], X[order[3 * position : 3 * position + 3]])
            assert torch.equal(y, 2 * x)
        feed.fetch(1)  # again from the middle
        assert torch.equal(feed.batch(NONE, 3)[0][0], X[order[3:6]])
        feed.fetch(2)
        assert torch.equal(feed.batch(NONE, 1)[0][0], X[order[6:]])


def test_samples_of_other_shapes_are_refused():
    class Growing(Dataset):
        asked = 0

        def __len__(self):
            return 4

        def __getitem__(self, i):
            Growing.asked += 1
            return torch.zeros(2 if Growing.asked < 4 else 3), 0

    feed = Streamed(Stream(Growing()), 2, CPU)
    feed.begin_epoch([0], [0])
    feed.fetch(0)
    with pytest.raises(KoopsimError, match=r"Dataset is torch.float32 \(2, 3\) where an earlier one was"):
        feed.fetch(1)


def test_what_a_dataset_draws_at_random_follows_from_the_batch():
    class Noisy(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return torch.rand(2) + np.random.rand(), i

    def epoch(seed, number):
        feed = Streamed(Stream(Noisy()), 2, CPU)
        feed.begin_epoch([seed], [number])
        found = []
        for position in range(3):
            feed.fetch(position)
            found.append(feed.batch(NONE, 2)[0].clone())
        return torch.cat(found)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(epoch(1, 0), epoch(1, 0))
    assert not torch.equal(epoch(1, 0), epoch(1, 1))
    assert not torch.equal(epoch(1, 0), epoch(2, 0))
    assert torch.equal(torch.get_rng_state(), before)
