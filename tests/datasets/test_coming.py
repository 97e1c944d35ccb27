"""A set that was begun ahead is the set, read once; what is wrong with it is said where it is asked for."""

import numpy as np
import pytest
from tiny import place, tiny_cifar

from koopsim.datasets import coming
from koopsim.datasets.published import OfficialKind
from koopsim.errors import KoopsimError


@pytest.fixture
def cifar(monkeypatch, tmp_path):
    source, files, _ = tiny_cifar()
    monkeypatch.setattr(coming, "CIFAR10", source)
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path))
    place(files, tmp_path / "cifar10")
    return OfficialKind(source, "CIFAR-10", 1), tmp_path / "cifar10"


def test_it_is_read_ahead_and_once(cifar, monkeypatch):
    kind, folder = cifar
    wanted, reads, whole = kind.load(), [], coming.read_official
    monkeypatch.setattr(coming, "read_official", lambda *words: (reads.append(words), whole(*words))[1])
    coming.read_ahead("cifar10")
    assert set(coming._COMING) == {("cifar10", folder)}
    found = kind.load()
    np.testing.assert_array_equal(found.train[0], wanted.train[0])
    assert len(reads) == 1
    kind.load()  # the files may be others by now
    assert len(reads) == 2


def test_what_is_broken_is_said_when_it_is_asked_for(cifar):
    kind, folder = cifar
    (folder / "test_batch.bin").write_bytes(b"short")
    coming.read_ahead("cifar10")
    with pytest.raises(KoopsimError, match=r"test_batch\.bin"):
        kind.load()


@pytest.mark.parametrize("name", ["copy", "", "digits", "mnist"])
def test_no_set_or_no_files_begin_nothing(cifar, name):
    coming.read_ahead(name)
    assert not coming._COMING
