"""The kernel that brings a batch against the tensor operations, through Triton's interpreter or on CUDA."""

CHECK = """
import torch
from koopsim.config import Recipe
from koopsim.engine.feeds import Resident
from koopsim.engine.world import World
from koopsim.nn.kernels import batch as kernels
from koopsim.tasks.base import Samples

device = "cuda" if torch.cuda.is_available() else "cpu"
kernels.BLOCK = 16  # so that a sample goes round several times
cases = [  # members, samples, batch, what x and y are a sample
    (1, 23, 5, (40,), torch.uint8, (40,), torch.int64), (3, 7, 7, (2, 3), torch.float32, (), torch.int64),
    (2, 9, 1, (), torch.int64, (5, 4), torch.float64), (1, 1, 1, (17,), torch.bfloat16, (), torch.uint8),
]
for members, n, size, x_shape, x_kind, y_shape, y_kind in cases:
    torch.manual_seed(n)
    x = (100 * torch.rand(n, *x_shape, device=device)).to(x_kind)
    y = (100 * torch.rand(n, *y_shape, device=device)).to(y_kind)
    feed = Resident(Samples(x, y, lambda x, recipe, draws: x + 1), Recipe(batch_size=size), members)
    feed.begin_epoch(range(members), [0] * members)
    feed.laid = None
    assert kernels.copyable(x, y)
    for step in range(feed.epoch_steps):
        count = feed.size_at(step)
        positions = torch.full((members,), step, device=device)
        if step + 1 < feed.epoch_steps and members > 1:
            positions[0] = 0  # members stand where they stand
        feed._kernel_fits = lambda: False
        slow = feed.batch(positions, count)
        feed._kernel_fits = lambda: True
        for a, b in zip(feed.batch(positions, count), slow, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
        assert slow[0].shape == (members, count, *x_shape)

gaps = torch.zeros(6, 8, device=device)[:, ::2]
assert not kernels.copyable(gaps, y) and not kernels.copyable(x, gaps)
assert not kernels.copyable(gaps.bool().contiguous(), y), "of a kind that it does not know"

class Second:  # of two processes
    alone, rank, size = False, 1, 2
    rows, weight = World.rows, World.weight

x = torch.arange(10, device=device)
feed = Resident(Samples(x, x + 100), Recipe(batch_size=5), 1)
feed.begin_epoch([3], [0])
feed.laid, feed.world = None, Second()
found = []
for fits in (True, False):
    feed._kernel_fits = lambda: fits
    found.append(feed.batch(torch.ones(1, dtype=torch.int64, device=device), 5))
assert found[0][0].shape == (1, 3) and all(torch.equal(a, b) for a, b in zip(*found))
"""


def test_a_batch_is_that_of_the_tensor_operations(in_triton):
    in_triton(CHECK)
