"""Published monDEQ checkpoints: the same logits as the published equations, read off images by plain convolutions."""

import pytest
import torch
import torch.nn.functional as F

from koopsim.errors import KoopsimError
from koopsim.implicit import MonDEQ

B, SIDE = 3, 8  # samples, and pixels of an image


def state_of(kind):
    """A state dict in the published layout, as its names and shapes are."""
    torch.manual_seed(5)
    new = lambda *shape: 0.3 * torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    inner = "mon.linear_module."
    if kind == "connected":
        state = {"U.weight": new(10, SIDE**2), "U.bias": new(10), "A.weight": new(10, 10), "B.weight": new(10, 10)}
        features = 10
    elif kind == "single":
        state = {
            "U.weight": new(4, 1, 3, 3),
            "U.bias": new(4),
            "A.weight": new(4, 4, 3, 3),
            "B.weight": new(4, 4, 3, 3),
        }
        state |= {"g": torch.tensor(0.7).double(), "h": torch.tensor(-1.3).double()}
        features = 4 * ((SIDE + 2) // 4) ** 2
    else:
        widths = (4, 6, 5)
        state = {"U.weight": new(4, 1, 3, 3), "U.bias": new(4)}
        for i, c in enumerate(widths):
            state |= {f"A0.{i}.weight": new(c, c, 3, 3), f"B0.{i}.weight": new(c, c, 3, 3)}
            state |= {f"g.{i}": torch.tensor(0.5 + 0.3 * i).double(), f"h.{i}": torch.tensor(1.2 - i).double()}
        for i in range(2):
            state[f"A_n0.{i}.weight"] = new(widths[i + 1], widths[i], 3, 3)
            state[f"gn.{i}"] = torch.tensor(1.5 - 0.4 * i).double()
        features = 5 * (SIDE // 4 + 2) ** 2
    state = {inner + name: value for name, value in state.items()}
    return state | {"Wout.weight": new(7, features), "Wout.bias": new(7)}


def matrix(linear, *shape):
    """The matrix of a linear map of images, column by column."""
    size = torch.Size(shape).numel()
    return linear(torch.eye(size, dtype=torch.float64).view(size, *shape)).reshape(size, -1).T


def conv(kernel, stride=1):
    return lambda z: F.conv2d(F.pad(z, (1, 1, 1, 1), mode="circular"), kernel, stride=stride)


def logits(state, kind, x, m):
    """z = relu(W z + U x + b) solved densely by a damped iteration, borders held at zero: the published equations."""
    get = lambda name: state["mon.linear_module." + name]  # noqa: E731
    unit = lambda w: w / w.square().sum().sqrt()  # noqa: E731
    if kind == "connected":
        A, Bm, sizes, inside = get("A.weight"), get("B.weight"), [10], torch.ones(10).double()
        W = (1 - m) * torch.eye(10).double() - A.T @ A + Bm - Bm.T
        q = x.flatten(1) @ get("U.weight").T + get("U.bias")
        shapes = [(10,)]
    else:
        widths = [4] if kind == "single" else [4, 6, 5]
        shapes = [(c, SIDE // 2**i + 2, SIDE // 2**i + 2) for i, c in enumerate(widths)]
        sizes = [torch.Size(s).numel() for s in shapes]
        names = [("A.weight", "B.weight", "g", "h")] if kind == "single" else [
            (f"A0.{i}.weight", f"B0.{i}.weight", f"g.{i}", f"h.{i}") for i in range(3)]  # fmt: skip
        A = torch.zeros(sum(sizes), sum(sizes)).double()
        skew, start = torch.zeros_like(A), 0
        blocks = []
        for (a, b, g, h), shape in zip(names, shapes, strict=True):
            end = start + torch.Size(shape).numel()
            A[start:end, start:end] = matrix(conv(get(g).sqrt() * unit(get(a))), *shape)
            M = matrix(conv(get(h) * unit(get(b))), *shape)
            skew[start:end, start:end] = M - M.T
            blocks.append(slice(start, end))
            start = end
        for i in range(len(widths) - 1):
            K = get(f"gn.{i}").sqrt() * unit(get(f"A_n0.{i}.weight"))
            A[blocks[i + 1], blocks[i]] = matrix(lambda z, K=K: F.pad(conv(K, 2)(z), (0, 1, 0, 1)), *shapes[i])
        gram = A.T @ A
        for i, above in enumerate(blocks):
            for j, below in enumerate(blocks):
                if j > i:  # what A^T A has above the diagonal is moved below it
                    gram[below, above] *= 2
                    gram[above, below] = 0
        W = (1 - m) * torch.eye(len(A)).double() - gram + skew
        inside = torch.cat(
            [F.pad(torch.ones(s[0], s[1] - 2, s[2] - 2), (1, 1, 1, 1)).flatten() for s in shapes]
        ).double()
        first = F.conv2d(F.pad(x, (2, 2, 2, 2)), get("U.weight"), get("U.bias")).flatten(1)
        q = F.pad(first, (0, sum(sizes[1:])))
    step = 0.9 * m / torch.linalg.matrix_norm(torch.eye(len(W)).double() - W, ord=2) ** 2
    z = torch.zeros_like(q)
    for _ in range(40_000):
        before, z = z, torch.relu((1 - step) * z + step * (z @ W.T + q)) * inside
        if (z - before).abs().max() < 1e-15:
            break
    last = z[:, -sizes[-1] :].view(-1, *shapes[-1])
    if kind == "single":
        last = F.avg_pool2d(last, 4)
    return last.flatten(1) @ state["Wout.weight"].T + state["Wout.bias"]


@pytest.mark.parametrize("kind", ["connected", "single", "multi"])
def test_a_published_checkpoint_gives_the_published_logits(kind):
    state, x = state_of(kind), torch.randn(B, 1, SIDE, SIDE, dtype=torch.float64)
    model = MonDEQ.from_published(state, (1, SIDE, SIDE), monotonicity=0.8).eval()
    model.tol, model.max_steps = 1e-13, 20_000
    with torch.no_grad():
        got = model(x)
    want = logits(state, kind, x, 0.8)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    assert (got - model(x.flip(2))).abs().max() > 1e-3  # an image and its mirror image are not the same


def test_a_parallel_model_and_a_default_strength():
    state = {f"module.{name}": value for name, value in state_of("single").items()}
    model = MonDEQ.from_published(state, (1, SIDE, SIDE))
    assert model.operator.monotonicity == 0.1
    assert model.readout.weight.dtype == torch.float64
    torch.testing.assert_close((2 * model.operator.log_g).exp(), torch.tensor([0.7]).double())
    assert MonDEQ.from_published(state_of("multi"), (1, SIDE, SIDE)).operator.monotonicity == 1.0


def test_the_images_of_a_mirrored_model_are_the_right_way_round():
    state, x = state_of("multi"), torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64)
    x[0, 0, 0, 0] = 9.0
    model = MonDEQ.from_published(state, (1, SIDE, SIDE)).eval()
    with torch.no_grad():
        lit, dark = (model.images(model.solve(image)[0])[0][0] for image in (x, 0 * x))
    change = (lit - dark).abs().sum(0)
    assert change[:4, :4].sum() > 10 * change[-4:, -4:].sum()


def test_what_is_no_published_checkpoint_is_named():
    state = state_of("multi")
    with pytest.raises(KoopsimError, match=r"has no 'U.weight'.* mon.linear_module"):
        MonDEQ.from_published({"weight": torch.zeros(3)}, (1, 8, 8))
    with pytest.raises(KoopsimError, match=r"readout.weight is .* Give the size of the images"):
        MonDEQ.from_published(state, (1, 16, 16))
    for wrong in (-0.5, 0.0):
        state["mon.linear_module.g.1"] = torch.tensor(wrong).double()
        with pytest.raises(KoopsimError, match="expected positive scales"):
            MonDEQ.from_published(state, (1, 8, 8))
