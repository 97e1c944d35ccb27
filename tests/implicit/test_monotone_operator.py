"""The operators of a monDEQ against dense matrices made of plain convolutions, and the theorem they rest on."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from dense_monotone import circular, dense, downwards, order
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.errors import KoopsimError
from koopsim.implicit import circular as circular_file
from koopsim.implicit import inverse
from koopsim.implicit.circular import Grid, gram, pair, stencil_of, transpose, widen
from koopsim.implicit.ends import inject, pooled
from koopsim.implicit.inverse import blocks, lu, reflected_resolvent
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.monotone_operator import SCALES, SMALLEST_SCALE
from koopsim.implicit.stored import StoredChain

F64 = torch.float64
MODELS = {
    "single": {"image": (2, 4, 4), "tiers": (3,)},
    "oblong": {"image": (1, 4, 3), "tiers": (2,)},
    "multi": {"image": (1, 8, 8), "tiers": (2, 3, 2)},
    "oblong multi": {"image": (1, 4, 6), "tiers": (2, 3)},
    "connected": {"image": (1, 4, 4), "tiers": (7,), "connected": True},
}


def model_of(kind: str, **options) -> MonDEQ:
    return MonDEQ(**MODELS[kind], **options).double()


def stir(model: MonDEQ, size: float, seed: int = 0) -> MonDEQ:
    """Parameters unlike those of initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def matrix(model: MonDEQ, linear) -> torch.Tensor:
    """The matrix of a map of states, in the dense order."""
    places = order(model)
    return linear(torch.eye(len(places), dtype=F64))[places][:, places]


def half_spectrum(z: torch.Tensor) -> torch.Tensor:
    """PyTorch's transform of (height, width, ...), the row frequencies that are kept: even ones first."""
    whole = torch.fft.fft2(z, dim=(0, 1))[: len(z) // 2 + 1]
    return torch.cat([whole[::2], whole[1::2]])


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 7), (1, 1), (2, 3)])
def test_the_transform_is_the_fourier_transform(height, width):
    grid, z = Grid(height, width), torch.randn(height, width, 3, 2, dtype=F64)
    got = grid.transform(z)
    want = half_spectrum(z).flatten(0, 1) / (height * width) ** 0.5
    torch.testing.assert_close(got, torch.cat([want.real, want.imag], dim=1))
    torch.testing.assert_close(grid.inverse(got), z)


@pytest.mark.parametrize("grid", [Grid(6, 4), Grid(5, 7), Grid(4, 4), Grid(34, 3), Grid(1, 1)], ids=str)
def test_one_product_is_both_halves_of_the_transform(grid):
    pixels = grid.rows * grid.columns
    z, x = torch.randn(grid.rows, grid.columns, 3, 2, dtype=F64), torch.randn(grid.frequencies, 6, 2, dtype=F64)
    want = grid.transform(z), grid.inverse(x)
    torch.testing.assert_close((z * want[1]).sum(), (grid.inverse_transposed(z) * x).sum())  # the transpose
    for paired in (False, True)[: 1 + grid.pairs]:
        halves, stored = 1 + paired, grid.stored_pixels(paired)
        assert stored - 8 < pixels // halves <= stored
        assert stored == 1 or stored % 8 == 0
        state = pair(z.flatten(0, 2)) if paired else z.flatten(0, 2)
        kept = F.pad(state.view(halves, -1, 3, 2), (0, 0, 0, 0, 0, stored - pixels // halves))
        torch.testing.assert_close(grid.stored_transform(kept), want[0])
        back = torch.full_like(kept, torch.nan)
        grid.stored_inverse(x, back)
        got = back[:, : pixels // halves].reshape(-1, 2)
        assert (back[:, pixels // halves :] == 0).all()
        torch.testing.assert_close((pair(got) if paired else got).view_as(z), want[1])


def test_pixels_enter_by_a_convolution():
    U, x = torch.nn.Conv2d(2, 5, 3, padding=1).double(), torch.randn(3, 2, 4, 6, dtype=F64, requires_grad=True)
    want = F.pad(U(x), (1, 1, 1, 1)).permute(2, 3, 1, 0)
    assert U.bias is not None
    got = inject(x.permute(2, 3, 1, 0), U.weight, U.bias)
    torch.testing.assert_close(got, want)
    g, inputs = torch.randn_like(want), (x, U.weight, U.bias)
    for a, b in zip(torch.autograd.grad(got, inputs, g), torch.autograd.grad(want, inputs, g), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("height", "width"), [(4, 9), (6, 8)])
def test_features_leave_by_average_pooling(height, width):
    z = torch.randn(height, width, 3, 2, dtype=F64, requires_grad=True)
    want = F.avg_pool2d(z.permute(3, 2, 0, 1), 4).permute(2, 3, 1, 0)
    got, g = pooled(z, 4), torch.randn_like(want)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, z, g)[0], torch.autograd.grad(want, z, g)[0])


def convolved(grid: Grid, stencil: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W) through a folded stencil and back, by way of its symbol."""
    state = grid.fold(z.permute(2, 3, 1, 0))
    return grid.inverse(grid.symbol(stencil) @ grid.transform(state))


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_symbol_is_its_convolution(phases, size):
    grid = Grid(6, 8, phases)
    kernel, z = torch.randn(4, 3, size, size, dtype=F64), torch.randn(2, 3, 6, 8, dtype=F64)
    stencil = stencil_of(kernel)
    state = grid.fold(z.permute(2, 3, 1, 0))
    torch.testing.assert_close(grid.unfold(state).permute(3, 2, 0, 1), z, rtol=0, atol=0)
    out = convolved(grid, grid.fold_stencil(stencil), z)
    torch.testing.assert_close(grid.unfold(out).permute(3, 2, 0, 1), circular(kernel)(z))
    if phases == 2:
        out = convolved(grid, grid.fold_stencil(stencil, strided=True), z)
        torch.testing.assert_close(out.permute(3, 2, 0, 1), downwards(kernel)(z)[:, :, 1:, 1:])


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("grid", [Grid(6, 8), Grid(6, 8, 2), Grid(3, 2)], ids=str)
def test_stencils_of_transposes_and_products_have_their_symbols(grid, size):
    stencil = grid.fold_stencil(torch.randn(size * size, 4, 3, dtype=F64))
    symbol = grid.symbol(stencil)
    torch.testing.assert_close(grid.symbol(transpose(stencil)), symbol.mT)
    torch.testing.assert_close(grid.symbol(gram(stencil)), symbol.mT @ symbol)
    torch.testing.assert_close(grid.symbol(widen(stencil, 7)), symbol)
    pixel = torch.zeros(grid.rows, grid.columns, stencil.shape[1], stencil.shape[2], dtype=F64)
    reach = (int(len(stencil) ** 0.5) - 1) // 2
    taps = stencil.unflatten(0, (2 * reach + 1, -1))
    for y in range(-reach, reach + 1):
        for x in range(-reach, reach + 1):
            pixel[-y % grid.rows, -x % grid.columns] += taps[y + reach, x + reach]
    torch.testing.assert_close(symbol, inverse.real_form(half_spectrum(pixel).flatten(0, 1)))


@pytest.mark.parametrize("monotonicity", [1.0, 0.3])
@pytest.mark.parametrize("kind", MODELS)
def test_chains_are_their_dense_matrices(kind, monotonicity):
    model, a = stir(model_of(kind, monotonicity=monotonicity), 0.5), 0.7
    dense_W, _ = dense(model)
    unit = torch.eye(len(dense_W), dtype=F64)
    with torch.no_grad():
        W = model.operator.linear()
        for chain, want in (
            (W, dense_W),
            (model.operator.relaxed(W, a), (1 - a) * unit + a * dense_W),
            (model.operator.reflected(W, a), 2 * torch.linalg.inv((1 + a) * unit - a * dense_W) - unit),
        ):
            torch.testing.assert_close(matrix(model, chain), want, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(matrix(model, chain.transposed), want.T, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_what_stands_in_for_w_z_has_its_gradients(kind):
    model = stir(model_of(kind, monotonicity=0.3), 0.5)
    z, u = torch.randn(2, model.inside.shape[0], 3, dtype=F64)
    q = torch.randn_like(z, requires_grad=True)
    W = model.operator.linear()
    inputs = (q, *model.operator.parameters())
    want = torch.autograd.grad(W(z) + q, inputs, u, retain_graph=True)
    for got, expected in zip(torch.autograd.grad(W.recorded(z, q), inputs, u), want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kind", MODELS)
def test_a_stored_chain_is_the_chain(kind):
    """Both ways, in float64; what a state does not have is zero in what is given, and is not read of what is found."""
    model = stir(model_of(kind), 0.5)
    with torch.no_grad():
        plain = model.operator.reflected(model.operator.linear(), 0.7)
    z = torch.randn(model.inside.shape[0], 3, dtype=F64)
    for paired in (False, True)[: 1 + (kind == "single")]:
        chain = StoredChain(plain.tiers, plain.matrices, paired)
        for transposed, want in ((False, plain(z)), (True, plain.transposed(z))):
            storage = chain.storage(transposed)
            assert storage.w
            assert storage.t
            w = storage.put(z, storage.w)
            foreign = torch.ones(len(w) // (1 + paired), dtype=torch.bool)
            foreign[storage.w.index] = False
            w[foreign.repeat(1 + paired)] = torch.nan  # the map's own to write
            t = (chain.transposed if transposed else chain)(w)
            torch.testing.assert_close(storage.get(t, storage.t, z), want)
            torch.testing.assert_close(storage.get(w, storage.w, z), z)
            for places in (storage.w, storage.t):
                assert places.in_order == places.index.equal(torch.arange(len(places.index), dtype=torch.int32))
            assert int(foreign.sum()) == sum(
                tier.channels * (tier.grid.height - 1) * (tier.grid.width - 1) for tier in model.tiers[1:]
            )


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    size=st.floats(0, 10),
    monotonicity=st.floats(0.01, 3),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from(SCALES),
)
def test_monotone_for_every_parameter(kind, size, monotonicity, seed, scale):
    """sym(I - W) >= m I, by the operator's own products; with equality nowhere exceeded by rounding."""
    model = stir(model_of(kind, monotonicity=monotonicity, scale=scale), size, seed)
    assert lowest_gap(model) >= monotonicity - 1e-12 * size_of(model)


def lowest_gap(model: MonDEQ) -> torch.Tensor:
    """The smallest eigenvalue of sym(I - W)."""
    with torch.no_grad():
        W = matrix(model, model.operator.linear())
    gap = torch.eye(len(W), dtype=F64) - W
    return torch.linalg.eigvalsh((gap + gap.T) / 2)[0]


def size_of(model: MonDEQ) -> torch.Tensor:
    return torch.linalg.matrix_norm(dense(model)[0])


# ------------------------------------------------------------ the published scale: g itself


@pytest.mark.parametrize("kind", ["single", "multi", "oblong multi"])
def test_both_scales_are_one_operator(kind):
    """To the bit at the start, where g = 1 = exp(0), and wherever g = exp(2 log_g)."""
    ours = model_of(kind)
    fresh = dict(model_of(kind, scale="free").operator.named_parameters())
    assert all((fresh[name] == 1).all() for name in ("g", "g_between") if name in fresh)
    free = with_scale_of(ours, kind)
    assert [p.numel() for p in free.parameters()] == [p.numel() for p in ours.parameters()]
    for got, want in zip(free.operator.linear().matrices, ours.operator.linear().matrices, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    stir(ours, 0.5)
    free = with_scale_of(ours, kind)
    for got, want in zip(free.operator.linear().matrices, ours.operator.linear().matrices, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def with_scale_of(ours: MonDEQ, kind: str) -> MonDEQ:
    """The same model with g = exp(2 log_g) for parameters."""
    state = {
        name.replace("log_g", "g"): (2 * value).exp() if "log_g" in name else value
        for name, value in ours.state_dict().items()
    }
    free = model_of(kind, scale="free")
    free.load_state_dict(state)
    return free


@pytest.mark.parametrize("g", [-2.0, -SMALLEST_SCALE, -1e-9, 0.0, 1e-9, SMALLEST_SCALE, 0.3])
def test_no_free_scale_is_refused_and_each_is_monotone(g):
    """What W is with g is what it is with max(|g|, SMALLEST_SCALE), and sym(I - W) >= m I."""
    model = model_of("multi", monotonicity=0.2, scale="free")
    with torch.no_grad():
        model.operator.g.copy_(torch.tensor([g, 1.0, -g], dtype=F64))
        model.operator.g_between.copy_(torch.tensor([0.4, g], dtype=F64))
        torch.testing.assert_close(matrix(model, model.operator.linear()), dense(model)[0], rtol=1e-9, atol=1e-11)
    assert lowest_gap(model) >= 0.2 - 1e-12
    sum(m.square().sum() for m in model.operator.linear().matrices).backward()
    for slopes in (model.operator.g.grad, model.operator.g_between.grad):
        assert slopes.isfinite().all()
    assert (model.operator.g.grad[0] != 0) == (abs(g) >= SMALLEST_SCALE)  # a negative one can come back


def test_a_free_scale_below_zero_has_the_gradient_of_its_size():
    model = model_of("multi", scale="free")
    slopes = []
    for sign in (1, -1):
        with torch.no_grad():
            model.operator.g.copy_(sign * torch.tensor([0.7, 1.3, 0.2]))
        model.zero_grad()
        sum(m.square().sum() for m in model.operator.linear().matrices).backward()
        slopes.append(model.operator.g.grad.clone())
    torch.testing.assert_close(slopes[1], -slopes[0])


def test_a_scale_that_is_none_is_named():
    with pytest.raises(KoopsimError, match=r"scale of A is 'log'; expected one of exp, free"):
        model_of("single", scale="log")


def test_scales_are_frobenius_norms():
    """Only g and h set the sizes of A and B: their kernels may be scaled at will."""
    model = model_of("multi")
    with torch.no_grad():
        model.operator.log_g.copy_(torch.tensor([0.1, -7.0, 0.3]))
        before = [m.clone() for m in model.operator.linear().matrices]
        for weights, factor in ((model.operator.A, 3.0), (model.operator.B, 0.2), (model.operator.K, 5.0)):
            for weight in weights:
                weight.mul_(factor)
        for got, want in zip(model.operator.linear().matrices, before, strict=True):
            torch.testing.assert_close(got, want)
        model.operator.h.zero_()
        model.operator.log_g_between.fill_(-40.0)
        tier = model.tiers[1]
        W = model.operator.linear().matrices[1].unflatten(2, (2, -1)).unflatten(1, (2, -1))
        A = W[:, :, : tier.depth, 0, tier.depth :] / -2  # of A^T
    # Parseval: the mean over all frequencies of |symbol|^2 is the norm of the kernel, four times for four phases.
    grid = tier.grid
    k = torch.arange(grid.rows // 2 + 1)
    k = torch.cat([k[::2], k[1::2]])
    twice = torch.where((k == 0) | (2 * k == grid.rows), 1.0, 2.0).double()
    power = A.square().sum((1, 2, 3)).view(-1, grid.columns).sum(1) @ twice / (grid.rows * grid.columns)
    torch.testing.assert_close(power / 4, torch.tensor(-14.0, dtype=F64).exp())


def monotone_matrices(count: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """W with Herm(I - W) >= 1 and a large skew part, of condition up to some hundreds."""
    M, R = torch.randn(count, n, n, dtype=dtype), torch.randn(count, n, n, dtype=dtype)
    return -M.mH @ M / 2 - 2 * (R - R.mH)


@pytest.mark.parametrize("invert", [blocks, lu])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64])
@pytest.mark.parametrize("n", [1, 8, 21, 40])
def test_inverses(invert, dtype, n):
    M = torch.eye(n, dtype=dtype) - monotone_matrices(5, n, dtype)
    loose = dtype == torch.complex64
    want = torch.linalg.inv(M.to(torch.complex128))
    torch.testing.assert_close(invert(M).to(torch.complex128), want, rtol=0, atol=1e-4 if loose else 1e-11)


@pytest.mark.parametrize("method", ["blocks", "lu", None])
def test_reflected_resolvents(method):
    """R = 2 V - I turns nothing longer: |R| <= 1, which is why Peaceman-Rachford converges."""
    W, a = monotone_matrices(3, 11, torch.complex128), 0.3
    unit = torch.eye(11, dtype=torch.complex128)
    R = reflected_resolvent(torch.stack([W.real, W.imag], dim=1), a, method)
    torch.testing.assert_close(R, inverse.real_form(2 * torch.linalg.inv(unit + a * (unit - W)) - unit))
    assert torch.linalg.matrix_norm(R, ord=2).max() <= 1


def test_what_a_capture_cannot_hold_is_not_chosen(monkeypatch):
    W = torch.zeros(1, 2, 3, 3)
    assert inverse._fitting(W) == "lu"
    assert inverse._fitting(W.expand(15, 2, 3, 3)) == "lu"
    assert inverse._fitting(W.expand(16, 2, 3, 3)) == "blocks", "many, on a CPU"
    assert inverse._fitting(SimpleNamespace(is_cuda=True, dtype=F64, shape=(16, 2, 3, 3))) == "lu"
    monkeypatch.setattr(inverse, "capturing", lambda: True)
    assert inverse._fitting(W) == "blocks"
    with pytest.raises(KoopsimError, match="kernel"):
        reflected_resolvent(W, 1.0, "kernal")


def test_tables_serve_training_whoever_asked_first_and_their_rows_are_aligned():
    tables = {
        circular_file._fourier: (5, 3), circular_file._whole: (6, 4, True), circular_file._waves: (5, 3, 3),
        circular_file._places: (2, 3), circular_file._differences: (3,),
    }  # fmt: skip
    for make, sizes in tables.items():
        make.cache_clear()
        with torch.inference_mode():
            found = make(*sizes, torch.float32, torch.device("cpu"))
        for table in found if isinstance(found, tuple) else (found,):
            assert not table.is_inference()
            if make in (circular_file._fourier, circular_file._waves):
                assert table.stride(-2) == -(-table.shape[-1] // 8) * 8
    assert [Grid(*sizes).stored_pixels(False) for sizes in ((1, 1), (2, 1), (4, 2), (3, 3))] == [1, 8, 8, 16]
    assert [Grid(rows, 3).pairs for rows in range(1, 11)] == [rows in (2, 6, 10) for rows in range(1, 11)]


def test_patches_are_multiplied_in_multiples_of_8(monkeypatch):
    widths, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: widths.append(a.shape[2]) or bmm(a, b))
    for channels in (1, 2, 3, 7):
        inject(torch.zeros(4, 4, channels, 2), torch.zeros(5, channels, 3, 3), torch.zeros(5))
    assert widths == [16, 24, 32, 64]  # 9 C + 1, rounded up


def test_an_inverse_is_found_by_the_method_that_was_asked_for(monkeypatch):
    W, used = torch.zeros(2, 2, 3, 3), []
    for name in ("lu", "blocks"):
        own = getattr(inverse, name)
        monkeypatch.setattr(inverse, name, lambda M, name=name, own=own: used.append(name) or own(M))
    for method in ("lu", "blocks"):
        assert reflected_resolvent(W, 0.5, method, torch.float64).dtype == F64
        assert reflected_resolvent(W, 0.5, method).dtype == torch.float32
    assert used == ["lu", "lu", "blocks", "blocks"]
    kernels = pytest.importorskip("koopsim.implicit.kernels.inverse")
    monkeypatch.setattr(kernels, "reflected_resolvent", lambda W, a, dtype: (W, a, dtype))
    assert reflected_resolvent(W, 0.5, "kernel") == (W, 0.5, torch.float32)
    assert reflected_resolvent(W, 0.5, "kernel", F64) == (W, 0.5, F64)


def test_a_kernel_is_for_single_precision_on_cuda_and_up_to_its_largest_size(monkeypatch):
    def fitting(n, dtype=torch.float32, cuda=True, triton=True):
        monkeypatch.setattr(inverse, "find_spec", lambda name: triton or None)
        return inverse._fitting(SimpleNamespace(is_cuda=cuda, dtype=dtype, shape=(5, 2, n, n)))

    assert fitting(128) == "kernel"
    assert {fitting(129), fitting(8, F64), fitting(8, cuda=False), fitting(8, triton=False)} == {"lu"}


def test_blocks_are_halved_down_to_leaves_of_eight(monkeypatch):
    sizes, own = [], inverse._eliminated
    monkeypatch.setattr(inverse, "_eliminated", lambda M: sizes.append(M.shape[2]) or own(M))
    for n, leaves in ((8, [8]), (9, [4, 5]), (16, [8, 8]), (17, [8, 4, 5])):
        sizes.clear()
        blocks(torch.eye(n).expand(2, n, n))
        assert sizes == leaves
    assert lu(torch.zeros(1, 2, 2)).shape == (1, 2, 2)  # never checked: no error


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_steps_are_rounded_to_what_is_asked_for(kind):
    operator = model_of(kind).operator
    with torch.no_grad():
        W = operator.linear()
        for make in (operator.relaxed, operator.reflected):
            assert {m.dtype for m in make(W, 0.5).matrices} == {F64}
            assert {m.dtype for m in make(W, 0.5, torch.float32).matrices} == {torch.float32}
