"""Slots side by side by hand: whose error it is, who may be taken over, what is kept of whom."""

from types import SimpleNamespace

import pytest
import torch

from koopsim.engine.beside import ROUND, Beside


class Stack:
    """What Beside asks of a stack."""

    epoch_steps = 5

    def __init__(self, run):
        self.part, self.said, self.loaded = SimpleNamespace(adaptive=True), [run], None

    def __getattr__(self, name):
        def noted(*given):
            if (name, *given) in self.said:
                raise ValueError(f"{self.said[0]} cannot {name}")
            self.said.append((name, *given))

        return noted

    def figures(self, slot):
        return {"of": self.said[0], "slot": slot}

    def state(self):
        return {"flat": torch.tensor([float(len(self.said))])}

    def load(self, state, ages):
        self.loaded = state, ages


def of(*runs, takes_over=True):
    made = []

    def make(run):
        if run == "full":
            raise torch.OutOfMemoryError("no room")
        if run == "broken":
            raise RuntimeError("cannot be built")
        made.append(Stack(run))
        return made[-1]

    return Beside(runs, make, lambda run: takes_over), made


def test_everybody_has_a_stack_that_is_warm_and_captures_no_more():
    beside, made = of("a", "b")
    assert [stack.said for stack in made] == [["a", ("warm_up",)], ["b", ("warm_up",)]]
    assert not any(stack.part.adaptive for stack in made)
    assert (beside.runs, beside.ages, beside.epoch_steps, beside.sparse) == (["a", "b"], [0, 0], 5, False)
    beside.add("c")
    assert (beside.runs, beside.ages, len(beside.parts), len(beside.streams)) == (["a", "b", "c"], [0, 0, 0], 3, 3)
    beside.begin_epoch()
    beside.advance(0, ROUND + 1)
    beside.finish_epoch()
    wanted = [("warm_up",), ("begin_epoch",), ("advance", 0, ROUND), ("advance", ROUND, ROUND + 1), ("finish_epoch",)]
    assert [stack.said[1:] for stack in made] == [wanted] * 3
    assert beside.ages == [1, 1, 1]
    assert beside.figures(1) == {"of": "b", "slot": 0}
    assert of()[0].epoch_steps == 0


def test_an_error_stays_in_its_slot_and_a_full_device_does_not():
    beside, made = of("a", "broken", "b")
    assert beside.parts == [made[0], None, made[1]]
    assert list(beside.errors) == [1]
    beside.ages[1] = 4
    made[0].said.append(("begin_epoch",))  # it crashes there
    beside.begin_epoch()
    beside.advance(0, 1)
    assert sorted(beside.errors) == [0, 1]
    assert ("advance", 0, 1) not in made[0].said
    assert made[1].said[-1] == ("advance", 0, 1)
    beside.finish_epoch()
    assert (made[0].said[-1], made[1].said[-1]) == (("begin_epoch",), ("finish_epoch",))
    with pytest.raises(ValueError, match="a cannot begin_epoch"):
        beside.figures(0)
    assert (beside.parts[0], list(beside.errors)) == (None, [1])
    assert [*beside.state()] == ["2.flat"]
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        beside.add("full")


def test_who_ended_well_is_taken_over():
    beside, made = of("a", "b")
    beside.stop(0)
    assert (beside.runs, beside.parts, beside.idle, beside.sparse) == ([None, "b"], [None, made[1]], {0: made[0]}, True)
    beside.ages[0] = 3
    beside.finish_epoch()
    assert beside.ages == [3, 1]  # a free slot does not age
    beside.start(0, "c")
    assert (beside.parts[0], beside.idle, beside.ages, beside.runs) == (made[0], {}, [0, 1], ["c", "b"])
    assert made[0].said[-1] == ("start", 0, "c")
    beside.errors[1] = RuntimeError("crashed")
    beside.stop(1)
    assert (beside.idle, beside.errors) == ({}, {})
    beside.takes_over = lambda run: False
    beside.stop(0)
    beside.start(0, "d")
    assert (beside.parts[0], len(made), beside.idle) == (made[2], 3, {})


def test_those_who_go_on_keep_what_is_theirs():
    beside, made = of("a", "b", "c", "d")
    beside.ages = [1, 2, 3, 4]
    beside.stop(0)
    beside.errors = {1: RuntimeError("1"), 3: RuntimeError("3")}
    beside.compact([2, 3])
    assert (beside.runs, beside.ages, beside.parts, beside.idle) == (["c", "d"], [3, 4], made[2:], {})
    assert {slot: str(error) for slot, error in beside.errors.items()} == {1: "3"}
    assert len(beside.streams) == 2


def test_each_loads_its_own():
    beside, made = of("a", "b", "c")
    state = beside.state()
    assert [*state] == ["0.flat", "1.flat", "2.flat"]
    del state["1.flat"]
    state["2.buffer.x"] = torch.ones(1)
    beside.load(state, (5, 6, 7))
    assert beside.ages == [5, 6, 7]
    assert made[0].loaded == ({"flat": state["0.flat"]}, [5])
    assert made[1].loaded is None
    assert made[2].loaded == ({"flat": state["2.flat"], "buffer.x": state["2.buffer.x"]}, [7])
