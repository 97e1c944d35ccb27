"""NCCL, as far as one GPU goes: a world of one rank whose sums go through NCCL all the same, captured; and FSDP2."""

from dataclasses import replace

import pytest
import torch
from contract import small

from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import World
from koopsim.presets import run_of
from koopsim.tasks import build_task

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
STEPS = 6


class ByNCCL(World):
    """One rank that asks the others nevertheless."""

    @property
    def alone(self) -> bool:
        return False


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    store = tmp_path_factory.mktemp("nccl") / "store"
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield ByNCCL()
    torch.distributed.destroy_process_group()


def losses(name: str, way: Way) -> torch.Tensor:
    run = small(run_of(name, "smoke"))
    run = replace(run, recipe=replace(run.recipe, epochs=1, batch_size=10, flip=False), precision="float32")
    device = torch.device("cuda", 0)
    slots = Stacked([run], build_task(run.task, device), device, 1, way)
    slots.warm_up()
    slots.begin_epoch()
    slots.advance(0, STEPS)
    torch.cuda.synchronize()
    return slots.losses(0)[:, :STEPS].clone()


@pytest.mark.parametrize("name", ["copy/sim-single", "cifar10/sim-single", "table/sim-single", "tag/sim-single"])
def test_a_captured_step_with_nccl_inside_gives_the_losses_of_one(name, world):
    alone, together, eager = (losses(name, way) for way in (Way(), Way(world=world), Way(world=world, capture=False)))
    assert together.isfinite().all()
    torch.testing.assert_close(together, eager, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(together, alone, rtol=2e-2, atol=2e-3)  # other kernels: a synchronised norm is not fused


@pytest.mark.parametrize("name", ["table/sim-single", "cifar10/sim-single"])
def test_fsdp_on_a_gpu_gives_the_losses_of_one(name, world):
    again = name.startswith("table")
    alone, sharded = losses(name, Way(capture=False)), losses(name, Way(world=world, shard=True, recompute=again))
    torch.testing.assert_close(sharded, alone, rtol=2e-2, atol=2e-3)
