"""The clock, the floors and the machine: against hand counts and works of known length."""

import time
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from koopsim.bench import limit
from koopsim.bench.limit import Demand, Floor, floor_of, folded_demand, train_demand
from koopsim.bench.machine import Machine, measured_bandwidth, measured_flops, measured_machine
from koopsim.bench.timing import measure
from koopsim.config import DEQConfig, FourierConfig, IdentityConfig, MLPConfig, SIMConfig, TCNConfig, VGGConfig
from koopsim.models import build
from koopsim.nn.folded import folded

CPU = torch.device("cpu")


def squares(y, target):
    return (y - target).square().mean()


@pytest.fixture
def work(monkeypatch):
    """work(seconds): so long by a clock that nobody else's load moves."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    return spend


def test_a_work_twice_as_long_takes_twice_the_time(work):
    makers = {"one": lambda: lambda: work(0.02), "two": lambda: lambda: work(0.04)}
    found = measure(makers, CPU, turns=3)
    assert found["two"].seconds / found["one"].seconds == pytest.approx(2)
    assert found["one"].turns == 3
    assert found["one"].peak_bytes is None
    by_unit = measure(makers, CPU, turns=3, units={"two": 2})
    assert by_unit["two"].seconds / by_unit["one"].seconds == pytest.approx(1)


def test_short_works_are_repeated_and_all_are_warmed_up():
    calls = []
    measure({"short": lambda: lambda: calls.append(0)}, CPU, turns=3)
    assert len(calls) >= 2 + 3 * 100


def test_a_median_is_not_moved_by_one_slow_turn(work):
    slow = iter([0, 0, 0.02, 0.5, 0.02])
    found = measure({"work": lambda: lambda: work(next(slow, 0.02) or 0.02)}, CPU, turns=3)
    assert found["work"].seconds < 0.1
    assert found["work"].spread > 0.4


def test_flops_of_a_multilayer_perceptron_by_hand():
    B, d, w, N, H, y = 64, 2, 12, 10, 9, 3
    model = build(SIMConfig(MLPConfig(d, w), lift_dim=N, hidden=H, outputs=y))
    found = train_demand(model, squares, torch.rand(B, d), torch.rand(B, y))
    K = N // 2
    layers = [d * w, w * w, w * N, N * K, K * N, N * H, H * H, H * H, H * y]
    forward = 2 * B * sum(layers)
    assert found.flops == 3 * forward - 2 * B * d * w  # the input wants no gradient
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.activations == B * (d + w + w + N + N + H + H + H)  # of each layer its input; U V phi is nu's
    assert found.bytes() == 32 * found.parameters + 8 * found.activations
    assert found.bytes("bf16") == 32 * found.parameters + 4 * found.activations


def test_flops_of_a_vgg_by_hand():
    B, c, (depth, height, width), N, H = 6, 5, (3, 8, 8), 6, 4
    model = build(SIMConfig(VGGConfig(c, (depth, height, width)), lift_dim=N, hidden=H, outputs=2))
    found = train_demand(model, F.cross_entropy, torch.randn(B, 3, 8, 8), torch.zeros(B, dtype=torch.int64))
    pixels = height * width
    first = 2 * B * 9 * depth * c * pixels
    later = 2 * B * 9 * c * c * (pixels + 2 * pixels // 4)
    dense = 2 * B * (c * pixels // 16 * N + 2 * N * N // 2 + N * H + 2 * H * H + 2 * H)
    assert found.flops == 2 * first + 3 * later + 3 * dense
    images = B * pixels * (depth + c + c + c) + B * pixels // 4 * 4 * c  # inputs of 4 convolutions, 4 normalisations
    assert found.activations == images + B * (c * pixels // 16 + N + N + H + H + H)


def test_flops_of_a_tcn_by_hand_whatever_the_kernels_that_run_it():
    B, T, C, K, levels, N, H = 5, 30, 4, 3, 2, 6, 4
    model = build(SIMConfig(TCNConfig(levels, C, K), lift_dim=N, hidden=H, outputs=2))
    x, y = torch.ones(B, T), torch.zeros(B, T, dtype=torch.int64)
    found = train_demand(model, lambda a, b: F.cross_entropy(a.flatten(0, 1), b.flatten()), x, y)
    first = 2 * B * T * (K * C + C)  # one channel in: the convolution and the residual's layer
    later = 2 * B * T * (2 * levels - 1) * K * C * C
    dense = 2 * B * T * (C * N + 2 * N * N // 2 + N * H + 2 * H * H + 2 * H)
    assert found.flops == 2 * first + 3 * later + 3 * dense
    assert found.activations == B * T * (1 + 2 * levels * C + N + N + H + H + H)


def test_a_demand_is_counted_the_same_from_two_batches_as_from_all(monkeypatch):
    model = build(SIMConfig(MLPConfig(2, 6), lift_dim=4, fourier=FourierConfig(8), projector=True, hidden=5, outputs=3))
    x, y = torch.rand(40, 2), torch.rand(40, 3)
    quick = train_demand(model, squares, x, y)
    monkeypatch.setattr(limit, "from_two", lambda counted, rows, few: counted(rows))
    assert quick == train_demand(model, squares, x, y)


def test_folding_lowers_the_demand():
    config = SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(32), hidden=8, outputs=3)
    model = build(config)
    phi = torch.randn(4, 32)
    rows = 1000
    found = folded_demand(model, lambda n: folded(model, phi[:n], given=True).square().mean(), rows)
    by_rows = 2 * rows * (3 * (8 * 8 + 8 * 3) + 2 * 32 * 8)  # features are given: no gradient for them
    weights = 2 * (8 * 32 * 16 + 8 * 16 * 32)  # nu_1 U, then V; the order of the products is torch's
    assert by_rows < found.flops < by_rows + 6 * weights
    x = torch.rand(rows, 2)
    assert found.flops < train_demand(model, squares, x, torch.rand(rows, 3)).flops


def test_a_solver_is_counted_as_it_runs():
    model = build(DEQConfig(heads=2, head_dim=2, model_dim=4, inner_dim=4))
    x, y = torch.randint(0, 10, (4, 12)), torch.zeros(4, 12, dtype=torch.int64)
    loss = lambda a, b: F.cross_entropy(a.flatten(0, 1), b.flatten())  # noqa: E731
    with warnings.catch_warnings(action="ignore"):  # of what has not converged
        found = train_demand(model, loss, x, y)
        model.deq.max_steps, model.deq.backward = 1, replace(model.deq.backward, max_steps=1)
        fewer = train_demand(model, loss, x, y)
    assert found.flops > 1.5 * fewer.flops > 0
    assert found.activations == fewer.activations > 0  # memory is constant in depth


@given(st.floats(1, 1e15), st.floats(1, 1e12), st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_floor_is_the_larger_of_two_times(peak, bandwidth, parameters, activations):
    machine = Machine("made", {"float32": peak}, bandwidth, "table", None)
    floor = floor_of(Demand(1e9, parameters, activations), machine)
    assert floor.arithmetic == 1e9 / peak
    assert floor.memory == pytest.approx((32 * parameters + 8 * activations) / bandwidth)
    assert floor.seconds == max(floor.arithmetic, floor.memory)
    assert floor.bound == ("arithmetic" if floor.arithmetic >= floor.memory else "bytes")


def test_no_product_is_faster_than_the_machine_was_measured_to_be():
    """The floor must be one: a plain product, whose demand is known exactly, takes no less than its floor."""
    peak, bandwidth = measured_flops(CPU, "float32", 0.1, size=512), measured_bandwidth(CPU, 0.05)
    assert 1e8 < peak < 1e14
    assert 1e8 < bandwidth < 1e13
    a, b = torch.randn(256, 512), torch.randn(512, 512)
    took = measure({"product": lambda: lambda: torch.mm(a, b)}, CPU, turns=3)["product"].seconds
    assert took > 0.3 * Floor(2 * 256 * 512 * 512 / peak, 0).seconds


def test_this_machine_is_described():
    machine = measured_machine(CPU, seconds=0.02)
    assert machine.source == "measured"
    assert machine.threads == torch.get_num_threads()
    assert set(machine.flops) == {"float32", "tf32", "bf16"}
    assert machine.environment["cores"] >= 1


def test_calls_of_one_machine_are_put_together():
    from koopsim.bench import merged

    def said(row, name="a", precision="bf16", curves=()):
        comparison = {"row": row, "work": name}
        return {
            "machine": {"name": "one"}, "precision": precision, "comparisons": [comparison], "curves": list(curves),
            "skipped": {f"not {row}": "why"}, "row_seconds": {row: 1.0, f"not {row}": 0.0}, "environment": {},
        }  # fmt: skip

    both = merged(said("train", curves=["kept"]), said("stack"))
    assert [c["row"] for c in both["comparisons"]] == ["train", "stack"]
    assert both["curves"] == ["kept"]
    assert both["skipped"].keys() == {"not train", "not stack"}
    again = merged(both, said("train", "b"))
    assert [(c["row"], c["work"]) for c in again["comparisons"]] == [("stack", "a"), ("train", "b")]
    assert merged(both, said("train", precision="float32"))["comparisons"] == said("train")["comparisons"]
