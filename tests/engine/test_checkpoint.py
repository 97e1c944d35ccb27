"""A checkpoint's parts, its header's bounds, and files that koopsim 0.1 wrote, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from koopsim.config import MLPConfig, Recipe, SIMConfig
from koopsim.engine.checkpoint import (
    lasting,
    models_of,
    read_checkpoint,
    read_run,
    refuse_other_layout,
    restore_random,
    split_parts,
    write_checkpoint,
)
from koopsim.engine.members import Members, Rule
from koopsim.engine.old_state import modern, run_of_old
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.presets import run_of

MODEL = SIMConfig(MLPConfig(2, 4, 1), 6, outputs=3, hidden=4)
RUN = replace(run_of("table/sim-single", "smoke"), model=MODEL, recipe=Recipe(epochs=5))
FLAT = torch.arange(6.0).view(1, 6)
GOOD = {"done": 0, "groups": 1, "epoch": 2, "step": 0, "seconds": 1.5}


def written(folder: Path, header, **tensors):
    write_checkpoint(folder / "c.safetensors", {0: {"flat": FLAT} | tensors}, header)
    return folder / "c.safetensors"


def test_a_finished_part_keeps_what_models_are_made_of():
    names = ["flat", "steps", "mean", "square", "losses", "averaged.parameters", "buffer.x", "active"]
    state = {name: torch.ones(2, requires_grad=name == "flat") for name in names}
    kept = lasting(state)
    assert list(kept) == ["flat", "steps", "averaged.parameters", "buffer.x"]
    assert not kept["flat"].requires_grad
    state["steps"].zero_()
    assert kept["steps"].tolist() == [1, 1]  # a copy


def test_parts_go_by_number_and_the_rest_by_name(tmp_path):
    parts, rest = split_parts({n: FLAT for n in ("3/flat", "3/mean", "12/flat", "random.cpu", "x/flat", "4/", "/y")})
    assert {number: sorted(part) for number, part in parts.items()} == {3: ["flat", "mean"], 12: ["flat"]}
    assert sorted(rest) == ["/y", "4/", "random.cpu", "x/flat"]
    path = tmp_path / "c.safetensors"
    torch.manual_seed(3)
    write_checkpoint(path, {0: {"flat": FLAT}, 2: {"flat": 2 * FLAT}}, {"a": [1]})
    wanted = torch.rand(2)
    parts, header, rest = read_checkpoint(path)
    assert torch.equal(parts[2]["flat"], 2 * FLAT)
    assert (sorted(parts), header, sorted(rest)) == ([0, 2], {"a": [1]}, ["random.cpu"])
    restore_random(rest)
    assert torch.equal(torch.rand(2), wanted)
    restore_random({})
    with pytest.raises(KoopsimError, match=r"The checkpoint is a run: 1 of 1 tensors do not match"):
        restore_random({"random.cpu": torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(KoopsimError, match=r"There is no checkpoint .*none: the run never reached one"):
        read_checkpoint(tmp_path / "none")


def test_what_is_not_finite_is_refused_but_for_losses(tmp_path):
    bad = torch.tensor([1.0, float("nan")])
    path = written(tmp_path, {}, losses=bad)
    assert torch.isnan(read_checkpoint(path)[0][0]["losses"][1])
    path = written(tmp_path, {}, mean=bad)
    with pytest.raises(KoopsimError, match="the tensor '0/mean' holds NaN"):
        read_checkpoint(path)
    assert torch.isnan(read_checkpoint(path, finite=False)[0][0]["mean"][1])


@pytest.mark.parametrize(
    "change",
    [
        {"done": 1}, {"groups": 7, "done": 3}, {"epoch": 5}, {"epoch": 0}, {"seconds": 0}, {"seconds": 3}, {"step": 9},
    ],
)  # fmt: skip
def test_a_header_in_bounds_is_taken(change, tmp_path):
    parts, said, rest, layout = read_run(written(tmp_path, {"run": GOOD | change, "layout": {"w": [2]}}), RUN)
    assert torch.equal(parts[0]["flat"], FLAT)
    assert (said, list(rest), layout) == (GOOD | change, ["random.cpu"], {"w": [2]})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"done": -1}, "done"), ({"done": None}, "done"), ({"done": 2}, "epoch"), ({"groups": 0}, "epoch"),
        ({"groups": 1.0}, "groups"), ({"epoch": True}, "epoch"), ({"epoch": 6}, "epoch"), ({"step": "1"}, "step"),
        ({"seconds": None}, "seconds"), ({"seconds": -0.5}, "seconds"), ({"seconds": True}, "seconds"),
    ],
)  # fmt: skip
def test_a_header_out_of_bounds_is_named(change, named, tmp_path):
    header = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(KoopsimError, match=rf"is not a whole koopsim checkpoint: its header has no good '{named}'"):
        read_run(written(tmp_path, {"run": header}), RUN)
    with pytest.raises(KoopsimError, match="its header has no good 'done'"):
        read_run(written(tmp_path, {"run": [1]}), RUN)


def small(count=2, rule=None):
    torch.manual_seed(0)
    return [build(MODEL) for _ in range(count)], rule or Rule()


def test_models_are_those_of_the_state():
    models, rule = small()
    state = Members(models, torch.zeros(2, 1, 4), 1, rule).state()
    for found, model in zip(models_of(RUN, state, Path("c")), models, strict=True):
        assert found.h.weight.dtype == torch.float32
        for name, t in model.state_dict().items():
            assert torch.equal(found.state_dict()[name], t)
    (one,) = models_of(replace(RUN, precision="float64"), {k: v[:1] for k, v in state.items()}, Path("c"))
    assert one.h.weight.dtype == torch.float64
    bare = {"flat": torch.zeros(1, 3), "steps": torch.zeros(1, dtype=torch.int64)}
    (own,) = models_of(RUN, bare, Path("c"), lambda run: nn.Linear(2, 1))
    assert not own.weight.any()
    for flat in (None, torch.zeros(0), torch.zeros(1, 2, 3), torch.zeros(())):
        with pytest.raises(KoopsimError, match="c is not a whole koopsim checkpoint: it has no parameters"):
            models_of(RUN, {} if flat is None else {"flat": flat}, Path("c"))
    with pytest.raises(KoopsimError, match="c is a checkpoint of another model: 1 of"):
        models_of(RUN, {"flat": torch.zeros(1, 5), "steps": torch.zeros(1, dtype=torch.int64)}, Path("c"))


def test_an_average_in_the_state_is_what_the_models_are():
    models, rule = small(1, Rule(average=0.5))
    state = {k: t.clone() for k, t in Members(models, torch.zeros(1, 1, 4), 1, rule).state().items()}
    state["averaged.parameters"].fill_(3.0)
    state["steps"].fill_(1)
    run = replace(RUN, recipe=replace(RUN.recipe, average=0.5))
    (found,) = models_of(run, state, Path("c"))
    assert (found.h.weight == 6).all()  # 3 / (1 - 0.5)
    del state["averaged.parameters"]
    (found,) = models_of(run, state, Path("c"))
    assert torch.equal(found.h.weight, models[0].h.weight)


def test_another_layout_is_refused():
    members = Members([nn.Linear(2, 3)], torch.zeros(1, 1, 4), 1, Rule())
    path = Path("c")
    refuse_other_layout(None, members, path)
    refuse_other_layout({"weight": [3, 2], "bias": [3]}, members, path)
    for said, count in (({"weight": [2, 3], "bias": [3]}, 1), ([1], 2), ({"x": [1]}, 3), ({"bias": [3]}, 1)):
        with pytest.raises(KoopsimError, match=rf"^c is a checkpoint of another model: {count} of 2 .* is 'weight'"):
            refuse_other_layout(said, members, path)


# ---------------------------------------------------------------- koopsim 0.1


def stacked(count=2, epoch_steps=3, average=0.0):
    return Members([nn.Linear(2, 1) for _ in range(count)], torch.ones(count, 9, 4), epoch_steps, Rule(average=average))


def test_states_of_today_stay_what_they_are():
    for state in ({"positions": FLAT, "losses": FLAT}, {"flat": FLAT}):
        assert modern(state, stacked()) is state


def test_a_stack_of_before_knew_the_losses_of_all_steps():
    members = stacked(average=0.9)
    losses = torch.arange(18.0).view(2, 9)
    losses[1, 5:] = torch.nan
    state = {"flat": torch.rand(2, 3), "losses": losses, "steps": torch.tensor([7, 5]), "averaged": torch.rand(2, 3)}
    state |= {"diagnostics.iterations": torch.ones(1), "gone": torch.ones(1)}
    found = modern(state, members, [2, 1])
    assert found["losses"].tolist() == [[6, 7, 8], [12, 13, 0]]
    assert found["positions"].tolist() == [1, 2]
    assert found["flat"] is state["flat"]
    assert found["averaged.parameters"] is state["averaged"]
    assert found["diagnostics.iterations"] is state["diagnostics.iterations"]
    assert found.keys() == members.state().keys() | {"diagnostics.iterations"}
    assert modern(state, members)["positions"].tolist() == [3, 3]  # at most an epoch
    assert modern(state | {"steps": torch.tensor([2, 0])}, members, [1, 0])["positions"].tolist() == [0, 0]
    assert modern(state, members, [3, 3])["losses"].tolist() == [[0, 0, 0]] * 2


def test_a_trainer_of_before_had_no_leading_axis():
    members = stacked(1)
    state = {"flat": torch.rand(3), "losses": torch.rand(3), "counters": torch.tensor([7.0, 1.0])}
    found = modern(state | {"diagnostics.x": FLAT}, members)
    assert (found["steps"].tolist(), found["positions"].tolist()) == ([7], [1])
    assert torch.equal(found["flat"], state["flat"].unsqueeze(0))
    assert found["diagnostics.x"] is FLAT
    assert "counters" not in found
    assert found["mean"] is members.state()["mean"]


def test_groups_of_pictures_of_before():
    run = run_of("image/sim-two", "smoke")
    steps = run.recipe.epochs * run.task.steps_an_epoch
    tensors = {"group0.flat": torch.rand(2, 3), "group0.averaged": torch.rand(2, 3), "random.cpu": FLAT}
    tensors |= {"group11.flat": FLAT, "group11.losses": FLAT, "groupx.flat": FLAT, "other0.flat": FLAT}
    parts, said = run_of_old(tensors, {"pictures": {"done": 1, "step": 4}}, run, Path("c"))
    assert sorted(parts) == [0, 11]
    assert said == {"done": 1, "step": 4}
    assert parts[0].keys() == {"flat", "steps", "averaged.parameters"}
    assert parts[0]["steps"].tolist() == [steps] * 2
    assert parts[0]["averaged.parameters"] is tensors["group0.averaged"]
    assert parts[11] == {"flat": FLAT, "losses": FLAT}
    assert run_of_old({}, {"pictures": {}}, run, Path("c")) == ({}, {"step": 0})
    parts, _ = run_of_old({"group0.flat": FLAT}, {"pictures": {}}, RUN, Path("c"))  # a task without steps of its own
    assert parts[0]["steps"].tolist() == [RUN.recipe.epochs]
    with pytest.raises(KoopsimError, match="c is not a whole koopsim checkpoint: its header does not say how far"):
        run_of_old({}, {}, RUN, Path("c"))


def test_a_run_of_before_kept_a_model_by_names():
    model = build(MODEL)
    tensors = {f"model.{name}": t for name, t in model.state_dict().items()}
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    parts, said = run_of_old(tensors, {"position": {"epoch": 1, "step": 2}}, RUN, Path("c"))
    assert said == {"done": 0, "groups": 1, "epoch": 1, "step": 2}
    assert (sorted(parts), parts[0].keys()) == ([0], {"flat", "steps"})  # weights alone
    assert torch.equal(parts[0]["flat"], flat.unsqueeze(0))
    assert parts[0]["steps"].tolist() == [0]
    assert parts[0]["steps"].dtype == torch.int64
    tensors |= {"adam.mean": flat + 1, "adam.square": flat + 2, "epoch.losses": torch.zeros(7)}
    tensors |= {"epoch.diagnostics.x": FLAT, "averaged.parameters": flat, "epoch.other": FLAT}
    state = run_of_old(tensors, {"position": {"epoch": 3, "step": 2}}, RUN, Path("c"))[0][0]
    assert state["counters"].tolist() == [3 * 7 + 2, 2]
    assert torch.equal(state["mean"], flat + 1)
    assert torch.equal(state["square"], flat + 2)
    assert state["diagnostics.x"] is FLAT
    assert state.keys() == {"flat", "mean", "square", "losses", "averaged.parameters", "diagnostics.x", "counters"}
    for position in ({"epoch": 1}, {"step": 1}, {"epoch": 1.0, "step": 1}, {"epoch": 1, "step": True}):
        assert run_of_old(tensors, {"position": position}, RUN, Path("c"))[0][0].keys() == {"flat", "steps"}
    for wrong in ({}, tensors | {"model.h.bias": torch.zeros(4)}):
        count = 1 if wrong else len(list(model.parameters()))
        with pytest.raises(KoopsimError, match=rf"c is a checkpoint of another model: {count} of \d+ tensors do not"):
            run_of_old(wrong, {"position": {}}, RUN, Path("c"))


def test_statistics_of_before_are_buffers():
    run = run_of("digits/sim-single", "smoke")
    model = build(run.model)
    tensors = {f"model.{name}": t for name, t in model.state_dict().items()}
    state = run_of_old(tensors, {"position": {}}, run, Path("c"))[0][0]
    names = [name for name, _ in model.named_buffers()]
    assert {n for n in state if n.startswith("buffer.")} == {f"buffer.{n}" for n in names}
    del tensors[f"model.{names[0]}"]
    assert f"buffer.{names[0]}" not in run_of_old(tensors, {"position": {}}, run, Path("c"))[0][0]
