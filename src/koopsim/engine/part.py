"""Members that step together: the step, and the same step captured in a CUDA graph.

    batch(positions) -> losses, g -> update           one step for training, pictures and searches

The step takes nothing from the host. Run as it stands it is the readable twin; on CUDA it is captured once for each
batch size (and, where a solver is inside, each of its budgets) and replayed, which takes the host out of the loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from koopsim.config import Recipe
from koopsim.engine.capture import Recorder
from koopsim.engine.feeds import Feed, Resident
from koopsim.engine.gradients import Gradients, Loss, choose
from koopsim.engine.members import Members, Rule
from koopsim.engine.old_state import modern
from koopsim.engine.sharded import Sharded, ShardedMembers
from koopsim.engine.update import update
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.files.tensors import require_match
from koopsim.nn.trials import no_trials
from koopsim.schedule import adam_table
from koopsim.tasks.base import Samples

ADAPT_EVERY = 64  # steps between looks at how much work the captured step of a solver should do


@dataclass(frozen=True)
class Way:
    """How the steps are run.

    autocast   cast forward passes to this type;   capture  replay from CUDA graphs, None: where there is CUDA
    compile    let torch.compile fuse small kernels;   alone  a single member by its module's own kernels
    world      the processes that share every batch;   shard  they share a large model too (sharded.py)
    recompute  blocks of a large model again in the backward pass (blocks.py)
    count      of a batch's targets: what its loss is the mean over, None its rows
    rehearse   a step to be captured may be run with wrong numbers, to build its kernels together (rehearsal.py)
    """

    autocast: torch.dtype | None = None
    capture: bool | None = None
    compile: bool = False
    alone: bool = True
    world: World = ALONE
    shard: bool = False
    recompute: bool = False
    count: Callable[[Tensor], Tensor | None] = lambda targets: None
    rehearse: bool = False


class Part:
    """Steps P models through epochs of a feed."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        loss: Loss,
        feed: Feed,
        schedules: Tensor,
        rule: Rule,
        way: Way = Way(),  # noqa: B008  (frozen)
    ):
        self.feed, self.world = feed, way.world
        self.members: Members
        self.gradients: Gradients
        if way.shard and len(models) == 1:
            members = ShardedMembers(models[0], schedules, feed.epoch_steps, rule, way.world)
            self.members, self.gradients = members, Sharded(members, loss, feed.shared, rule, way.autocast)
        elif way.shard:
            raise KoopsimError(f"{len(models)} models train here, each small: --shard is for a single large one.")
        else:
            self.members = Members(models, schedules, feed.epoch_steps, rule)
            self.gradients = choose(self.members, loss, feed.shared, way.autocast, way.compile, way.alone)
        feed.world, self.count = way.world, way.count
        self.seeds, self.ages = [0] * len(models), [0] * len(models)
        self.gradients.world = way.world
        self.capture = (self.device.type == "cuda" if way.capture is None else way.capture) and not way.shard
        self.rehearse = way.rehearse and way.world.alone and not way.compile
        self.compile, self.adaptive = way.compile, True  # adaptive: a solver may change what its captured step does
        self.size = feed.size_at(0)
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}
        self._recorder: Recorder | None = None

    @property
    def device(self) -> torch.device:
        return self.members.device

    @property
    def epoch_steps(self) -> int:
        return self.feed.epoch_steps

    def step(self) -> None:
        """One update of every member that goes on. The readable twin of its captured form."""
        batch = self.feed.batch(self.members.positions, self.size)
        self.gradients.weight = self._weight(batch)
        losses, g = self.gradients(batch)
        self.gradients.add_up(losses, g)
        update(self.members, g, losses)

    def _weight(self, batch: tuple[Tensor, ...]) -> float | Tensor:
        """What this process's loss counts among all."""
        own = None if self.world.alone else self.count(batch[-1][0])
        if own is None:
            return self.feed.weight(self.size)
        total = own.clone()
        self.world.add_up(total)
        return own * (self.feed.weight(self.size) > 0) / total

    def begin_epoch(self) -> None:
        """Draw what the epoch needs, count from its beginning, and let a solver choose its settings."""
        self.members.begin_epoch()
        self.feed.begin_epoch(self.seeds, self.ages)
        self.size = self.feed.size_at(0)
        self.gradients.begin_epoch(self._first_batch)

    def _first_batch(self) -> tuple[Tensor, ...]:
        """Of the epoch, the whole of it on every process: what is chosen by it, all must choose alike."""
        self.feed.world = ALONE
        try:
            return self.feed.first(self.members.positions, self.size)
        finally:
            self.feed.world = self.world

    def advance(self, first: int, last: int) -> None:
        """Steps `first` to `last` (exclusive) of the epoch."""
        for position in range(first, last):
            self.size = self.feed.size_at(position)
            self.feed.fetch(position)
            if not self.capture:
                self.step()
                continue
            if self.adaptive and position % ADAPT_EVERY == 0:
                self.gradients.adapt(self.world)
            self.graph().replay()

    def finish_epoch(self) -> None:
        self.ages = [age + 1 for age in self.ages]

    def epoch(self) -> Tensor:
        """A whole epoch, and the losses of its steps (P, E)."""
        self.begin_epoch()
        self.advance(0, self.epoch_steps)
        self.finish_epoch()
        return self.members.losses

    def rewind(self) -> None:
        """Count from the first step again, the weights as they are: to measure the same steps many times."""
        self.members.steps.zero_()
        self.members.positions.zero_()

    def warm_up(self) -> None:
        """Capture what an epoch needs, so that choosing kernels is not counted as training."""
        for size in sorted(self.feed.sizes(), reverse=True) if self.capture else ():
            self.size = size
            self.graph()

    def graph(self) -> torch.cuda.CUDAGraph:
        """The captured step for the present batch size and variant, captured on first use."""
        key = (self.size, self.gradients.variant)
        if key not in self._graphs:
            self._recorder = self._recorder or Recorder(self.device)
            positions = self.members.positions.clone()
            self.members.positions.zero_()  # a run that goes on after a whole epoch stands behind its last batch
            with no_trials(self.size != self.feed.size_at(0)):  # the epoch's last batch is one of many
                self._graphs[key] = self._recorder.record(self.step, self.state, self.rehearse)
            self.members.positions.copy_(positions)
        return self._graphs[key]

    def put(self, row: int, model: nn.Module, schedule: Tensor, seed: int) -> None:
        """Give `row` to a new model at its first step."""
        self.members.put(row, model, schedule)
        self.feed.put(row, model)
        self.seeds[row], self.ages[row] = seed, 0

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes."""
        return self.members.state() | self._diagnostics()

    def _diagnostics(self) -> dict[str, Tensor]:
        return {f"diagnostics.{n}": t for n, t in self.gradients.diagnostics.items()}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], ages: Sequence[int]) -> None:
        """Go on from what `state` gave, in the middle of an epoch too; what else there is follows from seed and age."""
        state = modern(state, self.members, ages)
        for name, value in state.items():
            if name.startswith("diagnostics."):
                self.gradients.diagnostics[name.removeprefix("diagnostics.")] = value.clone().to(self.device)
        own = self.members.expected()
        require_match(own | self._diagnostics(), state, "What was saved", "state of another run")
        self.ages = list(ages)
        self.feed.begin_epoch(self.seeds, self.ages)
        self.members.take({name: state[name] for name in own})


def schedule_of(recipe: Recipe, epoch_steps: int, epochs: int | None = None) -> Tensor:
    """(steps, 4): the recipe's rows, with room for so many epochs; one that ends earlier holds its last row."""
    table = torch.as_tensor(adam_table(recipe, epoch_steps))
    rows = torch.arange((epochs or recipe.epochs) * epoch_steps).clamp_(max=len(table) - 1)
    return table[rows]


def part_of_one(
    model: nn.Module,
    loss: Loss,
    samples: Samples,
    recipe: Recipe,
    seed: int = 0,
    way: Way = Way(),  # noqa: B008
) -> Part:
    """One model on samples, by a recipe: `for _ in range(recipe.epochs): part.epoch()` trains it in place."""
    feed = Resident(samples, recipe, 1)
    part = Part([model], loss, feed, schedule_of(recipe, feed.epoch_steps).unsqueeze(0), Rule.of(recipe), way)
    part.seeds = [seed]
    return part
