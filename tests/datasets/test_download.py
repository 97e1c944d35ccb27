import numpy as np
import pytest
from mirror import Mirror
from tiny import md5

from koopsim.datasets.download import DownloadFailed, Patience, download

DATA = np.random.default_rng(0).bytes(300_001)
FILES = {"a.bin": DATA}
QUICK = Patience(timeout=0.5, attempts=3, pause=0.001)


def fetch(target, *mirrors, listen=lambda event: None):
    download([f"{m.url}/a.bin" for m in mirrors], target, md5(DATA), len(DATA), listen, QUICK)


def left(tmp_path):
    return sorted(p.name for p in tmp_path.iterdir())


@pytest.mark.parametrize(
    "moods",
    [
        (), ("cut",), ("cut", "cut", "cut", "cut", "cut"), (500, 503, "good"), ("wrong",), ("cut", "wrong"),
        ("cut", "deaf"), ("slow",), ("cut", "astray"), ("mute", "cut"), ("bare",), ("cut", "bare"), (429,),
        ("chunked", "chunked", "chunked", "chunked"),
        ("cut", 500, "cut", 502, "cut", 500, 500),
    ],
    ids=str,
)  # fmt: skip
def test_the_file_arrives_whole(tmp_path, moods):
    with Mirror(FILES, *moods) as mirror:
        fetch(tmp_path / "a.bin", mirror)
        assert not mirror.moods, "every fault was met"
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert left(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("mood", ["wrong", 500, 404, "mute", "endless"])
def test_a_mirror_that_never_works_leaves_no_file(tmp_path, mood):
    with Mirror(FILES, always=mood) as mirror, pytest.raises(DownloadFailed, match=r"a\.bin: 127\.0\.0\.1") as failed:
        fetch(tmp_path / "a.bin", mirror)
    assert left(tmp_path) == []
    assert "\n" not in str(failed.value)
    expected = {"wrong": 2, 500: QUICK.attempts, 404: 1, "mute": QUICK.attempts, "endless": 2}
    assert len(mirror.requests) == expected[mood]


def test_the_next_mirror_is_tried_and_told_of(tmp_path):
    events = []
    with Mirror(FILES, always=404) as first, Mirror(FILES, always="wrong") as second, Mirror(FILES) as third:
        fetch(tmp_path / "a.bin", first, second, third, listen=events.append)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert [e["why"] for e in events if e["event"] == "problem"] == [
        "answered 404",
        "sent other bytes than the published checksum says",
    ]
    heard = [e for e in events if e["event"] == "download"]
    assert heard[-1]["done"] == heard[-1]["total"] == len(DATA)
    assert heard[-1]["file"] == "a.bin"


def test_an_unreachable_mirror_is_passed_over_at_once(tmp_path):
    with Mirror(FILES) as gone:
        pass
    with Mirror(FILES) as mirror:
        fetch(tmp_path / "a.bin", gone, mirror)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        fetch(tmp_path / "b.bin", gone)


def test_only_what_is_missing_is_asked_for(tmp_path):
    (tmp_path / "a.bin.part").write_bytes(DATA[:1000])
    events = []
    with Mirror(FILES) as mirror:
        fetch(tmp_path / "a.bin", mirror, listen=events.append)
    assert mirror.requests == [("a.bin", "bytes=1000-")]
    assert events[-1]["done"] == events[-1]["total"] == len(DATA), "the bar begins where the last try ended"
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_mirrors_finish_each_others_work(tmp_path):
    with Mirror(FILES, always="cut") as first, Mirror(FILES, 500) as second:
        fetch(tmp_path / "a.bin", first, second)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert second.requests[-1][1] is not None


@pytest.mark.parametrize(
    "old", [DATA, DATA + b"more", bytes(len(DATA)), bytes(500)], ids=["all", "more", "bad", "start"]
)
def test_an_old_part_is_checked_not_trusted(tmp_path, old):
    (tmp_path / "a.bin.part").write_bytes(old)
    with Mirror(FILES) as mirror:
        fetch(tmp_path / "a.bin", mirror)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert len(mirror.requests) == (1 if old is DATA else 2)


def test_what_arrived_is_kept_for_the_next_try(tmp_path):
    with Mirror(FILES, "cut", always=500) as mirror:
        with pytest.raises(DownloadFailed):
            fetch(tmp_path / "a.bin", mirror)
        kept = (tmp_path / "a.bin.part").read_bytes()
        assert kept == DATA[: len(kept)]
        assert len(kept) > 100_000
        mirror.always = "good"
        fetch(tmp_path / "a.bin", mirror)
    assert mirror.requests[-1][1] == f"bytes={len(kept)}-"
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_server_that_ignores_range_is_taken_from_the_start_at_once(tmp_path):
    with Mirror(FILES, "cut", "deaf") as mirror:
        fetch(tmp_path / "a.bin", mirror)
    assert [asked is not None for _, asked in mirror.requests] == [False, True]


def test_a_range_that_was_not_asked_for_is_noticed_before_it_is_written(tmp_path):
    events = []
    with Mirror(FILES, "cut", "astray") as mirror:
        fetch(tmp_path / "a.bin", mirror, listen=events.append)
    assert "another part" in [e["why"] for e in events if e["event"] == "problem"][1]
