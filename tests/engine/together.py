"""N gloo processes beside one: `python together.py N OUT PRESET...` writes {preset: [losses of one, of N]}.

shard:PRESET: the N share the model too, compute blocks of it again where it has any, clip, average, and are stopped
after two steps: the rest is done by others that begin with what the first ones saved.
"""

import json
import os
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from contract import CPU, small

from koopsim.config import MLPConfig
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import ALONE, World
from koopsim.presets import run_of
from koopsim.tasks import build_task

STEPS = 3


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


def rank(number: int, size: int, store: str, names: list[str], out: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # solves that stop short say so
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=size)
    together = {name: losses(name, World(number, size)) for name in names}
    if number == 0:
        out.write_text(json.dumps({name: [losses(name, ALONE), together[name]] for name in names}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> int:
    size, out, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for number in range(size):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    rank(number, size, f"{folder}/store", names, out)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            pids.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main())
