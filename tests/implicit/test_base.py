"""What a model with a solver offers whoever trains it."""

from functools import partial

import pytest
import torch

from koopsim.implicit import DEQ, MonDEQ, SolverModel, Splitting, TransformerDEQ

torch.manual_seed(0)  # whoever was imported before: else what converges differs from run to run
MODELS = {
    "deq": (TransformerDEQ(heads=2, head_dim=4, model_dim=8, inner_dim=8), torch.randint(10, (3, 12))),
    "mondeq": (MonDEQ((1, 8, 8), (4,), solving=Splitting(max_steps=200)), torch.randn(3, 1, 8, 8)),
}
each_model = pytest.mark.parametrize("name", MODELS)
pytestmark = pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")  # not what is tested here


@each_model
def test_every_model_with_a_solver_is_one(name):
    model, x = MODELS[name]
    assert isinstance(model, SolverModel)
    model.last_info = None
    assert model.diagnostics() == {}
    model.start_epoch(x)
    model(x).sum().backward()
    report = model.diagnostics()
    assert {"solver_steps", "unconverged", "residual", "backward_solver_steps", "backward_residual"} <= set(report)
    assert all(value.dim() == 0 and value.dtype == torch.float64 for value in report.values())
    solves = (model.last_info.forward, model.last_info.backward)
    assert model.longest.tolist() == [int((info.steps + ~info.converged).max()) for info in solves]
    assert "longest" not in model.state_dict()


@each_model
def test_a_captured_solve_runs_as_many_steps_as_were_needed_of_late(name):
    model, _ = MODELS[name]
    limits = model.limits
    more = name == "mondeq"  # which has one in reserve
    model.longest.copy_(torch.tensor([7, 9]))
    model.adapt()
    assert model.captured_steps == (7 + more, 9 + more) == model.variant
    assert model.longest.tolist() == [0, 0]
    model.adapt()  # nothing is known: as it was
    assert model.captured_steps == (7 + more, 9 + more)
    model.longest.copy_(torch.tensor([6, 9]))  # no graph of its own for one step less
    model.adapt()
    assert model.captured_steps == (7 + more, 9 + more)
    model.longest.copy_(torch.tensor([10_000, 3]))
    model.adapt()
    assert model.captured_steps == (limits[0], 3 + more)
    model.longest.copy_(torch.tensor([8, 3]))
    model.adapt()


def test_a_solve_that_ran_out_of_steps_asks_for_more():
    model, x = MODELS["deq"]
    model.captured_steps = (60, 60)
    model.longest.zero_()
    model.deq.max_steps, before = 2, model.deq.max_steps
    model(x)
    model.diagnostics()
    model.deq.max_steps = before
    assert model.last_info.steps.max() == 2
    assert model.longest[0] == 3


def test_a_solve_that_was_cut_short_gets_half_as_many_steps_again():
    """A step more each time would leave solves unconverged until the budget had crept up to them."""
    model = TransformerDEQ(heads=2, head_dim=4, model_dim=8, inner_dim=8)
    model.captured_steps = (8, 10)
    model.longest.copy_(torch.tensor([9, 7]))
    model.adapt()
    assert model.captured_steps == (12, 7)
    model.captured_steps = (20, 20)
    model.longest.copy_(torch.tensor([21, 20]))  # the second was just enough
    model.adapt()
    assert model.captured_steps == (30, 20)
    model.longest.copy_(torch.tensor([31, 17]))
    model.adapt()
    assert model.captured_steps == (30, 20)  # never beyond the limit; no graph of its own for a fifth less
    assert model.limits == (30, 30)
    model.longest.copy_(torch.tensor([25, 15]))  # the limit itself was nobody's choice
    model.adapt()
    assert model.captured_steps == (26, 15)


def test_few_graphs_serve_a_training_whose_solves_vary():
    """The longest solve of each 64 steps as a Broyden DEQ on copy memory had them: a graph each would be fourteen."""
    model = TransformerDEQ(heads=2, head_dim=4, model_dim=8, inner_dim=8, deq=partial(DEQ, max_steps=80))
    budgets = []
    for longest in (81, 81, 42, 39, 36, 42, 42, 42, 43, 45, 53, 51, 41, 25, 25, 26, 25):
        model.longest.fill_(min(longest, model.captured_steps[0] + 1))
        model.adapt()
        budgets.append(model.captured_steps[0])
    assert budgets == [80, 80, 45, 45, 45, 45, 45, 45, 45, 45, 70, 70, 45, 26, 26, 26, 26]


def test_a_model_that_leaves_something_out_is_told():
    class Lazy(SolverModel):
        pass

    with pytest.raises(NotImplementedError, match="Lazy does not say the limits"):
        _ = Lazy().limits
