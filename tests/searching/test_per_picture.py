"""A search for every picture: which are still to do, and how their results become one. Nothing is trained here."""

import json
from dataclasses import replace

import pytest
from small_search import CPU, FOUND, result_of_run, tiny_search

from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory
from koopsim.searching import carrying_out
from koopsim.searching.carrying_out import How, resume_search
from koopsim.searching.directory import SearchDirectory, search_to_dict
from koopsim.searching.per_picture import PictureSearches, _mean_lines
from koopsim.training import Session

NAMES = ["cat", "dog", "emu"]


def asked():
    search = tiny_search("image/sim-rff", trials=2, batches=(64,))
    return replace(search, space=replace(search.space, metric="psnr", mode="max"))


@pytest.fixture
def each(tmp_path):
    return PictureSearches.create(tmp_path / "s", asked(), NAMES)


BEST = FOUND["best"]


def result_of(directory, number, **more):
    best = BEST | {"psnr": 20.0 + number, "values": {"recipe.learning_rate": number / 100}}
    found = FOUND | {"seconds": float(10 * number), "best": best} | more
    directory.result_file.write_text(json.dumps(found))


def begin(each, own, directory, number=None, **more):
    SearchDirectory.create(directory.path, own)
    if number is not None:
        result_of(directory, number, **more)


def test_what_is_begun_and_what_is_done(each):
    search = asked()
    assert each.read() == (search, NAMES)
    parts = each.parts()
    assert [(own.base.task.only, directory.path.name, begun) for own, directory, begun in parts] == [
        (name, name, False) for name in NAMES]  # fmt: skip
    begin(each, *parts[0][:2], 1)  # done
    begin(each, *parts[1][:2])  # begun
    begin(each, replace(parts[2][0], seed=5), parts[2][1], 3)  # another search, and its result
    assert [(directory.path.name, begun) for _, directory, begun in each.parts()] == [("dog", True), ("emu", False)]
    result_of(parts[1][1], 2)
    assert [directory.path.name for _, directory, _ in each.parts()] == ["emu"]


def test_the_result_is_that_of_all_pictures(each):
    for number, (own, directory, _) in enumerate(each.parts(), 1):
        begin(each, own, directory, number)
    result = each.gather()
    assert result == json.loads(each.result_file.read_text())
    assert (result["name"], result["pictures"], result["seconds"]) == ("image/sim-rff", NAMES, 60.0)
    assert result["settings"]["dog"] == {"recipe.learning_rate": 0.02}
    assert result["valid"]["psnr"] == pytest.approx(22.0)
    assert "test" not in result


def test_networks_trained_again_are_put_together(each):
    for number, (own, directory, _) in enumerate(each.parts(), 1):
        begin(each, own, directory, number, test={"psnr": 30.0 + number})
        folder = RunDirectory.create(directory.best_folder(0), own.base, "image/sim-rff")
        lines = [{"epoch": e, "seconds": float(number), "psnr": 10.0 * number + e} for e in (1, 2)]
        found = result_of_run(own.base, metrics=lines, parameters=100 + number, train_seconds=float(number))
        folder.result_file.write_text(json.dumps(found))
    result = each.gather()
    assert result["test"]["psnr"] == pytest.approx(32.0)
    assert (result["parameters"], result["train_seconds"]) == ([101, 102, 103], 6.0)
    assert result["milliseconds_per_step"] == 1.5
    assert result["metrics"] == [{"epoch": e, "seconds": 6.0, "psnr": 20.0 + e} for e in (1, 2)]
    (each.path / "dog" / "result.json").write_text(json.dumps(FOUND))
    assert "test" not in each.gather()  # one of them was not
    assert each.parts() == []


@pytest.mark.parametrize(
    ("found", "field"),
    [([], "it is"), ({}, "'name'"), (FOUND | {"seconds": "1"}, "'seconds'"), (FOUND | {"best": [1.0]}, "'best'"),
     ({k: v for k, v in FOUND.items() if k != "seconds"}, "'seconds'"), (FOUND | {"metric": "loss"}, "'loss'"),
     (FOUND | {"best": BEST | {"psnr": "1"}}, "'psnr'"), (FOUND | {"best": BEST | {"values": []}}, r"'best\.values'"),
     (FOUND | {"test": {"psnr": None}}, r"'test\.psnr'"), (FOUND | {"test": {}}, "'psnr' is missing")],
)  # fmt: skip
def test_a_result_that_is_not_whole_is_named(each, found, field):
    for number, (own, directory, _) in enumerate(each.parts(), 1):
        begin(each, own, directory, number, test={"psnr": 1.0})
    (each.path / "emu" / "result.json").write_text(json.dumps(found))
    with pytest.raises(KoopsimError, match=rf"emu/result\.json.*{field}"):
        each.gather()


def test_the_shortest_curve_decides_how_long_the_mean_is():
    curves = [[{"epoch": 1, "seconds": 1.0, "a": 2.0}, {"epoch": 2, "seconds": 1.0, "a": 4.0}],
              [{"epoch": 1, "seconds": 2.0, "a": 6.0}]]  # fmt: skip
    assert _mean_lines(curves) == [{"epoch": 1, "seconds": 3.0, "a": 4.0}]
    curves[1][0]["b"] = 1.0  # which the other does not have
    assert _mean_lines(curves[::-1]) == [{"epoch": 1, "seconds": 3.0, "a": 4.0}]


@pytest.mark.parametrize("names", [["a", "a"], ["result.json"], ["best"], ["ray"], ["confirm"], ["../a"], [""], [3]])
def test_names_that_no_folder_may_have(tmp_path, names):
    with pytest.raises(KoopsimError, match="picture"):
        PictureSearches.create(tmp_path / "s", asked(), names)
    assert not (tmp_path / "s" / "pictures.json").exists()


def test_what_is_no_search_of_pictures(tmp_path, each):
    with pytest.raises(KoopsimError, match="is not about pictures; a search per picture needs image regression"):
        PictureSearches.create(tmp_path / "t", tiny_search(), NAMES)
    with pytest.raises(KoopsimError, match="already holds a search"):
        PictureSearches.create(tmp_path / "s", asked(), NAMES)
    for said in ([], {"pictures": NAMES}, {"search": search_to_dict(asked())},
                 {"search": search_to_dict(asked()), "pictures": "cat"}):  # fmt: skip
        each.file.write_text(json.dumps(said))
        with pytest.raises(KoopsimError, match=r"pictures\.json"):
            each.read()


def test_an_older_search_of_a_picture_is_let_go_of(tmp_path, each):
    for own, directory, _ in each.parts():
        begin(each, own, directory, 1)
    again = PictureSearches.create(tmp_path / "s", asked(), NAMES, overwrite=True)
    assert [begun for *_, begun in again.parts()] == [False] * 3
    PictureSearches.create(tmp_path / "s", asked(), NAMES, overwrite=True)  # nor is there one to let go of


def test_gone_on_with_every_picture_has_its_turn(each, monkeypatch):
    """The first is done, the second was begun."""
    parts, turns = each.parts(), []
    begin(each, *parts[0][:2], 1)
    begin(each, *parts[1][:2])
    monkeypatch.setattr(carrying_out, "build_task", lambda task, device: task.only)

    def one(search, directory, begun, how, task):
        assert directory.read() == search
        turns.append((directory.path.name, begun, task))
        result_of(directory, 2)

    monkeypatch.setattr(carrying_out, "_one", one)
    result = resume_search(each.path, How(Session(CPU)))
    assert turns == [("dog", True, "dog"), ("emu", False, "emu")]
    assert result == json.loads(each.result_file.read_text())
    assert result["valid"]["psnr"] == pytest.approx(65 / 3)
