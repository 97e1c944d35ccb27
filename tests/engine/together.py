"""N gloo processes beside one: `python together.py N OUT PRESET...` writes {preset: [losses of one, of N]}."""

import json
import os
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from contract import CPU, small

from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import ALONE, World
from koopsim.presets import run_of
from koopsim.tasks import build_task

STEPS = 3


def losses(name: str, world: World) -> tuple[list, list, list]:
    """(of the steps, of each member; the parameters after them; the running statistics)."""
    run = small(run_of(name, "smoke"))
    batch = min(run.recipe.batch_size, 10)  # not a multiple of four: shares differ
    run = replace(run, recipe=replace(run.recipe, epochs=1, batch_size=batch, flip=False))
    slots = Stacked([run], build_task(run.task, CPU), CPU, 1, Way(world=world))
    slots.begin_epoch()
    slots.advance(0, STEPS)
    members = slots.part.members
    moving = [v for n, t in sorted(members.buffers.items()) if "running" in n for v in t.flatten().tolist()]
    return slots.losses(0)[:, :STEPS].tolist(), members.flat.flatten()[::97].tolist(), moving


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
                finally:
                    os._exit(status)
            pids.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main())
