"""Text as bytes: windows, splits, bits, and the three models that read them."""

import math

import pytest
import torch

import koopsim
from koopsim.errors import KoopsimError
from koopsim.implicit import TransformerDEQ
from koopsim.presets import PRESETS
from koopsim.tasks.base import Answers
from koopsim.tasks.text import Text, TextConfig, text_bytes


def test_windows_lie_end_to_end_and_splits_in_the_order_of_the_text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(256)) * 5)
    task = Text(TextConfig(str(file), length=16))
    data = file.read_bytes()
    x, y = task.split("train+valid")
    test_x, test_y = task.split("test")
    assert bytes(torch.cat([x, test_x]).flatten().tolist()) == data[: 79 * 16]
    assert bytes(torch.cat([y, test_y]).flatten().tolist()) == data[1 : 79 * 16 + 1]
    assert [len(task.split(name)[0]) for name in ("train", "valid", "test")] == [65, 7, 7]
    with pytest.raises(KoopsimError, match="no split 'dev'"):
        task.split("dev")


def test_the_reference_that_comes_with_python_is_english():
    data = text_bytes("python")
    assert len(data) > 200_000
    assert data.count(b" the ") > 2000


def test_a_model_that_knows_nothing_needs_eight_bits():
    class Uniform(Answers):
        members = 2

        def __call__(self, x):
            return torch.zeros(2, *x.shape, 256)

    figures = Text(TextConfig(length=32, windows=20)).judge(Uniform(), "test", [0, 1])
    assert [f["bits"] for f in figures] == pytest.approx([8, 8])


@pytest.mark.parametrize("name", ["text/deq", "text/deq-reversible", "text/sim-single"])
def test_models_foretell_from_the_past_alone(name):
    torch.manual_seed(0)
    model = koopsim.build(name).double().eval()
    assert 40_000 < koopsim.count_parameters(model) < 70_000
    x = torch.randint(0, 256, (2, 20), dtype=torch.uint8)
    other = x.clone()
    other[:, 12:] = torch.randint(0, 256, (2, 8), dtype=torch.uint8)
    if isinstance(model, TransformerDEQ):
        model.deq.tol, model.deq.max_steps = 1e-9, 60
        model.deq._warned.add("forward")
    with torch.no_grad():
        a, b = model(x), model(other)
    assert a.shape == (2, 20, 256)
    torch.testing.assert_close(a[:, :12], b[:, :12], rtol=0, atol=1e-3)
    assert (a[:, 12:] - b[:, 12:]).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("name", ["text/deq", "text/deq-reversible", "text/sim-single"])
def test_models_learn_the_language(name):
    """A few steps on little text: below the 4.5 bits that the frequencies of letters alone would give."""
    torch.manual_seed(0)
    task = Text(TextConfig(length=24, windows=300))
    model, (x, y) = koopsim.build(name), task.split("train")
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    first = None
    for rows in torch.arange(len(x)).split(30)[:8]:
        optimiser.zero_grad()
        loss = task.loss(model(x[rows]), y[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        first = first or float(loss.detach())
    assert loss.item() < min(first - 0.5, 5.0)
    assert math.isfinite(loss.item())


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(KoopsimError, match=r"no text file 'nowhere.txt'.* 'python'"):
        Text(TextConfig("nowhere.txt"))
    (tmp_path / "short").write_text("short")
    with pytest.raises(KoopsimError, match="5 bytes, 0 windows"):
        Text(TextConfig(str(tmp_path / "short")))
    with pytest.raises(KoopsimError, match="expected at least 10"):
        TextConfig(windows=3)
    assert {"text/deq", "text/deq-reversible", "text/sim-single"} <= set(PRESETS)
