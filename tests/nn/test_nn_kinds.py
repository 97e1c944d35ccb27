"""What the house asks of each kind of model and lift: sizes, bytes, words, and the same for other data."""

import math
from dataclasses import replace

import pytest
import torch

from koopsim.config import (
    FourierConfig,
    FourierNetworkConfig,
    IdentityConfig,
    MLPConfig,
    SIMConfig,
    TCNConfig,
    VGGConfig,
)
from koopsim.errors import KoopsimError
from koopsim.kinds import SequenceShape, lift_kind, model_kind
from koopsim.models import build
from koopsim.nn.byte_tcn import SYMBOLS, ByteTCN, ByteTCNConfig
from koopsim.nn.fourier import NormalisedFourierFeatures, RandomFourierFeatures
from koopsim.nn.own import OwnModelConfig, own_config
from koopsim.nn.recurrent import GRU, GRUConfig
from koopsim.nn.sim import SIM, build_fourier, count_parameters
from koopsim.nn.tancik import FourierNetwork
from koopsim.nn.tokens import TokenTCN, TokenTCNConfig
from koopsim.spaces import BANDWIDTH, LogUniform

FEATURES = FourierConfig(14, 0.5)
SINGLE = SIMConfig(MLPConfig(2, 8, 3), lift_dim=6, hidden=5, outputs=3)
TWO = replace(SINGLE, fourier=FEATURES)
RFF = SIMConfig(IdentityConfig(2), fourier=FEATURES, hidden=5, outputs=3)
SEQUENCE = SIMConfig(TCNConfig(2, 4, 3), lift_dim=6, hidden=5, outputs=4)


def random():
    return torch.Generator().manual_seed(0)


def test_bytes_a_point():
    """What one pixel keeps in a step, counted by hand: short numbers, and full ones."""
    assert lift_kind(SINGLE.lift).bytes_a_point(SINGLE.lift, 10, 4) == 4 * (5 * 8 * 3 + 4 * 10)
    assert lift_kind(RFF.lift).bytes_a_point(RFF.lift, 10, 4) == 0
    kind = model_kind(SINGLE)
    assert kind.bytes_a_point(SINGLE, 2, 4) == 2 * 6 * 5 + 3 * 4 * 3 + 4 * 5 * 8 * 3
    assert kind.bytes_a_point(TWO, 2, 4) == 2 * (14 + 6 * 5) + 3 * 4 * 3 + 4 * (5 * 8 * 3 + 4 * 14)
    assert kind.bytes_a_point(RFF, 2, 4) == 2 * (14 + 6 * 5) + 3 * 4 * 3
    network = FourierNetworkConfig(features=12, width=7, layers=2, outputs=3)
    assert model_kind(network).bytes_a_point(network, 2, 4) == 2 * (12 + 3 * 2 * 7) + 3 * 4 * 3


def test_words_and_colours():
    kind = model_kind(SINGLE)
    assert [kind.slug(c) for c in (SINGLE, TWO, RFF)] == ["sim-single", "sim-two", "sim-rff"]
    assert [kind.title(c) for c in (SINGLE, TWO, RFF)] == ["SIM (single)", "SIM (two)", "SIM (RFF only)"]
    assert [kind.look(c).slot for c in (SINGLE, TWO, RFF)] == [4, 5, 8]
    assert [kind.look(c, best=True).slot for c in (SINGLE, TWO, RFF)] == [6, 7, 9]
    assert [kind.look(c).colour for c in (SINGLE, TWO, RFF)] == ["#2563eb", "#dc2626", "#059669"]
    assert [kind.learns_phases(c) for c in (SINGLE, TWO, RFF)] == [False, True, False]
    assert [kind.limit_dim(c) for c in (SINGLE, TWO, RFF)] == [6, 14, 14]
    network = FourierNetworkConfig()
    look = model_kind(network).look(network)
    assert (look.title, look.slot, model_kind(network).slug(network)) == ("Tancik et al.", 1, "tancik")
    look = model_kind(GRUConfig()).look(GRUConfig())
    assert (look.title, look.slot) == ("GRU", 3)
    for module, word in (("Mine", "Mine"), ("", "module")):
        own = OwnModelConfig(module)
        assert model_kind(own).slug(own) == model_kind(own).title(own) == word
    with pytest.raises(KoopsimError, match="model is Mine, a module of your own code, which no file can build"):
        model_kind(own).build(OwnModelConfig("Mine"))


def test_bandwidths_are_what_is_searched_and_made_coarser():
    kind = model_kind(SINGLE)
    assert kind.parameters(TWO) == {BANDWIDTH: LogUniform(1e-3, 1e3)}
    assert kind.parameters(SINGLE) == {}
    assert kind.coarser(TWO, 4.0).fourier.bandwidth == 2.0
    assert kind.coarser(SINGLE, 4.0) is SINGLE
    assert kind.common(TWO).fourier.bandwidth == 1.0
    assert kind.common(SINGLE) is SINGLE
    with pytest.raises(KoopsimError):
        kind.with_bandwidth(SINGLE, 2.0)
    network = FourierNetworkConfig(sigma=8.0)
    assert model_kind(network).coarser(network, 4.0).sigma == 2.0
    values = LogUniform(1, 9)
    assert [*kind.sizes(TWO, values)] == ["model.lift.width", "model.lift_dim", "model.fourier.features"]
    assert [*kind.sizes(SINGLE, values)] == ["model.lift.width", "model.lift_dim"]
    assert [*kind.sizes(RFF, values)] == ["model.fourier.features"]


def test_the_same_model_for_other_data():
    kind = model_kind(SINGLE)
    rows = kind.for_rows(SINGLE, 9, 2)
    assert (rows.lift.inputs, rows.outputs, rows.lift.width) == (9, 2, 8)
    assert kind.for_rows(RFF, 9, 2).lift.inputs == 9
    pictures = kind.for_images(replace(SINGLE, lift=VGGConfig(4, (3, 8, 8))), (1, 12, 16), 5)
    assert (pictures.lift.image, pictures.outputs, pictures.lift.channels) == ((1, 12, 16), 5, 4)
    own = GRUConfig()
    gru = model_kind(own).for_sequences(own, SequenceShape(3, 40), 7)
    assert (gru.inputs, gru.outputs) == (3, 7)
    sequences = kind.for_sequences(SEQUENCE, SequenceShape(2, 40), 7)
    assert (sequences.lift.input_channels, sequences.outputs) == (2, 7)


@pytest.mark.parametrize(("kernel", "reach"), [(2, 2), (3, 4), (8, 14)])
def test_a_tcn_has_the_levels_to_look_back_over_the_whole(kernel, reach):
    """Two convolutions of dilation 2^l a level: L levels see 2 (kernel - 1) (2^L - 1) steps back."""
    config = TCNConfig(kernel=kernel, channels=5)

    def levels(length):
        return lift_kind(config).for_sequences(config, SequenceShape(1, length)).levels

    for L in (3, 5, 7):
        assert levels(1 + reach * (2**L - 1)) == L
        assert levels(2 + reach * (2**L - 1)) == L + 1
    assert (levels(2), levels(1 + reach * 3), levels(10**6)) == (2, 2, 8)
    own = lift_kind(config).for_sequences(config, SequenceShape(0, 1 + reach * 7))
    assert own == ByteTCNConfig(3, 5, kernel)
    single = TCNConfig(kernel=1)
    assert lift_kind(single).for_sequences(single, SequenceShape(1, 9)).levels == 8


def test_examples_of_sequences():
    config = GRUConfig(inputs=1)
    kind = model_kind(config)
    x, axes = kind.example(config, 3, 6, random())
    assert (x.shape, axes) == ((3, 6), {0: "batch", 1: "length"})
    assert kind.example(replace(config, inputs=4), 3, 6, random())[0].shape == (3, 6, 4)
    symbols, axes = kind.example(replace(config, inputs=0), 30, 60, random())
    assert (symbols.shape, symbols.dtype, int(symbols.min()), int(symbols.max())) == ((30, 60), torch.int64, 0, 255)
    assert axes == {0: "batch", 1: "length"}
    for lift, most, kinds in ((ByteTCNConfig(), SYMBOLS, torch.int64), (TokenTCNConfig(7), 7, torch.int64),
                              (TCNConfig(), 10, torch.float32)):  # fmt: skip
        x, axes = lift_kind(lift).example(lift, 30, 60, random())
        assert (x.shape, x.dtype, int(x.min()), int(x.max())) == ((30, 60), kinds, 0, most - 1)
        assert axes == {0: "batch", 1: "length"}
    wide = TCNConfig(input_channels=3)
    assert lift_kind(wide).example(wide, 2, 5, random())[0].shape == (2, 5, 3)
    assert lift_kind(SINGLE.lift).example(SINGLE.lift, 4, 0, random())[1] == {0: "batch"}


@pytest.mark.parametrize("inputs", [0, 1, 3])
def test_a_gru_is_torchs(inputs):
    torch.manual_seed(0)
    model = GRU(GRUConfig(inputs=inputs, hidden=5, layers=2, outputs=4)).double()
    x = torch.randint(0, 256, (2, 6)) if inputs == 0 else torch.randn(2, 6, *([inputs] if inputs > 1 else [])).double()
    seen = model.embedding[x] if inputs == 0 else x.unsqueeze(-1) if inputs == 1 else x
    torch.testing.assert_close(model(x), model.h(model.gru(seen)[0]))
    assert (model.gru.input_size, model.gru.hidden_size, model.gru.num_layers) == (inputs or 5, 5, 2)
    assert (model.embedding is None) == (inputs > 0)
    for wrong in ({"inputs": -1}, {"hidden": 0}, {"layers": 0}, {"outputs": 0}):
        with pytest.raises(KoopsimError, match=r"A GRU of .* each must be at least 1 \(inputs 0: bytes\)"):
            GRUConfig(**wrong)
    assert GRUConfig(0, 1, 1, 1).outputs == 1
    for wrong in ({"levels": 0}, {"channels": 0}, {"kernel": 0}):
        with pytest.raises(KoopsimError, match="A byte TCN has"):
            ByteTCNConfig(**wrong)
    assert ByteTCNConfig(1, 1, 1).kernel == 1


def test_tokens_and_bytes_are_embedded_then_read():
    table = torch.randn(7, 5, dtype=torch.float64) * 3 + 2
    model = TokenTCN(table, 4, 2, 6, 3).double()
    wanted = (table - table.mean(dim=0)) / table.std()
    torch.testing.assert_close(model.embedding, wanted)
    tokens = torch.randint(0, 7, (2, 9))
    torch.testing.assert_close(model(tokens), model.tcn(wanted[tokens]))
    assert (model.tcn.input_channels, model.tcn.channels, len(model.tcn.blocks)) == (5, 6, 2)
    config = TokenTCNConfig(7, 5, 2, 6, 3)
    empty = lift_kind(config).build(config, 4)
    assert (empty.embedding.shape, bool(empty.embedding.any())) == ((7, 5), False)
    assert {k: t.shape for k, t in empty.state_dict().items()} == {k: t.shape for k, t in model.state_dict().items()}
    lift = ByteTCN(4, ByteTCNConfig(2, 6, 3))
    assert (lift.embedding.shape, lift.tcn.input_channels) == ((SYMBOLS, 6), 6)
    x = torch.randint(0, SYMBOLS, (2, 9))
    torch.testing.assert_close(lift(x.to(torch.uint8)), lift.tcn(lift.embedding[x]))


def test_tanciks_network_starts_as_published():
    torch.manual_seed(0)
    model = FourierNetwork(2, 400, 3.0, 500, 3)
    layers = [m for m in model.layers if isinstance(m, torch.nn.Linear)]
    assert [m.in_features for m in layers] == [400, 500, 500, 500]
    for m in layers[:3]:
        glorot = math.sqrt(2 / (m.in_features + m.out_features))
        assert float(m.weight.detach().std()) == pytest.approx(glorot, rel=0.03)
        assert float(m.bias.detach().std()) == pytest.approx(1e-2, rel=0.15)
    assert float(model.psi.frequencies.std()) == pytest.approx(2 * math.pi * 3.0, rel=0.1)
    x = torch.rand(4, 2)
    phase = x @ model.psi.frequencies.T
    torch.testing.assert_close(model.psi(x), torch.cat([phase.sin(), phase.cos()], 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(x), torch.sigmoid(model.layers(model.psi(x))))


def test_a_sim_is_built_as_its_configuration_says():
    assert type(build_fourier(FEATURES, 3)) is RandomFourierFeatures
    assert type(build_fourier(replace(FEATURES, normalise=True), 3)) is NormalisedFourierFeatures
    even = build_fourier(replace(FEATURES, spread="even"), 2).frequencies
    assert even.shape == (7, 2)
    assert [*even.norm(dim=1)] == sorted(even.norm(dim=1))  # a sunflower's radii grow
    sim = build(TWO)
    assert (sim.limit.dim, sim.limit.rank, sim.h.in_features, sim.h.out_features) == (14, 7, 5, 3)
    sim.h.bias.requires_grad_(False)
    assert count_parameters(sim) == sum(p.numel() for p in sim.parameters()) - 3
    for wrong in ({"lift_dim": 0}, {"outputs": True}, {"hidden": 2.0}):
        with pytest.raises(ValueError, match="expected a whole number of at least 1"):
            SIM(torch.nn.Identity(), **({"lift_dim": 4, "outputs": 1} | wrong))
    assert SIM(torch.nn.Identity(), 2, 1, hidden=1).limit.rank == 1
    with pytest.raises(ValueError, match="expected a module"):
        SIM(3, 2, 1)
    with pytest.raises(ValueError, match=r"expected koopsim.nn.RandomFourierFeatures"):
        SIM(torch.nn.Identity(), 2, 1, fourier=torch.nn.Identity())
    with pytest.raises(ValueError, match="The lift gives 3 numbers where lift_dim says 2"):
        SIM(torch.nn.Linear(1, 3), 2, 1)(torch.zeros(1, 1))
    with pytest.raises(ValueError, match="x is list; expected a tensor"):
        sim([1.0])


def test_a_module_of_ones_own_is_known_by_its_tensors():
    one, same, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    assert own_config(one) == own_config(same) != own_config(other)
    assert own_config(one).module == "Linear"
    assert len(own_config(one).digest) == 16
    assert own_config(one) != own_config(torch.nn.Linear(2, 3).double())
    built = build(SINGLE)
    assert own_config(built) is built.config
