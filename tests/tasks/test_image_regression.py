"""The task's splits and figures, and a set of pictures trained together against each trained alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from koopsim.config import (
    FourierConfig,
    FourierNetworkConfig,
    IdentityConfig,
    ImageRegressionConfig,
    MLPConfig,
    Recipe,
    Run,
    SIMConfig,
)
from koopsim.engine.drive import Stopped
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked, untrained
from koopsim.errors import KoopsimError
from koopsim.kinds import task_kind
from koopsim.models import build
from koopsim.nn.folded import fixed_features
from koopsim.pictures import PictureSet
from koopsim.presets import run_of
from koopsim.runs import RunDirectory
from koopsim.tasks import build_task, image_regression
from koopsim.tasks.image_regression import SHORT, ImageRegression, coordinates, network_bytes, psnr_of
from koopsim.training import Session, load_run, train_run

CPU = torch.device("cpu")
MODELS = {
    "single": SIMConfig(MLPConfig(2, 12), lift_dim=10, hidden=9, outputs=3),
    "two": SIMConfig(MLPConfig(2, 12), lift_dim=10, fourier=FourierConfig(14, 0.3), hidden=9, outputs=3),
    "rff": SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), hidden=9, outputs=3),
    "tancik": FourierNetworkConfig(features=16, sigma=2.0, width=11),
}


def small_task(size=16):
    return ImageRegression(ImageRegressionConfig("text", size, count=3, steps_an_epoch=5))


def with_bandwidth(model, factor):
    if isinstance(model, FourierNetworkConfig):
        return replace(model, sigma=model.sigma * factor)
    return replace(model, fourier=model.fourier and replace(model.fourier, bandwidth=model.fourier.bandwidth * factor))


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_the_kernels_of_all_pixels_take_the_papers_loss_alone(precision, monkeypatch):
    class Own(ImageRegression):
        def loss(self, outputs, targets, smoothing=0.0):
            return (outputs - targets).abs().mean()

    monkeypatch.setattr(image_regression, "one_pass", lambda model, x, y, short: short is not None)
    monkeypatch.setattr(image_regression, "squared_error", lambda model, x, y: torch.tensor(-1.0))
    x, y = torch.rand(20, 2), torch.rand(20, 3)
    for kind, name in ((ImageRegression, "rff"), (Own, "rff"), (ImageRegression, "two")):
        task, model = kind(ImageRegressionConfig("text", 16, count=1)), build(MODELS[name])
        run = replace(run_of("image/sim-rff"), precision=precision)
        given = x if (features := fixed_features(model, x, SHORT.get(precision))) is None else features
        taken = float(task.member_loss(run)(model, given, y).detach()) == -1
        assert taken is (kind is ImageRegression and name == "rff" and precision == "bf16")


def test_the_grid_and_the_splits_are_the_papers():
    values = np.random.default_rng(0).random((1, 8, 8, 3), dtype=np.float32)
    task = ImageRegression(ImageRegressionConfig(size=8), given=PictureSet(("a",), values))
    axis = np.linspace(0, 1, 8, endpoint=False)
    x, y = np.meshgrid(axis, axis, indexing="xy")
    places = np.stack([x, y], -1)
    for name, rows, columns in (("train", 0, 0), ("valid", 0, 1), ("test", 1, 1)):
        points, colours = task.split(name)
        np.testing.assert_allclose(points, places[rows::2, columns::2].reshape(-1, 2))
        np.testing.assert_array_equal(colours[0], values[0, rows::2, columns::2].reshape(-1, 3))
    assert len(task.split("train+valid")[0]) == 32
    with pytest.raises(KoopsimError, match="no split 'tset'"):
        task.split("tset")


def test_coordinates_of_a_picture_that_is_not_square():
    points = coordinates(2, 4)
    assert points.tolist() == [[i / 4, j / 4] for j in range(2) for i in range(4)]


def test_psnr_is_not_clamped():
    class Constant(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = nn.Parameter(torch.tensor(value))

        def forward(self, x):
            return self.value.expand(len(x), 3)

    values = np.zeros((2, 8, 8, 3), np.float32)
    task = ImageRegression(ImageRegressionConfig(size=8), given=PictureSet(("a", "b"), values))
    assert task.psnrs([Constant(0.1), Constant(10.0)], "test") == pytest.approx([20.0, -20.0], abs=1e-5)
    figures = task.evaluate([Constant(0.1), Constant(10.0)], "test")
    assert figures["psnr"] == pytest.approx(0.0, abs=1e-5)
    assert figures["psnr_std"] == pytest.approx(40 / 2**0.5, abs=1e-5)
    assert figures["psnr/b"] == pytest.approx(-20.0, abs=1e-5)
    assert psnr_of(0.0) == np.inf
    assert np.isnan(psnr_of(np.nan))


@pytest.mark.parametrize("name", MODELS)
def test_together_is_alone(name):
    """Two runs of three pictures, each with its own rate, bandwidth and seed, against torch's AdamW one by one."""
    task = small_task()
    recipes = [Recipe(epochs=2, weight_decay=5.0, learning_rate=rate) for rate in (1e-3, 2e-3)]
    runs = [
        Run(with_bandwidth(MODELS[name], 1 + p), task.config, recipe, 7 * p, "train", "float64")
        for p, recipe in enumerate(recipes)
    ]
    stack = Stacked(runs, task, CPU, epochs=2)
    stack.part.epoch()
    stack.part.epoch()
    x, y = task.split("train")
    for row in range(6):
        run, picture = runs[row // 3], row % 3
        model = untrained(run, task.seeds(run)[picture], CPU)
        weights = [w for w in model.parameters() if w.ndim > 1]
        biases = [w for w in model.parameters() if w.ndim < 2]
        kinds = [{"params": weights, "weight_decay": 5.0}, {"params": biases}]
        adam = torch.optim.AdamW(kinds, lr=run.recipe.learning_rate, weight_decay=0.0)
        for _ in range(10):
            adam.zero_grad()
            (model(x.double()) - y[picture]).square().mean().backward()
            adam.step()
        for key, tensor in stack.part.members.model(row).state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[key], rtol=1e-7, atol=1e-9)


def trained(task, name, precision="float32", capture=None, **recipe):
    """The members after all epochs of the recipe."""
    run = Run(MODELS[name], task.config, Recipe(learning_rate=1e-3, **recipe), train_on="train", precision=precision)
    stack = Stacked([run], task, task.device, run.recipe.epochs, Way(capture=capture))
    for _ in range(run.recipe.epochs):
        stack.part.epoch()
    return stack.part.members


@pytest.fixture
def short_on_cpu(monkeypatch):
    """A processor trains in float32 whatever is asked for; what a GPU computes can be computed there all the same."""
    monkeypatch.setattr("koopsim.engine.stacked.resolve_precision", lambda precision, device, bf16: precision)


@pytest.mark.parametrize("name", MODELS)
def test_short_precisions_stay_near_the_reference(name, short_on_cpu):
    ends = {}
    for precision in ("float32", "tf32", "bf16", "fp16"):
        ends[precision] = float(trained(small_task(), name, precision, epochs=4).losses[0, -1])
    assert ends["bf16"] != ends["float32"]
    assert ends["tf32"] == pytest.approx(ends["float32"], rel=1e-3)
    assert ends["bf16"] == pytest.approx(ends["float32"], rel=0.05)
    assert ends["fp16"] != ends["float32"]
    assert ends["fp16"] == pytest.approx(ends["float32"], rel=5e-3)


def test_no_gradient_is_too_small_for_fp16(monkeypatch, short_on_cpu):
    """Three colours of 65,536 pixels have gradients of 1e-7 each, below what float16 can tell from nothing."""
    task = small_task()
    task.loss = lambda outputs, targets, smoothing=0.0: 1e-4 * (outputs - targets).square().mean()
    moved = {}
    for scale in (1.0, 2.0**14):
        monkeypatch.setattr("koopsim.tasks.image_regression.LOSS_SCALE", scale)
        ends = []
        for precision in ("float32", "fp16"):
            ends.append(trained(task, "rff", precision, epochs=2, eps=1e-14).flat.clone())
        moved[scale] = float((ends[1] - ends[0]).norm() / ends[0].norm())
    assert moved[2.0**14] < 0.3 * moved[1.0]


def test_memory_is_counted_where_it_goes():
    wide, narrow = (replace(MODELS["rff"], hidden=h) for h in (256, 32))
    assert network_bytes(wide, 65_536) > 3 * network_bytes(narrow, 65_536)
    assert network_bytes(wide, 65_536, "bf16") < 0.6 * network_bytes(wide, 65_536)
    assert network_bytes(MODELS["two"], 65_536) > network_bytes(MODELS["rff"], 65_536)
    run = Run(MODELS["rff"], small_task().config, Recipe(), train_on="train")
    assert small_task().bytes_of(run) == network_bytes(run.model, 64)
    with pytest.raises(KoopsimError, match="needs an MLP"):
        network_bytes(SIMConfig(), 10)


def small_run(name="image/sim-rff", average=0.0, **task):
    run = run_of(name, "smoke")
    model = MODELS["tancik" if name.endswith("tancik") else name.split("-")[1]]
    config = replace(run.task, pictures="text", size=16, count=3, steps_an_epoch=4, **task)
    return replace(run, model=model, task=config, recipe=replace(run.recipe, epochs=3, average=average))


def run_in(path, run, resume=False, **options):
    directory = RunDirectory(path) if resume else RunDirectory.create(path, run, "image/sim-rff")
    return directory, train_run(run, directory, "image/sim-rff", Session(CPU, **options), resume)


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("name", ["image/sim-single", "image/sim-two", "image/sim-rff", "image/tancik"])
def test_a_run_leaves_what_it_found_and_loads_again(name, average, tmp_path):
    run = small_run(name, average)
    directory, result = run_in(tmp_path / "r", run)
    assert result["steps"] == 12
    assert [line["step"] for line in result["metrics"]] == [4, 8, 12]
    assert {"psnr", "psnr/text00", "psnr/text02"} <= result["test"].keys()
    models = load_run(tmp_path / "r")
    assert isinstance(models, nn.ModuleList)
    assert build_task(run.task).evaluate(models, "test") == pytest.approx(result["test"], rel=1e-6)
    assert directory.read_result() == result
    assert result["metrics"][-1]["valid_psnr"] == pytest.approx(result["valid"]["psnr"], rel=1e-6)


def test_a_set_cut_into_groups_gives_the_same_networks(tmp_path):
    _, whole = run_in(tmp_path / "whole", small_run())
    _, parts = run_in(tmp_path / "parts", small_run(at_once=1))
    assert parts["steps"] == 36
    assert parts["test"] == pytest.approx(whole["test"], rel=1e-4)


def test_evenly_spread_frequencies_train(tmp_path):
    run = small_run()
    even = replace(run, model=replace(run.model, fourier=replace(run.model.fourier, spread="even")))
    results = [run_in(tmp_path / name, r)[1] for name, r in (("random", run), ("even", even))]
    assert results[0]["test"] != results[1]["test"]
    assert build_task(run.task).evaluate(load_run(tmp_path / "even"), "test") == pytest.approx(
        results[1]["test"], rel=1e-6
    )


def test_an_invariant_space_that_is_all_of_it_trains_with_fewer_parameters(tmp_path):
    run = small_run()
    N = run.model.lifted
    whole = replace(run, model=replace(run.model, projector=True, rank=N))
    (_, half), (_, result) = (run_in(tmp_path / name, r) for name, r in (("half", run), ("whole", whole)))
    assert half["parameters"] - result["parameters"] == 2 * N * (N // 2)
    assert result["metrics"][-1]["train_loss"] < result["metrics"][0]["train_loss"]
    models = load_run(tmp_path / "whole")
    assert build_task(run.task).evaluate(models, "test") == pytest.approx(result["test"], rel=1e-6)
    x = torch.rand(5, 2)
    for model in models:
        torch.testing.assert_close(model(x), model.h(model.nu(model.psi(x))))


def test_an_average_is_another_network(tmp_path):
    plain, averaged = (run_in(tmp_path / str(a), small_run(average=a))[1] for a in (0.0, 0.9))
    assert [line["train_loss"] for line in averaged["metrics"]] == [line["train_loss"] for line in plain["metrics"]]
    assert averaged["test"] != plain["test"]


@pytest.mark.parametrize(("stop_after", "average"), [(1, 0.0), (4, 0.9)])
def test_a_stopped_run_resumes_to_the_same_bits(stop_after, average, tmp_path, monkeypatch):
    import os
    import signal

    run = small_run(average=average, at_once=2)
    _, whole = run_in(tmp_path / "whole", run)
    seen = 0

    def stop(event):
        nonlocal seen
        seen += event["event"] == "epoch"
        if seen == stop_after and event["event"] == "epoch":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        run_in(tmp_path / "cut", run, listen=stop)
    with pytest.raises(KoopsimError, match="unfinished"):
        load_run(tmp_path / "cut")
    torch.manual_seed(999)
    _, resumed = run_in(tmp_path / "cut", run, resume=True)
    assert resumed["test"] == whole["test"]
    without = [[{k: v for k, v in line.items() if k != "seconds"} for line in r["metrics"]] for r in (whole, resumed)]
    assert without[0] == without[1]


def test_a_loss_that_is_not_a_number_names_the_picture(tmp_path):
    run = small_run("image/sim-single")
    with pytest.raises(KoopsimError, match=r"loss of text00 became .* Try a smaller"):
        run_in(tmp_path / "r", replace(run, recipe=replace(run.recipe, learning_rate=1e30)))


def test_a_broken_checkpoint_is_refused(tmp_path):
    directory, _ = run_in(tmp_path / "r", small_run())
    whole = directory.checkpoint_file.read_bytes()
    directory.checkpoint_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KoopsimError, match="not a whole koopsim checkpoint"):
        load_run(tmp_path / "r")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_captured_on_cuda_is_eager_on_the_cpu(name, precision, short_on_cpu):
    losses = []
    for device, capture in (("cpu", False), ("cuda", False), ("cuda", True)):
        task = ImageRegression(ImageRegressionConfig("text", 64, count=2, steps_an_epoch=5), device)
        losses.append(trained(task, name, precision, capture, epochs=2).losses.cpu())
    rtol = 1e-3 if precision == "float32" else 0.05
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0], rtol=rtol, atol=1e-5)


def test_a_search_by_steps_ends_in_a_run_of_the_same_steps():
    """The paper's code judges a trial after every step; its best is not looked at two thousand times."""
    run = run_of("image/sim-rff")
    by_steps = replace(run, task=replace(run.task, steps_an_epoch=1), recipe=replace(run.recipe, epochs=2000))
    kind = task_kind(run.task)
    assert kind.final(by_steps) == run
    assert kind.final(by_steps).train_on == "train"
    dropped = replace(by_steps, recipe=replace(by_steps.recipe, schedule="step"))
    assert kind.final(dropped) == dropped  # a schedule by epochs is another one
