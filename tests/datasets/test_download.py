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


@pytest.mark.parametrize(
    ("code", "asked"), [(408, 3), (425, 3), (429, 3), (500, 3), (503, 3), (499, 1), (404, 1), (416, 1)]
)
def test_which_answers_may_be_others_next_time(tmp_path, code, asked):
    with Mirror(FILES, always=code) as mirror, pytest.raises(DownloadFailed, match=f"answered {code}"):
        fetch(tmp_path / "a.bin", mirror)
    assert len(mirror.requests) == asked


def test_pauses_are_doubled_while_nothing_arrives(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr("koopsim.datasets.download.time.sleep", pauses.append)
    with Mirror(FILES, "cut", "cut", always=500) as mirror, pytest.raises(DownloadFailed):
        download([f"{mirror.url}/a.bin"], tmp_path / "a.bin", md5(DATA), len(DATA), patience=Patience(0.5, 4, 3.0))
    assert [p for p in pauses if p] == [3.0, 3.0, 6.0, 12.0, 24.0]  # no pause before giving up; the mirror's are 0
    assert len(mirror.requests) == 6


def test_checksums_of_both_kinds_where_md5_is_not_for_security(tmp_path, monkeypatch):
    import hashlib

    from koopsim.datasets.download import checksum_of, md5_of

    (tmp_path / "a").write_bytes(DATA)
    sha, plain = hashlib.sha256(DATA).hexdigest(), hashlib.md5

    def strict(*words, usedforsecurity=True):
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return plain(*words)

    monkeypatch.setattr(hashlib, "md5", strict)
    assert checksum_of(tmp_path / "a", sha) == sha
    assert checksum_of(tmp_path / "a", "0" * 32) == md5_of(tmp_path / "a") == plain(DATA).hexdigest()


def test_twice_the_size_that_was_said_may_come_at_once(tmp_path):
    for number, (size, requests) in enumerate(((len(DATA), 1), (-(-len(DATA) // 2), 1), (len(DATA) // 2 - 40_000, 2))):
        with Mirror(FILES) as mirror:
            download([f"{mirror.url}/a.bin"], tmp_path / f"{number}", md5(DATA), size, patience=QUICK)
        assert len(mirror.requests) == requests  # beyond that it is asked for again from where it is
        assert (tmp_path / f"{number}").read_bytes() == DATA
        assert (tmp_path / f"{number}").stat().st_mode & 0o777 == 0o644


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "a.bin.part").symlink_to(tmp_path / "mine")
    with Mirror(FILES) as mirror, pytest.raises(OSError, match=r"a\.bin\.part"):
        fetch(tmp_path / "a.bin", mirror)
    assert (tmp_path / "mine").read_bytes() == b"mine"
