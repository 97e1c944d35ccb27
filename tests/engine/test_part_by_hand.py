"""A part by hand: batches of all processes, captured steps replayed, and what is kept of a run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.engine import part as parts
from koopsim.engine.feeds import Feed, Resident
from koopsim.engine.members import Rule
from koopsim.engine.part import ADAPT_EVERY, Part, Way, part_of_one, schedule_of
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.schedule import adam_table
from koopsim.tasks.base import Samples


def loss(model, x, y):
    return (model(x) - y).square().mean()


class Two(World):
    """The other process finds what this one does."""

    def add_up(self, *tensors):
        for tensor in tensors:
            tensor.mul_(2)


class Given(Feed):
    epoch_steps = 200

    def __init__(self):
        self.said = []

    def size_at(self, position):
        return 4 if position < 199 else 2

    def batch(self, positions, size):
        self.said.append(("batch", size, self.world))
        return torch.ones(1, size, 2), torch.zeros(1, size, 1)

    def fetch(self, position):
        self.said.append(("fetch", position))

    def begin_epoch(self, seeds, epochs):
        self.said.append(("begin", list(seeds), list(epochs)))


def part(way=Way(), models=1, feed=None):  # noqa: B008
    torch.manual_seed(0)
    models = [nn.Linear(2, 1) for _ in range(models)]
    table = torch.as_tensor(adam_table(Recipe(epochs=2), 200)).float().expand(len(models), -1, -1)
    return Part(models, loss, feed or Given(), table, Rule(), way)


def test_an_epoch_draws_by_seed_and_age_and_asks_for_each_batch():
    own = part()
    own.seeds = [7]
    own.begin_epoch()
    own.advance(198, 200)
    assert own.feed.said == [
        ("begin", [7], [0]), ("fetch", 198), ("batch", 4, ALONE), ("fetch", 199), ("batch", 2, ALONE),
    ]  # fmt: skip
    assert (own.size, own.members.steps.tolist(), own.members.positions.tolist()) == (2, [2], [2])
    own.finish_epoch()
    own.begin_epoch()
    assert (own.feed.said[-1], own.size, own.members.positions.tolist()) == (("begin", [7], [1]), 4, [0])
    own.rewind()
    assert own.members.steps.tolist() == [0]
    assert (own.members.size, type(own.gradients).__name__, own.capture) == (1, "Alone", False)
    assert own.epoch().shape == (1, 200)
    assert own.ages == [2]
    assert (own.capture, own.adaptive, own.compile, own._graphs) == (False, True, False, {})


def test_what_is_chosen_by_the_first_batch_sees_all_of_it():
    own = part(Way(world=Two(1, 2)))
    assert own.feed.world is own.gradients.world is own.world
    own._first_batch()
    assert own.feed.said[-1] == ("batch", 4, ALONE)
    assert own.feed.world is own.world
    own.feed.first = None  # it cannot be had
    with pytest.raises(TypeError):
        own._first_batch()
    assert own.feed.world is own.world


def test_a_share_counts_by_rows_or_by_what_its_loss_is_the_mean_of():
    given = (torch.ones(1, 3, 2), torch.tensor([[1.0, 1.0, 0.0]]))
    assert part()._weight(given) == 1.0
    own = part(Way(world=Two(0, 2)))
    assert own._weight(given) == 0.5
    own = part(Way(world=Two(0, 2), count=lambda targets: targets.sum()))
    assert float(own._weight(given)) == pytest.approx(2 / 4)  # of twice as many
    own.size = 1  # of one row the first of two has none
    assert float(own._weight(given)) == 0.0
    assert part(Way(count=lambda targets: targets.sum()))._weight(given) == 1.0


def test_a_run_that_goes_on_after_a_whole_epoch_can_capture_its_step(monkeypatch):
    """It stands behind the epoch's last batch: on CUDA the batch there was an index out of bounds."""
    stood = []

    class Recorder:
        def __init__(self, device):
            pass

        def record(self, step, state, rehearse):
            stood.append(own.members.positions.tolist())
            before = {name: t.clone() for name, t in state().items()}
            step()
            for name, tensor in state().items():
                tensor.copy_(before[name])

    monkeypatch.setattr(parts, "Recorder", Recorder)
    model, recipe = nn.Linear(3, 1), Recipe(batch_size=4, epochs=2, learning_rate=0.1)
    samples = Samples(torch.randn(10, 3), torch.randn(10, 1))
    own = part_of_one(model, loss, samples, recipe)
    own.epoch()
    kept = {name: t.clone() for name, t in own.state().items()}
    assert kept["positions"].tolist() == [own.epoch_steps] == [3]
    own = part_of_one(nn.Linear(3, 1), loss, samples, recipe, way=Way(capture=True))
    own.load(kept, [1])
    own.warm_up()
    assert stood == [[0], [0]]
    assert all(torch.equal(t, kept[name]) for name, t in own.state().items())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_run_that_goes_on_after_a_whole_epoch_ends_as_if_it_had_not_stopped():
    cuda, recipe = torch.device("cuda"), Recipe(batch_size=4, epochs=2, learning_rate=0.1)
    torch.manual_seed(0)
    samples = Samples(torch.randn(10, 3, device=cuda), torch.randn(10, 1, device=cuda))
    whole = part_of_one(nn.Linear(3, 1).to(cuda), loss, samples, recipe)
    whole.warm_up()
    whole.epoch()
    kept = {name: t.clone() for name, t in whole.state().items()}
    own = part_of_one(nn.Linear(3, 1).to(cuda), loss, samples, recipe)
    own.load(kept, [1])
    own.warm_up()
    whole.epoch()
    own.epoch()
    torch.cuda.synchronize()
    assert all(torch.equal(t, whole.state()[name]) for name, t in own.state().items())


def test_captured_steps_are_made_once_for_each_size_and_variant(monkeypatch):
    recorders, made, replayed, adapted = [], [], [], []

    class Graph:
        def __init__(self, size):
            self.size = size

        def replay(self):
            replayed.append(self.size)

    class Recorder:
        def __init__(self, device):
            recorders.append(device.type)

        def record(self, step, state, rehearse):
            same = step == own.step, state == own.state, rehearse
            made.append((own.size, torch.backends.cudnn.benchmark, *same))
            return Graph(own.size)

    monkeypatch.setattr(parts, "Recorder", Recorder)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    own = part(Way(capture=True, rehearse=True))
    monkeypatch.setattr(own.gradients, "adapt", lambda world: adapted.append((own.feed.said[-1][1], world)))
    own.warm_up()
    assert recorders == ["cpu"]  # one for all its graphs
    # the last batch of an epoch is not worth trials
    assert made == [(4, True, True, True, True), (2, False, True, True, True)]
    own.advance(0, 200)
    assert len(made) == 2
    assert replayed == [4] * 199 + [2]
    assert adapted == [(p, ALONE) for p in range(0, 200, ADAPT_EVERY)]
    own.adaptive = False
    own.advance(0, 1)
    assert len(adapted) == -(-200 // ADAPT_EVERY)
    assert own.capture is True
    plain = part()
    plain.warm_up()
    assert len(made) == 2


def test_only_one_model_is_sharded():
    with pytest.raises(KoopsimError, match=r"^2 models train here, each small: --shard is for a single large one"):
        part(Way(shard=True), 2)
    with pytest.raises(KoopsimError, match="--shard needs several processes"):
        part(Way(shard=True))


def test_a_row_is_given_to_a_new_model_and_a_state_goes_on():
    own = part(models=2)
    own.seeds, own.ages = [3, 4], [5, 6]
    new = nn.Linear(2, 1)
    own.feed.put = lambda row, model: own.feed.said.append((row, model))
    own.put(1, new, torch.ones(400, 4), 9)
    assert (own.seeds, own.ages, own.feed.said) == ([3, 9], [5, 0], [(1, new)])
    own.gradients.diagnostics["iterations"] = torch.ones(1)
    state = {name: t.clone() for name, t in own.state().items()}
    assert "diagnostics.iterations" in state
    other = part(models=2)
    other.load(state, (1, 2))
    assert other.ages == [1, 2]
    assert other.feed.said == [("begin", [0, 0], [1, 2])]
    assert torch.equal(other.members.flat, own.members.flat)
    assert other.gradients.diagnostics["iterations"].tolist() == [1]
    with pytest.raises(KoopsimError, match="What was saved is a state of another run"):
        part(models=2).load({k: t for k, t in state.items() if k != "mean"}, (1, 2))


def test_a_schedule_is_as_long_as_the_longest():
    recipe = Recipe(epochs=2, schedule="cosine")
    table = schedule_of(recipe, 3)
    torch.testing.assert_close(table.double(), torch.as_tensor(adam_table(recipe, 3)).double())
    longer = schedule_of(recipe, 3, 4)
    assert longer.shape[0] == 12
    assert torch.equal(longer[:6], table)
    assert torch.equal(longer[6:], table[-1:].expand(6, -1))
    assert torch.equal(schedule_of(recipe, 3, 1), table[:3])


def test_one_model_on_samples():
    x = torch.randn(10, 2)
    recipe = Recipe(epochs=1, batch_size=4, clip_norm=0.5)
    own = part_of_one(nn.Linear(2, 1), loss, Samples(x, x[:, :1]), recipe, 6)
    assert isinstance(own.feed, Resident)
    assert (own.seeds, own.members.rule, own.epoch_steps) == ([6], Rule.of(recipe), 3)
    assert part_of_one(nn.Linear(2, 1), loss, Samples(x, x), replace(recipe, batch_size=20)).epoch_steps == 1
    assert part_of_one(nn.Linear(2, 1), loss, Samples(x, x), recipe).seeds == [0]
