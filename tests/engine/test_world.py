"""Several processes give the losses of one: on every task, for every kind of model; and end in one sentence."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_contract import matrix
from together import beside, together

from koopsim.engine.world import ALONE, World, _same_versions, device_of_rank, expected, joined_world
from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.nn.synced import SyncedNorm, synchronised
from koopsim.presets import run_of

SMALL = "copy/sim-single --scale smoke --device cpu --task.horizon 3 --model.lift.levels 2 --task.train 50".split()
SMALL += "--task.valid 10 --task.test 10 --recipe.batch-size 7".split()
# Of each kind of lift: layers that are gathered one by one and computed again, batch norms, sequences, padded ones.
SHARDED = ["table/sim-single", "cifar10/sim-single", "copy/sim-single", "tag/sim-single"]


def koopsim(*argv, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "koopsim", *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | options,
    )  # fmt: skip


def ended(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def one_of_each(models: bool) -> list[str]:
    """A preset of every task, and of every kind of model on it."""
    found = {}
    for name in matrix():
        run = run_of(name, "smoke")
        found.setdefault((type(run.task).__name__, type(run.model).__name__ if models else ""), name)
    return list(found.values())


CASES = [(2, name) for name in (*one_of_each(models=True), *(f"shard:{name}" for name in SHARDED))]
CASES += [(4, name) for name in ("copy/sim-single", "cifar10/sim-single", "tag/sim-single", "shard:table/sim-single")]
CASES += [pytest.param(4, name, marks=pytest.mark.slow) for name in one_of_each(models=False) if (4, name) not in CASES]


@pytest.mark.parametrize(("size", "name"), CASES)
def test_processes_give_the_losses_of_one(size, name, tmp_path, fresh):
    alone, together = beside(size, name, tmp_path, fresh)
    (a, theta, moving), (b, theirs, moved) = ([torch.tensor(t) for t in part] for part in (alone, together))
    assert a.isfinite().all()
    torch.testing.assert_close(b[:, 0], a[:, 0], rtol=1e-5, atol=1e-6, msg="its first loss")
    run = run_of(name.rpartition(":")[2], "smoke")
    if model_kind(run.model).has_solver:  # stopped short it depends on every rounding
        torch.testing.assert_close(b[:, 1], a[:, 1], rtol=0.1, atol=0.1, msg="its second loss")
        return
    torch.testing.assert_close(b, a, rtol=2e-5, atol=2e-6, msg="its losses")
    torch.testing.assert_close(moved, moving, rtol=2e-5, atol=2e-6, msg="its statistics")
    # Adam divides by roots of squares near zero: what is tiny may differ by more
    torch.testing.assert_close(theirs, theta, rtol=1e-2, atol=2e-4, msg="its parameters")


def tell(world: World) -> list:
    """Sums, the largest, rank 0's word and everybody's."""
    sums, most = torch.arange(3.0) + world.rank, torch.tensor([world.rank, -world.rank])
    world.add_up(sums)
    world.largest(most)
    said = [sums.tolist(), most.tolist(), world.told(f"rank {world.rank}"), world.gathered(world.rank)]
    said += [world.agreed(7 + world.rank, False), world.agreed(7 + world.rank, world.rank == 2)]
    said += [world.alone, world.first == (world.rank == 0)]
    world.all_well()
    with pytest.raises(KoopsimError, match="of rank 1"):
        world.all_well(f"a problem of rank {world.rank}" if world.rank else "")
    _same_versions(world)
    everybody = world.gathered(said)
    assert all(other == said for other in everybody)
    return said


def test_ranks_tell_each_other(tmp_path, fresh):
    found = together(3, tmp_path, tell, fresh)
    assert found == [[3, 6, 9], [2, 0], "rank 0", [0, 1, 2], (7, False), (7, True), False, True]


def test_shares_of_a_batch_are_all_of_it():
    for size in (1, 2, 3, 4, 7):
        for count in (1, 2, 5, 20):
            worlds = [World(rank, size) for rank in range(size)]
            rows = [row for w in worlds if w.weight(count) for row in range(count)[w.rows(count)]]
            assert rows == list(range(count))
            assert sum(w.weight(count) for w in worlds) == pytest.approx(1)
            assert all(len(range(count)[w.rows(count)]) >= 1 for w in worlds)


def test_a_synchronised_norm_of_one_process_is_the_plain_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).double()
        synced = synchronised(torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).double())
        synced.load_state_dict(plain.state_dict())
        assert isinstance(synced[1], SyncedNorm)
        x = torch.randn(5, 2, 6, 6, dtype=torch.float64, requires_grad=True)
        for model in (plain, synced):
            x.grad = None
            model(x).square().sum().backward()
            found = [x.grad, *[p.grad for p in model.parameters()], *[b.double() for b in model.buffers()]]
            want = found if model is plain else want  # noqa: F821
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(synced.eval()(x), plain.eval()(x))
    finally:
        torch.distributed.destroy_process_group()


def test_the_command_in_two_processes_resumes_and_ends_as_in_one(tmp_path):
    """For seventy epochs, of which the first are compared (later ones follow rounding): no count leaves 64 bits."""
    argv = ["train", *SMALL, "--task.train", 15, "--recipe.epochs", 70]
    one = ended(koopsim(*argv, "--out", tmp_path / "one"))
    assert one[0] == 0, one[2]
    two = koopsim(*argv, "--devices", 2, "--out", tmp_path / "two", "--json")
    status, out, err = ended(two)
    assert status == 0, err
    result, wanted = json.loads(out), json.loads((tmp_path / "one" / "result.json").read_text())
    assert result["processes"] == 2
    assert [m["train_loss"] for m in result["metrics"][:5]] == pytest.approx(
        [m["train_loss"] for m in wanted["metrics"][:5]], rel=1e-5
    )
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == 70


def wait_for(file: Path, process: subprocess.Popen) -> None:
    for _ in range(1200):
        if file.exists() and file.stat().st_size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"{file} did not come")


def ranks_of(process: subprocess.Popen) -> dict[int, int]:
    """{rank: process id} of the children of a launcher."""
    found = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in map(int, children):
        own = dict(e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e)
        found[int(own["RANK"])] = pid
    return found


def test_a_rank_that_dies_ends_the_others_in_one_line_and_the_run_goes_on(tmp_path):
    """The first of them share the model; those that go on have all of it each: a checkpoint is that of one."""
    argv = ["train", *SMALL, "--recipe.epochs", 4000, "--devices", 2, "--out", tmp_path / "run"]
    process = koopsim(*argv, "--shard")
    wait_for(tmp_path / "run" / "checkpoint.safetensors", process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    status, _, err = ended(process, 60)
    assert status != 0
    assert "rank 1 was killed by SIGKILL" in err
    assert "Traceback" not in err
    process = koopsim("train", "--resume", tmp_path / "run", "--devices", 2)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)  # it may still be starting: then it stops before its first step
    status, _, err = ended(process, 60)
    assert status != 0
    assert "Traceback" not in err


def test_ranks_that_do_not_go_together_all_say_why_and_none_waits(tmp_path):
    script = Path(__file__).parent / "differing.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(tmp_path / "said.json")], capture_output=True, text=True,
        timeout=300, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    own = f"Rank 1 on {platform.node()}"
    wanted = {
        "versions": f"Rank 1 has python 3.99.0 where rank 0 has {platform.python_version()}; use the same on every",
        "data": f"{own} has other data than rank 0",
        "missing": f"{own}: ",
        "path": f"{own} does not see the run of rank 0 in {tmp_path}/path/1/run; give an --out on a path that all",
        "fine": "done",
    }
    for case, text in wanted.items():
        for rank in (0, 1):
            assert said[case][rank].startswith(text), (case, rank, said[case])
            assert said[case][rank].endswith("(in time)"), (case, rank, said[case])
    assert "data.npz" in said["missing"][0]


@pytest.mark.parametrize(
    ("environment", "why"),
    [({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"), ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is not")],
)
def test_a_half_made_environment_is_refused(environment, why, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KoopsimError, match=why), joined_world(torch.device("cpu")):
        raise AssertionError("it joined nobody")


def test_alone_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert expected() == 1
    assert device_of_rank("auto") == "auto"
    t = torch.ones(2)
    ALONE.add_up(t)
    assert ALONE.agreed(3, True) == (3, True)
    assert ALONE.told("x") == "x"
    with joined_world(torch.device("cpu")) as world:
        assert world is ALONE
