"""How Ray is started, and what is said where it cannot be; no Ray is started here."""

import logging

import pytest

pytest.importorskip("ray")

from koopsim.errors import KoopsimError
from koopsim.searching import cluster


@pytest.fixture
def init(monkeypatch):
    given = []
    monkeypatch.setattr(cluster.ray, "init", lambda *words, **more: given.append((words, more)))
    return given


def test_it_is_quiet_and_has_one_thread_a_trial(init):
    cluster.start_ray(None)
    cluster.start_ray("10.0.0.1:6379")
    quiet = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}, "log_to_driver": False,
             "logging_level": logging.ERROR}  # fmt: skip
    own = {"include_dashboard": False, "object_store_memory": 256 * 1024 * 1024}
    assert init == [(("local",), quiet | own), (("10.0.0.1:6379",), quiet)]


@pytest.mark.parametrize(
    ("error", "address", "says"),
    [
        (ConnectionError("nobody there\nat all"), "auto", "No Ray cluster at auto: nobody there Start one"),
        (RuntimeError(), None, "No Ray cluster at this machine:  Start one"),
        (ValueError("bad port"), "x:y", "No Ray cluster at x:y: bad port Start one"),
    ],
)
def test_where_it_cannot_be_started_one_line_says_so(monkeypatch, error, address, says):
    def init(*words, **more):
        raise error

    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(KoopsimError, match=f"^{says}"):
        cluster.start_ray(address)
