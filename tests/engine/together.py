"""N gloo processes beside one: this process is the first of them, the others are fresh ones (conftest.py).

shard:PRESET: the N share the model too, compute blocks of it again where it has any, clip, average, and are stopped
after two steps: the rest is done by others that begin with what the first ones saved.
"""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contract import CPU, small

from koopsim.config import MLPConfig
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import ALONE, World
from koopsim.presets import run_of
from koopsim.tasks import build_task

STEPS = 3
Work = Callable[[World], Any]


def losses(name: str, world: World) -> tuple[list, list, list]:
    """(of the steps, of each member; the parameters after them; the running statistics)."""
    kind, _, name = name.rpartition(":")
    run = small(run_of(name, "smoke"))
    batch = min(run.recipe.batch_size, 10)  # not a multiple of four: shares differ
    recipe = replace(run.recipe, epochs=1, batch_size=batch, flip=False)
    if kind:
        recipe = replace(recipe, clip_norm=0.1, average=0.9, weight_decay=0.01)
    run = replace(run, recipe=recipe)
    task = build_task(run.task, CPU)
    shard = bool(kind) and not world.alone
    way = Way(world=world, shard=shard, recompute=shard and isinstance(run.model.lift, MLPConfig))
    slots = Stacked([run], task, CPU, 1, way)
    slots.begin_epoch()
    if shard:
        slots.advance(0, 2)
        slots.meet()
        everything = sum(p.numel() for p in slots.part.members.plain.parameters())
        assert slots.part.members.flat.numel() <= everything / world.size + 200, "a share of the parameters"
        saved = world.told({n: t.clone() for n, t in slots.state().items()})
        slots = Stacked([run], task, CPU, 1, way)
        slots.load(saved, [0])
    slots.advance(2 if shard else 0, STEPS)
    slots.meet()
    state = slots.state()
    if not world.first:
        return [], [], []
    moving = [v for n, t in sorted(state.items()) if "running" in n for v in t.flatten().tolist()]
    moving += slots.part.members.model(0).state_dict()["h.weight"].flatten().tolist() if kind else []
    return slots.losses(0)[:, :STEPS].tolist(), state["flat"].flatten()[::97].tolist(), moving


@contextmanager
def joined(number: int, size: int, store: Path) -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=size, timeout=timedelta(seconds=60)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # solves that stop short say so
            yield World(number, size)
            distributed.barrier()
    finally:
        distributed.destroy_process_group()
        torch.set_num_threads(threads)


def rank(number: int, size: int, store: Path, work: Work) -> None:
    """Its part of `work`; what goes wrong is written down beside the store."""
    try:
        with joined(number, size, store) as world:
            work(world)
    except BaseException:
        (store.parent / f"rank-{number}.txt").write_text(traceback.format_exc())
        raise SystemExit(1) from None


def together(size: int, folder: Path, work: Work, fresh: Any) -> Any:
    """What rank 0 says of `work(world)`, a function of a module, done by `size` processes."""
    store = folder / "store"
    others = [fresh.Process(target=rank, args=(number, size, store, work)) for number in range(1, size)]
    for other in others:
        other.start()
    try:
        with joined(0, size, store) as world:
            said = work(world)
    except BaseException as error:
        time.sleep(1)  # whoever failed first has said why by then
        error.add_note(f"ranks ended with {ended(others, 0)}; {what_ranks_said(folder)}")
        raise
    codes = ended(others, 60)
    assert not any(codes), f"ranks ended with {codes}; {what_ranks_said(folder)}"
    return said


def ended(processes: list[Any], seconds: float) -> list[int]:
    """Their exit codes; who takes longer is killed."""
    for process in processes:
        process.join(seconds)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def what_ranks_said(folder: Path) -> str:
    return (
        "\n".join(f"{file.stem}: {file.read_text()[-2000:]}" for file in sorted(folder.glob("rank-*.txt")))
        or "none said why"
    )


def beside(size: int, name: str, folder: Path, fresh: Any) -> tuple:
    """(losses of one process, of `size`)."""
    found = together(size, folder, partial(losses, name), fresh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return losses(name, ALONE), found
