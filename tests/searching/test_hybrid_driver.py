"""The driver of a hybrid search, call by call: Ray's part is played here, so that a worker dies when it is meant to.

Real clusters are in test_ray.py; what cannot be chosen there is which call a worker does not answer.
"""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_search import CPU, tiny_search, trained_alone

from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.searching.directory import Cluster, SearchDirectory
from koopsim.searching.stack_worker import StackWorker
from koopsim.searching.trial import draw_trials
from koopsim.tasks import build_task

hybrid = pytest.importorskip("koopsim.searching.hybrid", exc_type=KoopsimError)
SEARCH = replace(tiny_search(trials=6, batches=(10,), rates=(1e-3, 4e-3)), backend="ray")


class Gone(Exception):
    """Ray's word for a worker that died."""


class Failed(Exception):
    """Ray's word for a call that raised."""

    def __init__(self, cause):
        super().__init__("in a worker")
        self.cause = cause


class Here:
    """What the driver asks of Ray, answered in this process, the oldest call first.

    dying(method, n): whether the n-th call of that name finds its worker dead.
    """

    def __init__(self, resources=(("CPU", 2.0),), dying=lambda method, n: False):
        self.resources, self.dying = dict(resources), dying
        self.calls, self.asked, self.made, self.killed, self.rooms = {}, Counter(), 0, 0, []

    def cluster_resources(self):
        return self.resources

    def put(self, value):
        return value

    def remote(self, kind):
        def options(**share):
            def made(payload):
                self.made += 1
                self.rooms.append(share)
                return self.actor(kind(payload, "cpu"))

            return SimpleNamespace(remote=made)

        return SimpleNamespace(options=options)

    def actor(self, worker):
        def later(method):
            def call(*arguments):
                self.asked[method] += 1
                token = object()
                self.calls[token] = worker, method, arguments, self.asked[method]
                return token

            return SimpleNamespace(remote=call)

        return SimpleNamespace(**{method: later(method) for method in ("ready", "begin", "epoch")})

    def wait(self, calls, timeout):
        return [min(calls, key=list(self.calls).index)], []

    def get(self, token):
        worker, method, arguments, n = self.calls.pop(token)
        if self.dying(method, n):
            raise Gone
        return getattr(worker, method)(*arguments)

    def kill(self, actor):
        self.killed += 1

    def shutdown(self):
        pass


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver with this Ray, on a folder that stays."""
    monkeypatch.setattr("koopsim.searching.stack_worker.SAVE_SHARE", 1e9)  # a stack is sent after every epoch
    monkeypatch.setattr(hybrid, "start_ray", lambda address: None)
    monkeypatch.setattr(hybrid, "exceptions", SimpleNamespace(RayActorError=Gone, RayTaskError=Failed))
    folder = tmp_path / "search"

    def make(ray, cluster=Cluster(), search=SEARCH):  # noqa: B008
        monkeypatch.setattr(hybrid, "ray", ray)
        directory = SearchDirectory(folder) if folder.exists() else SearchDirectory.create(folder, search)
        return hybrid.HybridSearch(search, directory, cluster)

    return make


@pytest.fixture(scope="module")
def alone():
    """The losses of each trial by itself."""
    task = build_task(SEARCH.base.task, CPU)
    trials = draw_trials(SEARCH.base, SEARCH.space, SEARCH.seed)
    return [[line["loss"] for line in trained_alone(t.run, task, 4)[1]] for t in trials]


def agree(trials, alone):
    """Every trial is over, for a reason that is its own, with the figures it gives alone."""
    for trial, losses in zip(trials, alone, strict=True):
        assert [line["t"] for line in trial.curve] == list(range(1, trial.t + 1))
        assert [line["loss"] for line in trial.curve] == pytest.approx(losses[: trial.t], rel=1e-6)
        whole = ("finished", "all 4 epochs") if trial.t == 4 else ("pruned", f"below the others at epoch {trial.t}")
        assert (trial.status, trial.reason) == whole
    assert "finished" in {trial.status for trial in trials}


def test_two_workers_share_the_trials_and_every_figure_is_the_trials_own(driver, alone):
    ray = Here()
    search = driver(ray)
    agree(search.run(), alone)
    assert ray.made == 2  # room for two
    assert ray.killed == 2
    assert ray.asked["begin"] == 2  # three trials each
    assert ray.rooms == [{"num_cpus": 1.0, "num_gpus": 0.0, "max_restarts": 0}] * 2
    assert not search.directory.ray_folder.exists()
    assert {trial.status for trial in search.trials} == {"finished", "pruned"}


@pytest.mark.parametrize(("method", "n"), [("ready", 1), ("begin", 2), ("epoch", 1), ("epoch", 3), ("epoch", 5)])
def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(method, n, driver, alone):
    ray = Here(dying=lambda m, k: (m, k) == (method, n))
    agree(driver(ray).run(), alone)
    assert ray.made == 3


def test_a_stack_whose_workers_always_die_is_given_up(driver):
    ray = Here(resources=[("CPU", 1.0)], dying=lambda method, n: method == "epoch")
    trials = driver(ray).run()
    assert {(t.status, t.reason) for t in trials} == {("failed", "its worker died 10 times or more")}
    assert ray.asked["epoch"] == hybrid.RETRIES + 1


def test_what_a_worker_raises_is_one_line(driver):
    class Broken(Here):
        def get(self, token):
            raise Failed(ValueError("no such data\nand more"))

    with pytest.raises(KoopsimError, match=r"^A worker of the search failed: no such data$"):
        driver(Broken()).run()


def test_a_driver_that_was_stopped_goes_on_with_its_stacks(driver, alone, monkeypatch):
    class Interrupted(Here):
        def wait(self, calls, timeout):
            if self.asked["epoch"] == 4:
                stop.append(True)
            return super().wait(calls, timeout)

    class Asked(list):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    stop = Asked()
    with monkeypatch.context() as patch:
        patch.setattr(hybrid, "stop_requests", lambda: stop)
        with pytest.raises(Stopped):
            driver(Interrupted()).run()
    ray = Here()
    again = driver(ray)
    begun = [t.t for t in again.trials]
    assert max(begun) > 0
    assert [stack.number for stack in again.stacks] == [0, 1]
    assert sorted(i for stack in again.stacks for i in stack.slots if i is not None) == [
        t.index for t in again.trials if not t.over
    ]
    agree(again.run(), alone)
    assert ray.asked["epoch"] < 8


def test_a_file_that_is_no_stack_is_refused_by_name(driver, tmp_path):
    from koopsim.files.tensors import tensors_bytes

    driver(Here())
    file = tmp_path / "search" / "ray" / "stack-0.safetensors"
    for said in ({}, {"stack": {"slots": [0, 9], "ages": [1, 1]}}, {"stack": {"slots": 3, "ages": []}}):
        file.write_bytes(tensors_bytes({}, said))
        with pytest.raises(KoopsimError, match=r"stack-0.safetensors is not a whole stack of trials\. Remove it"):
            driver(Here())
    file.write_bytes(tensors_bytes({}, {"stack": {"slots": [None], "ages": [0]}}))  # of nobody: swept away
    assert not driver(Here()).stacks
    assert not file.exists()


@pytest.mark.parametrize(
    ("resources", "cluster", "room"),
    [
        ({"CPU": 8.0}, Cluster(), 8),
        ({"CPU": 8.0}, Cluster(cpus_per_trial=3.0), 2),
        ({"CPU": 8.0, "GPU": 2.0}, Cluster(), 2),
        ({"CPU": 8.0, "GPU": 2.0}, Cluster(gpus_per_trial=0.25), 8),
        ({"CPU": 8.0, "GPU": 2.0}, Cluster(gpus_per_trial=0.5, cpus_per_trial=4.0), 2),
        ({}, Cluster(), 1),
    ],
)
def test_as_many_workers_as_there_is_room_for(resources, cluster, room, driver):
    assert driver(Here(resources.items()), cluster)._capacity() == room


def test_at_once_is_shared_among_the_workers(driver):
    begun = []

    class Watched(StackWorker):
        def begin(self, trials, at_once, saved=None):
            begun.append((list(trials), at_once))
            return super().begin(trials, at_once, saved)

    class Watching(Here):
        def remote(self, kind):
            return super().remote(Watched)

    search = replace(SEARCH, at_once=5)
    trials = driver(Watching(), search=search).run()
    assert all(t.over for t in trials)
    assert begun[0] == ([0, 1, 2], 2)
    assert {at_once for _, at_once in begun} == {2}
