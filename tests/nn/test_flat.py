import torch
from hypothesis import given
from hypothesis import strategies as st

from koopsim.nn.flat import common_vector, joined


def test_views_of_one_vector_are_found_in_it_and_not_copied():
    flat = torch.arange(30.0)
    views = [flat[2:8].view(2, 3), flat[20:21], flat[8:18].view(5, 2)]
    vector, offsets = common_vector(views)
    assert offsets == (2, 20, 8)
    assert vector.data_ptr() == flat.data_ptr()
    assert torch.equal(vector, flat)


def test_strangers_are_copied_side_by_side():
    flat = torch.arange(30.0)
    for tensors in ([flat[:4], torch.ones(3)], [flat[:4], flat[:8].view(2, 4).t()], [flat[4:5], flat[::2]]):
        vector, offsets = common_vector(tensors)
        for t, start in zip(tensors, offsets, strict=True):
            assert torch.equal(vector[start : start + t.numel()], t.reshape(-1))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 11), st.integers(0, 5), st.sampled_from([1, 2]))))
def test_joining_is_cat(cuts):
    """Cuts of any vectors in any order, neighbours or not, overlapping or empty."""
    vectors = [torch.randn(24) for _ in range(3)]
    pieces = [vectors[v][start : start + size * step : step] for v, start, size, step in cuts] + [torch.ones(1)]
    assert torch.equal(joined(pieces), torch.cat(pieces))


def test_neighbours_become_one_piece(monkeypatch):
    seen = []
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda pieces: seen.append(len(pieces)) or cat(pieces))
    flat = torch.randn(20)
    pieces = [flat[:6].view(2, 3), flat[6:7], flat[7:12], flat[13:15], torch.ones(2)]
    assert torch.equal(joined(pieces), cat([p.flatten() for p in pieces]))
    assert seen == [3]
