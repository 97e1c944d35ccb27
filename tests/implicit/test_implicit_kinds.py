"""What the house asks of models with a solver: settings arrive where they act, sizes, names, smaller runs."""

import sys
from types import SimpleNamespace

import pytest
import torch
from kept_numbers import same
from torch import nn
from torch.nn.utils import parametrize

from koopsim.config import DEQConfig, MonDEQConfig, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit import (
    DEQ,
    MultiscaleDEQ,
    TransformerDEQ,
    UniversalTransformerCell,
    VariationalDropout,
    normalise,
    transformer,
)
from koopsim.implicit.models import MonDEQKind, deq_maker
from koopsim.implicit.multiscale import LARGE, MultiscaleConfig, MultiscaleKind
from koopsim.implicit.penalties import correction_loss, jacobian_penalty, spectral_radius
from koopsim.implicit.rows import RowCell, RowDEQConfig, RowMonDEQConfig
from koopsim.implicit.sequence import SequenceDEQ, SequenceDEQConfig
from koopsim.implicit.transformer import INIT_STD, _position_table
from koopsim.kinds import SequenceShape, model_kind
from koopsim.models import build
from koopsim.presets import PRESETS

F64 = torch.float64


def tight(cell):
    return DEQ(cell, max_steps=60, tol=1e-9)


# ------------------------------------------------------------ a DEQ of a configuration


def test_a_solver_that_has_a_memory_is_told_how_much():
    make = deq_maker(SolverConfig("broyden", 7, 1e-2), SolverConfig("picard", 9, 1e-4), "neumann", memory=3)
    deq = make(lambda z, x: z)
    assert deq.solver.keywords == {"memory": 3}
    assert (deq.max_steps, deq.tol, deq.gradient) == (7, 1e-2, "neumann")
    assert (deq.backward.solver, deq.backward.max_steps, deq.backward.tol) == ("picard", 9, 1e-4)
    deq = deq_maker(SolverConfig("broyden", 7, 1e-2))(lambda z, x: z)
    assert (deq.solver, deq.backward.solver, deq.limits) == ("broyden", "broyden", (7, 7))


def test_a_mondeq_is_built_as_configured():
    config = MonDEQConfig((1, 8, 4), (2, 3), outputs=5, splitting="forward-backward", alpha=0.25, tune_alpha=False,
                          max_steps=17, tolerance=1e-4, monotonicity=0.7, mirrored=True,
                          scale="free")  # fmt: skip
    model = build(config)
    assert (model.splitting, model.first_alpha, model.tune, model.max_steps, model.tol) == (
        "forward-backward", 0.25, False, 17, 1e-4)  # fmt: skip
    assert (model.operator.monotonicity, model.mirrored, model.captured_steps) == (0.7, True, (16, 16))
    assert (model.operator.scale, build(MonDEQConfig((1, 8, 4), (2,))).operator.scale) == ("free", "exp")
    fitted = MonDEQKind().for_images(config, (3, 16, 16), 7)
    assert (fitted.image, fitted.outputs, fitted.tiers) == ((3, 16, 16), 7, (2, 3))


KINDS = {
    "deq": DEQConfig(),
    "single": MonDEQConfig((1, 8, 8), (4,)),
    "multi": MonDEQConfig((1, 8, 8), (4, 4)),
    "connected": MonDEQConfig((1, 8, 8), (4,), connected=True),
    "mdeq": MultiscaleConfig(),
    "large": MultiscaleConfig(widths=LARGE),
    "almost": MultiscaleConfig(widths=(64, 96, 156)),
    "rows": RowDEQConfig(),
    "monotone rows": RowMonDEQConfig(),
    "sequences": SequenceDEQConfig(),
}


@pytest.mark.parametrize("name", KINDS)
def test_numbers_of_names_and_looks(name):
    kind, config = model_kind(KINDS[name]), KINDS[name]
    same(f"implicit kind/{name}", [kind.slug(config), kind.title(config), kind.look(config), kind.look(config, True)])


def _told(recipe):
    return [recipe.batch_size, recipe.epochs, recipe.learning_rate, recipe.warm_up]


def test_numbers_of_smaller_runs():
    for preset in ("copy/deq", "cifar10/mdeq"):
        run = PRESETS[preset].run
        small = model_kind(run.model).smoke(run)
        same(f"implicit smoke/{preset}", [small.model, _told(small.recipe)])
    run = PRESETS["copy/deq"].run
    for config in (SequenceDEQConfig(), RowDEQConfig()):
        smaller = model_kind(config).smoke(type(run)(config, run.task, run.recipe))
        same(f"implicit smoke/{type(config).__name__}", [smaller.model, _told(smaller.recipe)])
    same("implicit sizes of rows", model_kind(RowDEQConfig()).parameters(RowDEQConfig()))


def test_sizes_at_their_bounds():
    RowDEQConfig(1, 1, 1)
    RowMonDEQConfig(1, 1, 1, max_steps=1)
    SequenceDEQConfig(1, 1, 2, 1, 0, 1)
    UniversalTransformerCell(1, 1, 2, 1)
    for make in (
        lambda: RowMonDEQConfig(monotonicity=0.0), lambda: RowMonDEQConfig(tolerance=0.0),
        lambda: RowMonDEQConfig(max_steps=0), lambda: RowDEQConfig(inputs=0), lambda: RowMonDEQConfig(outputs=0),
        lambda: SequenceDEQConfig(heads=0), lambda: SequenceDEQConfig(inputs=-1), lambda: SequenceDEQConfig(outputs=0),
        lambda: SequenceDEQConfig(model_dim=3), lambda: SequenceDEQConfig(inner_dim=0),
    ):  # fmt: skip
        with pytest.raises(KoopsimError):
            make()
    with pytest.raises(ValueError, match="positive sizes"):
        UniversalTransformerCell(head_dim=0)


# ------------------------------------------------------------ sequences


@pytest.mark.parametrize("inputs", [0, 1, 2])
def test_a_sequence_deq_is_its_equations(inputs):
    """u is what its DEQ is given, y = R z + r what is read off its answer; here the answer is u's first entries."""
    model = SequenceDEQ(SequenceDEQConfig(2, 3, 4, 5, inputs, 6)).double()
    model.deq.forward = lambda u, z0=None: (u[:, :, :4], (u, z0))
    x = torch.randint(256, (2, 7)) if inputs == 0 else torch.randn(2, 7, *[2] * (inputs == 2))
    E = model.embedding.weight
    embedded = E[x] if inputs == 0 else x.double().view(2, 7, -1) @ E.T + model.embedding.bias
    want = embedded @ model.injection.weight.T + model.injection.bias
    z, (u, z0) = model.solve(x, "begin here")
    assert z0 == "begin here"
    torch.testing.assert_close(u, want)
    torch.testing.assert_close(model(x), z @ model.readout.weight.T + model.readout.bias)


def test_a_sequence_deq_begins_like_that_of_copy_memory():
    model = SequenceDEQ(SequenceDEQConfig(8, 8, 64, 8, 0))
    assert 0.95 < model.embedding.weight.std() / (INIT_STD * 8) < 1.05
    assert 0.95 < model.injection.weight.std() / INIT_STD < 1.05
    assert not model.injection.bias.any()
    fitted = model_kind(SequenceDEQConfig()).for_sequences(SequenceDEQConfig(), SequenceShape(3, 50), 4)
    assert (fitted.inputs, fitted.outputs) == (3, 4)


# ------------------------------------------------------------ the cell of copy memory


@pytest.mark.parametrize(("sizes", "want"), [((8, 5, 40, 40), (8, 48, 8)), ((2, 3, 10, 7), (2, 16, 8)),
                                             ((3, 8, 16, 5), (3, 24, 8)), ((1, 9, 24, 5), (1, 40, 16))])  # fmt: skip
def test_queries_keys_and_values_are_padded_to_the_next_multiple_of_8(sizes, want):
    cell = UniversalTransformerCell(*sizes)
    assert cell.prepare(torch.zeros(1, 3, 3 * sizes[0] * sizes[1])).sizes == want


def test_tables_of_positions_have_the_next_power_of_two(monkeypatch):
    made = []
    monkeypatch.setattr("koopsim.implicit.transformer._position_table",
                        lambda *given: made.append(given[0]) or _position_table.__wrapped__(*given))  # fmt: skip
    cell = UniversalTransformerCell(1, 2, 4, 4)
    for T in (1, 2, 3, 17, 32, 33):
        cell.prepare(torch.zeros(1, T, 6))
    assert made == [1, 2, 4, 32, 32, 64]


def test_weights_are_rounded_once_under_autocast_where_it_would_round_them():
    for dtype, autocast, want in ((torch.float32, True, torch.bfloat16), (F64, True, F64),
                                  (torch.float32, False, torch.float32)):  # fmt: skip
        cell = UniversalTransformerCell(1, 2, 4, 4).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            f = cell.prepare(torch.zeros(1, 3, 6, dtype=dtype))
        assert {w.dtype for w in (*f.weights, f.constant)} == {want}


def test_attention_is_a_kernels_where_it_is_usable_and_fits(monkeypatch):
    kernels = pytest.importorskip("koopsim.implicit.kernels.attention")
    q, k, v = torch.randn(3, 1, 4, 2, 8).unbind()
    plain = transformer._attended(q, k, v, 0.5)
    monkeypatch.setattr(kernels, "attention", lambda q, k, v, scale, block, active: ((scale, block, active, v), None))
    for usable, vmapped, fits in ((u, m, f) for u in (True, False) for m in (True, False) for f in (True, False)):
        monkeypatch.setattr(transformer, "usable", lambda *given, usable=usable: usable)
        monkeypatch.setattr(transformer, "vmapped", lambda q, vmapped=vmapped: vmapped)
        monkeypatch.setattr(kernels, "fits", lambda q, v, fits=fits: fits)
        found = transformer._attended(q, k, v, 0.5)
        if usable and fits and not vmapped:
            assert found == (0.5, transformer.BLOCK, None, v)
            assert transformer._attended(q, k, v, 0.5, k)[2] is k  # who is left out is handed on
        else:
            torch.testing.assert_close(found, plain)


# ------------------------------------------------------------ resolutions


@pytest.mark.parametrize(
    ("image", "widths", "pool", "features"),
    [((1, 8, 8), (4, 8), 1, 4 * 4 * 8), ((1, 32, 48), (4,), 8, 4 * 6 * 4), ((1, 4, 4), (4, 8), 1, 2 * 2 * 8),
     ((1, 48, 32), (4, 4), 4, 6 * 4 * 4)],
)  # fmt: skip
def test_the_answer_is_read_off_four_by_four_places(image, widths, pool, features):
    model = MultiscaleDEQ(image, widths)
    assert (model.pool, model.readout.in_features) == (pool, features)


def test_images_lose_the_resolutions_they_cannot_be_halved_to():
    kind, config = MultiscaleKind(), MultiscaleConfig()
    for side, other, kept in ((32, 32, 3), (28, 30, 2), (30, 28, 2), (7, 8, 1), (8, 7, 1), (4, 4, 3)):
        assert kind.for_images(config, (1, side, other), 2).widths == config.widths[:kept]
    for image in ((1, 30, 32), (1, 32, 30)):
        with pytest.raises(KoopsimError, match="multiples of 4"):
            MultiscaleDEQ(image)
    with pytest.raises(KoopsimError, match="Build the model"):
        MultiscaleDEQ((1, 8, 8), (4,))(torch.zeros(8, 8))


def test_numbers_of_three_resolutions():
    torch.manual_seed(0)
    model, x = MultiscaleDEQ((2, 8, 16), (4, 8, 12), 3, deq=tight), torch.randn(2, 2, 8, 16)
    sizes = [p.detach().norm() for name, p in model.named_parameters() if "bias" not in name]
    same("three resolutions/init", torch.stack(sizes), rel=1e-4)
    model = model.double()
    with torch.no_grad():
        z, info = model.solve(x)
    same("three resolutions", [model.read(z), *z], rel=1e-4, near=1e-6)
    assert info.converged.all()


# ------------------------------------------------------------ rows


def test_weights_of_rows_begin_between_plus_and_minus_one_over_the_root_of_their_number():
    W = RowCell(3, 400).W.detach()
    assert -0.05 <= float(W.min()) < -0.0499
    assert 0.0499 < float(W.max()) <= 0.05


def test_models_ask_the_bridge_where_they_stand(monkeypatch):
    monkeypatch.setitem(sys.modules, "koopsim.bridge.health", SimpleNamespace(health=lambda *given: given))
    model, x = TransformerDEQ(heads=1, head_dim=2, model_dim=4, inner_dim=4), torch.zeros(2, 5)
    assert model.health(x) == (model, x)
    scales, x = MultiscaleDEQ((1, 8, 8), (4, 4), 2), torch.randn(2, 1, 8, 8)
    deq, *injected = scales.health(x)
    assert deq is scales.deq
    torch.testing.assert_close(tuple(injected), scales.injected(x))


# ------------------------------------------------------------ penalties and stabilisers


def test_estimates_of_scaled_identities_are_exact():
    torch.manual_seed(0)
    v = torch.randn(1, 1, dtype=F64)
    torch.manual_seed(0)
    torch.testing.assert_close(jacobian_penalty(lambda z: 3 * z, torch.zeros(1, 1, dtype=F64)), 9 * v.square().sum())
    for z in (torch.zeros(3), torch.zeros(3, 4), torch.zeros(3, 2, 2)):
        for steps in (2, 3):
            torch.testing.assert_close(spectral_radius(lambda z: 0.7 * z, z, steps), torch.full((3,), 0.7))
    w = torch.ones(3, requires_grad=True)
    assert jacobian_penalty(lambda z: w.expand(2, 3), torch.zeros(2, 3)) == 0  # of weights alone


def test_penalties_refuse_what_makes_no_sense():
    z, loss = torch.zeros(2, 3), lambda state, target: state.sum()
    with pytest.raises(KoopsimError, match="samples=0"):
        jacobian_penalty(lambda z: z, z, 0)
    with pytest.raises(KoopsimError, match="steps=1"):
        spectral_radius(lambda z: z, z, 1)
    for weight in (0.0, 1.5):
        with pytest.raises(KoopsimError, match="weight="):
            correction_loss(loss, [z], None, weight)
    assert correction_loss(loss, [z + 1, z + 1], None, 1.0) == 12


def test_a_dropout_of_nothing_and_one_at_rest_hand_on_what_they_are_given():
    x = torch.ones(2, 3)
    assert VariationalDropout(0.0)(x) is x
    assert VariationalDropout(0.5).eval()(x) is x
    assert "p=0.5, shared=(1,)" in repr(VariationalDropout(0.5, (1,)))


def test_a_layer_that_is_skipped_is_left_as_it_is():
    cell = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    normalise(cell, "spectral", skip=("1",))
    assert [parametrize.is_parametrized(layer) for layer in cell] == [True, False]
    kept = cell[0].parametrizations.weight[0]
    normalise(cell)
    assert list(cell[0].parametrizations.weight) == [kept]
    with pytest.raises(KoopsimError, match="left to normalise"):
        normalise(cell)
