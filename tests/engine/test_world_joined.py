"""Joining a world by its environment, in this process and another; and what is said where nobody comes."""

import os
import socket
import warnings
from datetime import timedelta

import pytest
import torch
from torch import distributed

from koopsim import runs
from koopsim.engine import world as worlds
from koopsim.engine.world import World, expected, joined_world
from koopsim.errors import KoopsimError, LostOthers

CPU = torch.device("cpu")
PLACE = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch):
    """Two processes, of which this is the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in zip(PLACE, (2, 0, "127.0.0.1", port), strict=True):
        monkeypatch.setenv(name, str(value))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield monkeypatch
    torch.set_num_threads(threads)


def said(world: World) -> list:
    total = torch.ones(2) * (world.rank + 1)
    world.add_up(total)
    return [world.rank, world.size, world.alone, world.first, total.tolist(), worlds._device().type]


def join(rank: int, environment: dict[str, str]) -> None:
    os.environ |= environment | {"RANK": str(rank)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with joined_world(CPU) as world:
            found = said(world)
            distributed.barrier()
    assert found == [rank, 2, False, rank == 0, [3, 3], "cpu"]


def test_two_join_and_leave(environment, fresh):
    other = fresh.Process(target=join, args=(1, {name: os.environ[name] for name in PLACE}))
    other.start()
    try:
        join(0, {})
    finally:
        other.join(60)
        other.kill()
    assert other.exitcode == 0
    assert not distributed.is_initialized()


def test_who_has_joined_already_stays(environment, tmp_path):
    """As Ray Train does it: the environment need not say where the others are."""
    environment.delenv("MASTER_ADDR")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with joined_world(CPU) as world:
            assert world == World(0, 1)
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


def test_nobody_comes(environment):
    environment.setattr(worlds, "PATIENCE", timedelta(seconds=1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment.setenv("MASTER_PORT", str(port))
        met = rf"^Rank 0 of 2 cannot meet the others at 127.0.0.1:{port}: .*Is the port free"
        with pytest.raises(KoopsimError, match=met), joined_world(CPU):
            raise AssertionError("it joined nobody")
    assert not distributed.is_initialized()


@pytest.mark.parametrize(("said", "count"), [("3", 3), ("1", 1), ("0", 1), ("-2", 1)])
def test_how_many_there_are(said, count, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", said)
    assert expected() == count


def test_a_source_without_a_version(monkeypatch):
    own = []

    class Told(World):
        def gathered(self, value):
            own.append(value)
            return [value]

    worlds._same_versions(Told())
    assert own[0]["koopsim"] == (runs.version_of("koopsim") or "source")
    monkeypatch.setattr(runs.metadata, "version", lambda name: "1.2")
    worlds._same_versions(Told())

    def missing(name):
        raise runs.metadata.PackageNotFoundError

    monkeypatch.setattr(runs.metadata, "version", missing)
    worlds._same_versions(Told())
    assert [said["koopsim"] for said in own[1:]] == ["1.2", "source"]
    assert set(own[0]) == {"koopsim", "torch", "python"}


def test_what_a_lost_rank_says_is_short():
    def gone():
        raise ValueError("x" * 200 + "\nmore")

    with pytest.raises(LostOthers) as error:
        worlds._surely(gone)
    assert str(error.value).endswith(f"({'x' * 160})")
    with pytest.raises(LostOthers) as error, World(1, 2).reached():
        raise RuntimeError("gloo " + "x" * 200)
    assert str(error.value).endswith(f"(gloo {'x' * 155})")
    with pytest.raises(KoopsimError, match=r"^second$"):
        type("Told", (World,), {"gathered": lambda self, value: ["", "second", "third"]})(0, 3).all_well()
