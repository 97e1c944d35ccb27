"""What a step is fed: every sample once an epoch, by seed and epoch alone, each process its share of the batch."""

import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.engine.feeds import Drawn, Everything, Resident, Shuffled, feed_of
from koopsim.engine.world import World
from koopsim.errors import KoopsimError
from koopsim.tasks.base import Samples, Whole
from koopsim.tasks.rows import Rows

X, Y = torch.arange(10.0).unsqueeze(1), torch.arange(10)
RECIPE = Recipe(batch_size=4)


def epoch(feed, members=1):
    return [feed.batch(torch.full((members,), p), feed.size_at(p)) for p in range(feed.epoch_steps)]


def test_samples_in_the_order_of_the_seed_and_the_epoch():
    feed = Resident(Samples(X, Y), RECIPE, 1)
    assert (feed.epoch_steps, [feed.size_at(p) for p in range(3)], feed.sizes()) == (3, [4, 4, 2], {4, 2})
    for seed, number in ((0, 0), (3, 0), (3, 7)):
        feed.begin_epoch([seed], [number])
        order = torch.randperm(10, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
        x, y = (torch.cat(parts, dim=1) for parts in zip(*epoch(feed), strict=True))
        assert y.tolist() == [order.tolist()]
        assert torch.equal(x[0], X[order])


def test_two_members_have_orders_of_their_own_and_each_that_of_it_alone():
    both, alone = Resident(Samples(X, Y), RECIPE, 2), Resident(Samples(X, Y), RECIPE, 1)
    assert both.laid is None
    assert alone.laid is not None
    both.begin_epoch([5, 6], [1, 2])
    pairs = epoch(both, 2)
    for member, (seed, number) in enumerate(((5, 1), (6, 2))):
        alone.begin_epoch([seed], [number])
        for (x, y), (own_x, own_y) in zip(pairs, epoch(alone), strict=True):
            assert torch.equal(x[member], own_x[0])
            assert torch.equal(y[member], own_y[0])


def test_a_kernel_brings_a_batch_on_cuda_of_whom_nothing_is_drawn(monkeypatch):
    pytest.importorskip("triton")
    feed = Resident(Samples(X, Y), RECIPE, 2)
    monkeypatch.setattr("koopsim.engine.feeds.TRITON", True)
    assert not feed._kernel_fits(), "on a CPU"
    monkeypatch.setattr(feed, "order", type("OnCUDA", (), {"is_cuda": True}))
    assert feed._kernel_fits()
    feed.draws = torch.zeros(2, 10, 3)
    assert not feed._kernel_fits(), "a picture would be turned by nobody"


@pytest.mark.parametrize("members", [1, 2])
def test_processes_share_a_batch_row_by_row(members):
    whole = Resident(Samples(X, Y), RECIPE, members)
    whole.begin_epoch([1] * members, [0] * members)
    shares = []
    for rank in range(3):
        feed = Resident(Samples(X, Y), RECIPE, members)
        feed.world = World(rank, 3)
        feed.begin_epoch([1] * members, [0] * members)
        shares.append(epoch(feed, members))
        assert feed.weight(4) == (2 / 4 if rank == 2 else 1 / 4)
    assert whole.weight(4) == 1.0
    for step, (_, y) in enumerate(epoch(whole, members)):
        if step < 2:  # of the last two rows three ranks have one that counts nothing
            assert torch.equal(torch.cat([share[step][1] for share in shares], dim=1), y)


def test_augmentation_draws_the_same_for_a_sample_wherever_it_is():
    recipe = Recipe(batch_size=4, flip=True)
    seen = []
    samples = Samples(X, Y, lambda x, recipe, draws: seen.append(draws) or x)
    feed = Resident(samples, recipe, 1)
    feed.begin_epoch([2], [0])
    epoch(feed)
    generator = torch.Generator().manual_seed(2 * 1_000_003)
    order = torch.randperm(10, generator=generator)
    drawn = torch.rand(10, seen[0].shape[1], generator=generator)
    torch.testing.assert_close(torch.cat(seen), drawn[order])


def test_any_number_of_tensors_go_together():
    feed = Shuffled(Rows((X, 2 * X, Y)), RECIPE)
    assert feed.shared == (False,) * 3
    feed.begin_epoch([0], [0])
    for a, b, y in epoch(feed):
        assert torch.equal(b, 2 * a)
        assert torch.equal(a[0, :, 0].long(), y[0])


def test_everything_every_step_shared_or_each_its_own():
    y = torch.randn(2, 10, 3)
    feed = Everything(Whole(X, y, 5, lambda model: None), [nn.Identity(), nn.Identity()])
    assert (feed.shared, feed.epoch_steps, feed.size_at(0)) == ((True, False), 5, 10)
    x, own = feed.batch(torch.zeros(2), 10)
    assert x is X
    assert own is y
    feed.world = World(1, 2)
    x, own = feed.batch(torch.zeros(2), 10)
    assert torch.equal(x, X[5:])
    assert torch.equal(own, y[:, 5:])
    scales = [nn.Linear(1, 2), nn.Linear(1, 2)]
    feed = Everything(Whole(X, y, 5, lambda model: model(X).detach()), scales)
    assert feed.shared == (False, False)
    for row, model in enumerate(scales):
        torch.testing.assert_close(feed.batch(torch.zeros(2), 10)[0][row], model(X).detach())
    feed.put(0, scales[1])
    torch.testing.assert_close(feed.x[0], feed.x[1])
    feed.world = World(0, 2)
    assert feed.batch(torch.zeros(2), 10)[0].shape == (2, 5, 2)


def test_the_feed_of_each_kind_of_data():
    model = [nn.Linear(1, 1)]
    assert type(feed_of(Rows((X, Y)), RECIPE, model)) is Shuffled
    assert type(feed_of(Samples(X, Y), RECIPE, model)) is Resident
    assert type(feed_of(Whole(X, Y[None], 1, lambda m: None), RECIPE, model)) is Everything
    made = Drawn(lambda: (X, Y), 3, (True, False))
    assert made.batch(torch.zeros(1), 0) == (X, Y)
    assert (made.epoch_steps, made.shared) == (3, (True, False))
    with pytest.raises(KoopsimError, match="rows; expected inputs and a target of as many rows"):
        Rows((X, Y[:3]))
